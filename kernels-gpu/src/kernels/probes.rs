//! Probes: one tiny kernel for every instruction, so that its two bodies can be compared on a GPU.
//!
//! A probe is one block, or in [`cluster`] a cluster of them. Its input is `input_words` words for each thread, word `k` of thread `t` at index
//! `k · threads + t`; its output is laid out likewise. The list below makes the entries `probe_<name>` of the PTX
//! module `probes`, and on the CPU the table [`PROBES`], whose rows know how to fill the input and how closely two
//! outputs must agree. Those of Hopper's instructions, in [`hopper`] and [`cluster`], take tensor maps besides.
#![allow(
    unsafe_op_in_unsafe_fn,
    reason = "every function here has one contract, its row's: that block, an input and an output of those sizes"
)]

use crate::ptx::{
    barrier, convert, cp_async, global, ldmatrix, math, mma, parameters, shared, shuffle, special,
};

mod atomics;
mod clocks;
mod conversions;

pub mod cluster;

pub mod hopper;

mod list;

mod spec_constants;

mod tf32;

use atomics::{atom_add_u32, atom_inc_u32, fences, red_add_f32, release_acquire};
use clocks::clocks;
use conversions::{cvt_bf16x2, cvt_f16x2, prmt, prmt_signs, unpack};
use spec_constants::spec_constants;
use tf32::{cvt_tf32, mma_tf32, mma_tf32_sums};

#[cfg(target_arch = "nvptx64")]
mod entries;

#[cfg(not(target_arch = "nvptx64"))]
mod table;

#[cfg(not(target_arch = "nvptx64"))]
pub use table::{CLUSTER_PROBES, Disagreement, HOPPER_PROBES, PROBES, Probe, Takes};

/// Address of word `k` of this thread.
fn word(base: u64, k: u32) -> u64 {
    base + u64::from(k * special::block_dim_x() + special::thread_idx_x()) * 4
}

unsafe fn get(input: u64, k: u32) -> u32 {
    global::ld_global_u32(word(input, k))
}

unsafe fn get_f32(input: u64, k: u32) -> f32 {
    f32::from_bits(get(input, k))
}

unsafe fn put(output: u64, k: u32, x: u32) {
    global::st_global_u32(word(output, k), x)
}

unsafe fn put_f32(output: u64, k: u32, x: f32) {
    put(output, k, x.to_bits())
}

unsafe fn put_all(output: u64, first: u32, x: &[u32]) {
    let mut k = 0;
    while k < x.len() {
        put(output, first + k as u32, x[k]);
        k += 1;
    }
}

unsafe fn special_registers(_: u64, output: u64) {
    let registers = [
        special::thread_idx_x(),
        special::lane_idx(),
        special::block_idx_x(),
        special::block_dim_x(),
        special::grid_dim_x(),
        // The address itself is each machine's own; that it is aligned is not.
        special::shared_base() % 1024,
        special::opaque(special::thread_idx_x()),
    ];
    put_all(output, 0, &registers)
}

/// A product whose accumulator is unpacked from words 0 and 1, `a` words 2 to 5, `b` words 6 and 7.
#[inline(always)]
unsafe fn product(
    input: u64,
    output: u64,
    unpack: fn(u32) -> [f32; 2],
    multiply: unsafe fn(&mut [f32; 4], [u32; 4], [u32; 2]),
) {
    let ([c0, c1], [c2, c3]) = (unpack(get(input, 0)), unpack(get(input, 1)));
    let mut acc = [c0, c1, c2, c3];
    let a = [get(input, 2), get(input, 3), get(input, 4), get(input, 5)];
    multiply(&mut acc, a, [get(input, 6), get(input, 7)]);
    put_all(output, 0, &acc.map(f32::to_bits));
}

unsafe fn mma_bf16(input: u64, output: u64) {
    product(input, output, convert::unpack_bf16x2, |c, a, b| {
        mma::mma_m16n8k16_bf16(c, a, b)
    })
}

unsafe fn mma_f16(input: u64, output: u64) {
    product(input, output, convert::unpack_f16x2, |c, a, b| {
        mma::mma_m16n8k16_f16(c, a, b)
    })
}

unsafe fn mma_bf16_sums(input: u64, output: u64) {
    mma_bf16(input, output)
}

unsafe fn mma_f16_sums(input: u64, output: u64) {
    mma_f16(input, output)
}

/// Fills 32 rows of 16 bytes and gives the address of this lane's row, the rows in an order of their own.
unsafe fn fill_rows(input: u64) -> u32 {
    let (base, lane) = (special::shared_base(), special::lane_idx());
    let row = [get(input, 0), get(input, 1), get(input, 2), get(input, 3)];
    shared::st_shared_x4(base + lane * 16, row);
    barrier::warp_sync();
    base + (lane * 5 + 3) % 32 * 16
}

unsafe fn ldmatrix_x4(input: u64, output: u64) {
    put_all(output, 0, &ldmatrix::ldmatrix_x4(fill_rows(input)))
}

unsafe fn ldmatrix_x4_trans(input: u64, output: u64) {
    put_all(output, 0, &ldmatrix::ldmatrix_x4_trans(fill_rows(input)))
}

unsafe fn ldmatrix_x2(input: u64, output: u64) {
    put_all(output, 0, &ldmatrix::ldmatrix_x2(fill_rows(input)))
}

unsafe fn ldmatrix_x2_trans(input: u64, output: u64) {
    put_all(output, 0, &ldmatrix::ldmatrix_x2_trans(fill_rows(input)))
}

/// Three groups of copies, every number of source bytes from 0 to 16 and from 0 to 4 among them; each lane reads its neighbour's.
unsafe fn copies(input: u64, output: u64) {
    let (base, lane) = (special::shared_base(), special::lane_idx());
    cp_async::cp_async_cg_16(base + lane * 16, input + u64::from(lane) * 16, lane % 17);
    cp_async::cp_async_commit_group();
    cp_async::cp_async_cg_16(
        base + 512 + lane * 16,
        input + 512 + u64::from(lane) * 16,
        16,
    );
    cp_async::cp_async_commit_group();
    cp_async::cp_async_ca_4(
        base + 1024 + lane * 4,
        input + u64::from(lane) * 4,
        lane % 5,
    );
    cp_async::cp_async_commit_group();
    cp_async::cp_async_wait_group::<2>();
    barrier::warp_sync();
    put_all(output, 0, &shared::ld_shared_x4(base + (lane ^ 1) * 16));
    cp_async::cp_async_wait_group::<0>();
    barrier::warp_sync();
    put_all(
        output,
        4,
        &shared::ld_shared_x4(base + 512 + (lane ^ 1) * 16),
    );
    put(
        output,
        8,
        shared::ld_shared_u32(base + 1024 + (lane ^ 1) * 4),
    );
}

/// Both warps exchange at barrier 1; then warp 0 only arrives at barrier 2 and warp 1 reads what it left.
unsafe fn named_barriers(input: u64, output: u64) {
    let (base, thread) = (special::shared_base(), special::thread_idx_x());
    shared::st_shared_u32(base + thread * 4, get(input, 0));
    barrier::barrier_sync(1, 64);
    put(output, 0, shared::ld_shared_u32(base + (63 - thread) * 4));
    if thread < 32 {
        shared::st_shared_u32(base + 256 + thread * 4, !get(input, 0));
        barrier::barrier_arrive(2, 64);
        put(output, 1, 0);
    } else {
        barrier::barrier_sync(2, 64);
        put(
            output,
            1,
            shared::ld_shared_u32(base + 256 + (63 - thread) * 4),
        );
    }
}

/// Two warps vote at barrier 3: on a predicate that few of the threads have, one of one warp, none and all; what the other
/// warp wrote before is seen behind it.
unsafe fn barrier_votes(input: u64, output: u64) {
    let (base, thread) = (special::shared_base(), special::thread_idx_x());
    shared::st_shared_u32(base + thread * 4, get(input, 0));
    let predicates = [
        get(input, 0).is_multiple_of(64),
        thread == 40,
        thread > 63,
        thread < 64,
    ];
    put_all(
        output,
        0,
        &predicates.map(|x| barrier::barrier_red_or(3, 64, x) as u32),
    );
    put(output, 4, shared::ld_shared_u32(base + (63 - thread) * 4));
}

unsafe fn block_barrier(input: u64, output: u64) {
    let (base, thread) = (special::shared_base(), special::thread_idx_x());
    shared::st_shared_u32(base + thread * 4, get(input, 0));
    barrier::barrier_sync_all();
    put(output, 0, shared::ld_shared_u32(base + (127 - thread) * 4));
}

unsafe fn shuffles(input: u64, output: u64) {
    let (x, lane) = (get(input, 0), get(input, 1) % 32);
    // A number that is no NaN, so that its bits survive.
    let number = f32::from_bits(x & 0x7f7f_ffff);
    let mut k = 0;
    while k < 5 {
        put(output, 2 * k, shuffle::shuffle_bfly_u32(x, 1 << k));
        put_f32(
            output,
            2 * k + 1,
            shuffle::shuffle_bfly_f32(number, 31 >> k),
        );
        k += 1;
    }
    put(output, 10, shuffle::shuffle_idx_u32(x, lane));
    put_f32(output, 11, shuffle::shuffle_idx_f32(number, lane));
}

unsafe fn votes(input: u64, output: u64) {
    let rare = get(input, 0).is_multiple_of(32);
    let (none, all) = (special::lane_idx() > 31, special::lane_idx() < 32);
    put_all(
        output,
        0,
        &[rare, none, all].map(|p| shuffle::vote_any(p) as u32),
    );
    put_all(
        output,
        3,
        &[!rare, none, all].map(|p| shuffle::vote_all(p) as u32),
    );
    put_all(
        output,
        6,
        &[rare, none, all].map(|p| shuffle::vote_ballot(p)),
    );
}

unsafe fn reductions(input: u64, output: u64) {
    let mut k = 0;
    while k < 2 {
        // Sums that overflow, and such that do not.
        let x = get(input, 0) >> (k * 8);
        put(output, 2 * k, shuffle::redux_add_u32(x));
        put(output, 2 * k + 1, shuffle::redux_max_u32(x));
        k += 1;
    }
}

#[inline(always)]
unsafe fn each(input: u64, output: u64, f: fn(f32) -> f32) {
    let mut k = 0;
    while k < 16 {
        put_f32(output, k, f(get_f32(input, k)));
        k += 1;
    }
}

unsafe fn ex2_approx(input: u64, output: u64) {
    each(input, output, math::ex2_approx)
}

unsafe fn lg2_approx(input: u64, output: u64) {
    each(input, output, math::lg2_approx)
}

unsafe fn rcp_approx(input: u64, output: u64) {
    each(input, output, math::rcp_approx)
}

unsafe fn fma(input: u64, output: u64) {
    let mut k = 0;
    while k < 4 {
        let (a, b) = (get_f32(input, 3 * k), get_f32(input, 3 * k + 1));
        let c = get_f32(input, 3 * k + 2);
        put_f32(output, k, math::fma(a, b, c));
        put_f32(output, 4 + k, math::fms(a, b, c));
        k += 1;
    }
}

/// `f` of eight pairs of words.
#[inline(always)]
unsafe fn each_pair(input: u64, output: u64, f: fn(f32, f32) -> u32) {
    let mut k = 0;
    while k < 8 {
        put(
            output,
            k,
            f(get_f32(input, 2 * k), get_f32(input, 2 * k + 1)),
        );
        k += 1;
    }
}

unsafe fn max(input: u64, output: u64) {
    each_pair(input, output, |a, b| math::max(a, b).to_bits())
}

/// Every width stored by one thread and loaded by another.
unsafe fn shared_words(input: u64, output: u64) {
    let (base, thread) = (special::shared_base(), special::thread_idx_x());
    let at = |thread: u32| base + thread * 16;
    let (pairs, singles) = (base + 1024, base + 1536);
    let other = 63 - thread;
    shared::st_shared_x4(
        at(thread),
        [get(input, 0), get(input, 1), get(input, 2), get(input, 3)],
    );
    shared::st_shared_x2(pairs + thread * 8, [get(input, 4), get(input, 5)]);
    shared::st_shared_u32(singles + thread * 4, get(input, 6));
    shared::st_shared_f32(
        singles + 256 + thread * 4,
        f32::from_bits(get(input, 7) & 0x7f7f_ffff),
    );
    barrier::barrier_sync_all();
    put_all(output, 0, &shared::ld_shared_x4(at(other)));
    put_all(output, 4, &shared::ld_shared_x2(pairs + other * 8));
    put(output, 6, shared::ld_shared_u32(singles + other * 4));
    put_f32(output, 7, shared::ld_shared_f32(singles + 256 + other * 4));
}

/// Every width loaded and stored; here the twenty-four words of a thread lie side by side.
unsafe fn global_words(input: u64, output: u64) {
    let offset = u64::from(special::thread_idx_x()) * 96;
    let (input, output) = (input + offset, output + offset);
    global::st_global_x4(output, global::ld_global_x4(input));
    global::st_global_f32x4(output + 16, global::ld_global_f32x4(input + 16));
    global::st_global_x2(output + 32, global::ld_global_x2(input + 32));
    global::st_global_u32(output + 40, global::ld_global_u32(input + 40));
    global::st_global_f32(output + 44, global::ld_global_f32(input + 44));
    let mut i = 0;
    while i < 16 {
        let at = input + 48 + i * 2;
        let half = match i {
            0 => u16::from_le_bytes([global::ld_global_u8(at), global::ld_global_u8(at + 1)]),
            _ => global::ld_global_u16(at),
        };
        let to = output + 48 + (15 - i) * 2;
        if i == 1 {
            let [low, high] = half.to_le_bytes();
            global::st_global_u8(to, low);
            global::st_global_u8(to + 1, high);
        } else {
            global::st_global_u16(to, half);
        }
        i += 1;
    }
    global::st_global_x4(output + 80, parameters::ld_generic_x4(input + 80));
}

/// Two words side by side, with the predicate and, from no address, without.
unsafe fn predicated_loads(input: u64, output: u64) {
    let at = input + u64::from(special::thread_idx_x()) * 8;
    let otherwise = [get(input, 2), get(input, 3)];
    put_all(output, 0, &global::ld_global_x2_or(at, otherwise, true));
    put_all(output, 2, &global::ld_global_x2_or(0, otherwise, false));
}

/// Stores of the odd threads over zeros; eight words of a thread, the first four side by side, and the next two.
unsafe fn predicated_stores(input: u64, output: u64) {
    let thread = special::thread_idx_x();
    let odd = thread % 2 == 1;
    let wide = output + u64::from(thread) * 16;
    let pair = output + u64::from(special::block_dim_x()) * 16 + u64::from(thread) * 8;
    global::st_global_x4(wide, [0; 4]);
    global::st_global_x2(pair, [0; 2]);
    put_all(output, 6, &[0, 0]);
    let x = [get(input, 0), get(input, 1), get(input, 2), get(input, 3)];
    global::st_global_x4_if(wide, x, odd);
    global::st_global_x2_if(pair, [get(input, 4), get(input, 5)], odd);
    global::st_global_u32_if(word(output, 6), get(input, 6), odd);
    global::st_global_f32_if(
        word(output, 7),
        f32::from_bits(get(input, 7) & 0x7f7f_ffff),
        odd,
    );
}

//! Probes of atomic accesses and fences.

use super::{get, put, put_all};
use crate::ptx::{atomic, barrier, global, special};

/// Word 0 collects whole numbers from all threads; the others stay 0.
pub(super) unsafe fn red_add_f32(_: u64, output: u64) {
    put(output, 0, 0);
    barrier::barrier_sync_all();
    atomic::red_add_f32(output, (special::thread_idx_x() + 1) as f32);
}

/// Numbers: each is claimed once.
pub(super) unsafe fn atom_add_u32(_: u64, output: u64) {
    put_all(output, 0, &[0, 7]);
    barrier::barrier_sync_all();
    let claimed = atomic::atom_add_u32(output, 1);
    global::st_global_u32(
        output + u64::from(special::block_dim_x() + claimed) * 4,
        claimed,
    );
}

/// A counter that wraps: how often each number was claimed.
pub(super) unsafe fn atom_inc_u32(_: u64, output: u64) {
    put_all(output, 0, &[0, 0]);
    barrier::barrier_sync_all();
    let claimed = atomic::atom_inc_u32(output, 20);
    let times = output + u64::from(special::block_dim_x() + claimed) * 4;
    atomic::atom_add_u32(times, 1);
}

/// Thread 0 hands its word to thread 32 by a flag, word 0 of the output; everyone else's word is 0.
#[inline(always)]
unsafe fn hand_over(input: u64, output: u64, give: unsafe fn(u64), wait: unsafe fn(u64)) {
    let thread = special::thread_idx_x();
    let (flag, data) = (output, output + 4);
    put(output, 0, 0);
    barrier::barrier_sync_all();
    if thread == 0 {
        global::st_global_u32(data, get(input, 0));
        give(flag);
    }
    if thread == 32 {
        wait(flag);
        put(output, 0, global::ld_global_u32(data));
    }
}

pub(super) unsafe fn release_acquire(input: u64, output: u64) {
    hand_over(
        input,
        output,
        |flag| atomic::st_release_u32(flag, 1),
        |flag| while atomic::ld_acquire_u32(flag) != 1 {},
    )
}

pub(super) unsafe fn fences(input: u64, output: u64) {
    hand_over(
        input,
        output,
        |flag| atomic::red_release_add_u32(flag, 1),
        |flag| {
            while atomic::ld_relaxed_u32(flag) != 1 {}
            atomic::fence_acq_rel_gpu();
        },
    )
}

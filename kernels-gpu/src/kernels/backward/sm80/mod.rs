//! flash2 backward for sm_80 and newer: a block of threads claims one tile of keys at a time from a counter, and streams the
//! query blocks.
//!
//! Eight warps in two roles of four. Warp `w` of either role owns keys `32 w ..` of the tile, at head_dim 256 `16 w ..`. Score warps recompute P and
//! keep dV; gradient warps make dS and keep dK. P goes from a score warp to its partner through shared memory, in the
//! registers' own order, and the partner's dS takes its place there, in rows. So a fragment read from shared memory
//! always feeds two `mma`, and the pair needs one named barrier a step.
//!
//! dQ of a step, and dK, are multiplied during the next one. That leaves one barrier of all warps in a step, which
//! publishes the next Q and dO, and dS, and frees what the last step read; and it leaves gradient warps something to
//! do while their partners work out P. Step `i`, after its barrier:
//!
//! ```text
//! score warps                                gradient warps
//! begin the copies of dO, L, Δ of i + 1      dK += dSᵀ Q of i − 1
//! S, P of i → partner                        (they meet) begin the copy of Q of i + 1, over Q of i − 1
//! dV += Pᵀ dO                                their part of dQ += dS K of i − 1
//! their part of dQ += dS K of i − 1          dP of i
//!                                            ← P,  dS of i → shared memory
//! ```
//!
//! In the deterministic order a tile adds to a block of dQ after the tiles before it. Thread 0 polls the block's dQ semaphore
//! before the barrier, and releases it after the next one, when all warps have added. Which tiles wait for which: [`schedule`].
//!
//! | module | contents |
//! |---|---|
//! | `key_tile` | a tile of keys: shared memory, its order of query blocks, copies |
//! | `probabilities`, `score_mod`, `dropout` | P and dS; expressions of scores; which weights are dropped |
//! | `dq_accumulate` | dQ += dS K, in global memory, and the semaphore that orders the tiles |
//! | `postprocess` | dQ from its accumulator |

pub(in crate::kernels) mod key_tile;

mod dropout;
mod probabilities;
mod score_mod;

mod dq_accumulate;

pub mod postprocess;

use core::marker::PhantomData;

use dq_accumulate::{accumulate_dq, release_semaphore, wait_semaphore};
use dropout::dropped_of;
use key_tile::{Layout, Tile, load_d_o, load_q, sequence_of};
use probabilities::{probabilities, score_gradients, send};
use score_mod::probabilities_and_derivatives;

use super::{Blocks, record, schedule_of};
use crate::attention::batch_and_head;
use crate::attention::lengths::ListedTile;
use crate::attention::mask::Rows;
use crate::attention::schedule::{self, BackwardTile};
use crate::config::{self, F32_BYTES, HALF_BYTES, TileConfig};
use crate::kernels::common::dropout::divide_by_kept;
use crate::kernels::common::stamps::Profiled;
use crate::kernels::{tile_work, varlen};
use crate::params::BackwardParams;
use crate::ptx::{atomic, barrier, cp_async, global, shared, spec, special};
use crate::tile::copy::{self, BoundsChecked, Team};
use crate::tile::element::{Element, F32};
use crate::tile::matmul::{left, right_transposed};
use crate::tile::products::Products;
use crate::tile::register::{Accumulator, RegisterTile};
use crate::variants::TileShape;

/// flash2's tiles of one head_dim in one shape. All three kernels of a pass are made from the same: they share the padded
/// length and the layout of the accumulator of dQ.
pub trait Tiles: Blocks {
    /// Their shape.
    const SHAPE: TileShape;
    /// Whether a block of threads works on all tiles of a head, one after the other, so that no other block adds to its dQ: see
    /// [`crate::kernels::papers::flash1`].
    const ALONE: bool = false;
    /// Warps of each of the two roles.
    const ROLE_WARPS: u32 = Self::CONFIG.threads / 64;
    /// Keys of a warp: a role's warps share those of the tile.
    const WARP_KEYS: u32 = Self::CONFIG.block_k / Self::ROLE_WARPS;
    /// A warp's keys of Sᵀ and dPᵀ.
    type Scores: Accumulator;
    /// A warp's keys of dK or dV.
    type KeyGradient: Accumulator;
    /// A warp's part of a block of dQ; all warps together hold it.
    type QueryGradient: Accumulator;
    /// Fails to compile where the register tiles are not those of the tile config.
    const CONSISTENT: () = {
        let (block_q, head_dim) = (Self::CONFIG.block_q, Self::HEAD_DIM);
        let warps = 2 * Self::ROLE_WARPS;
        let (rows, cols) = extent::<Self::Scores>();
        assert!(rows == Self::WARP_KEYS && cols == block_q);
        let (rows, cols) = extent::<Self::KeyGradient>();
        assert!(rows == Self::WARP_KEYS && cols == head_dim);
        let (rows, cols) = extent::<Self::QueryGradient>();
        assert!(rows * cols * warps == block_q * head_dim && head_dim % cols == 0);
    };
}

impl<T: Tiles> Tiles for Profiled<T> {
    const SHAPE: TileShape = T::SHAPE;
    type Scores = T::Scores;
    type KeyGradient = T::KeyGradient;
    type QueryGradient = T::QueryGradient;
}

/// Rows and columns of a tile in registers.
const fn extent<A: Accumulator>() -> (u32, u32) {
    (A::M as u32 * 16, A::N as u32 * 8)
}

/// The tiles of head_dim `D` and elements `E` in the default shape.
pub struct DefaultTiles<E, const D: u32>(PhantomData<E>);

/// The same in the shape [`TileShape::Compact`].
pub struct CompactTiles<E, const D: u32>(PhantomData<E>);

/// Register tiles by their fragments: down of a warp's keys, then down and across of its part of a block of dQ.
macro_rules! tiles {
    ($tiles:ident $shape:ident, $($head_dim:literal: $m:literal, $q_m:literal $q_n:literal;)* of $bytes:ident, $elements:tt) => {$(
        tiles!(@ $tiles $shape, $head_dim, $m, $q_m $q_n, $bytes, $elements);
    )*};
    (@ $tiles:ident $shape:ident, $head_dim:literal, $m:literal, $q_m:literal $q_n:literal, $bytes:ident,
        [$element:ty $(, $e:ident: $bound:ident)?]
    ) => {
        impl$(<$e: $bound>)? Tiles for $tiles<$element, $head_dim> {
            const SHAPE: TileShape = TileShape::$shape;
            type Scores =
                RegisterTile<$m, { n8(config::backward($bytes, $head_dim, TileShape::$shape).block_q) }>;
            type KeyGradient = RegisterTile<$m, { n8($head_dim) }>;
            type QueryGradient = RegisterTile<$q_m, $q_n>;
        }
    };
    ($($tiles:ident $shape:ident;)*) => {$(
        impl<E: Products, const D: u32> Blocks for $tiles<E, D> {
            const HEAD_DIM: u32 = D;
            const CONFIG: TileConfig = config::backward(E::BYTES, D, TileShape::$shape);
            const ACCUM_COLUMNS: u32 = D;
        }
    )*};
}

tiles! { DefaultTiles Default; CompactTiles Compact; }
tiles! { DefaultTiles Default, 32: 2, 1 2; 64: 2, 2 2; 128: 2, 2 4; 256: 1, 2 4; of HALF_BYTES, [E, E: Element] }
tiles! { CompactTiles Compact, 128: 2, 1 2; 256: 1, 1 8; of HALF_BYTES, [E, E: Element] }
tiles! { DefaultTiles Default, 32: 2, 1 2; 64: 2, 2 2; 128: 1, 2 2; of F32_BYTES, [F32] }
tiles! { CompactTiles Compact, 128: 1, 1 4; of F32_BYTES, [F32] }

/// Calls `f` with the index of every fragment across, and the two values of a block's `statistics` in shared memory that
/// this lane's columns of it want.
///
/// # Safety
/// The statistics have arrived.
#[inline(always)]
unsafe fn with_columns<S: Accumulator>(statistics: u32, mut f: impl FnMut(usize, [f32; 2])) {
    let first = statistics + special::lane_idx() % 4 * 8;
    for n in 0..S::N {
        // SAFETY: the caller's contract.
        let pair = unsafe { shared::ld_shared_x2(first + n as u32 * 32) };
        f(n, pair.map(f32::from_bits));
    }
}

/// Fragments across `columns` columns.
const fn n8(columns: u32) -> usize {
    columns as usize / 8
}

/// Where a warp's part of a block of dQ lies.
#[derive(Clone, Copy)]
struct DqPart {
    /// First row of the block.
    row: u32,
    /// First column.
    col: u32,
}

/// The part of warp `warp`: parts are first next to each other, then below each other.
#[inline(always)]
fn dq_part<T: Tiles>(warp: u32) -> DqPart {
    let (rows, cols) = (
        T::QueryGradient::M as u32 * 16,
        T::QueryGradient::N as u32 * 8,
    );
    let across = T::HEAD_DIM / cols;
    DqPart {
        row: warp / across * rows,
        col: warp % across * cols,
    }
}

/// The address of this lane's first element of a block of the dQ accumulator. A warp's elements lie register by
/// register, 32 lanes side by side, so that every access is one line of 128 bytes.
#[inline(always)]
fn dq_address<T: Tiles>(accum: u64, block: u64, warp: u32, lane: u32) -> u64 {
    let block_elems = u64::from(const { T::CONFIG.block_q } * T::HEAD_DIM);
    let registers = (T::QueryGradient::M * T::QueryGradient::N * 4) as u32;
    accum + (block * block_elems + u64::from(warp * registers * 32 + lane)) * 4
}

/// Bytes from one register of a lane to the next in the dQ accumulator.
const REGISTER_STRIDE: u64 = 32 * 4;

/// The contents of the dQ accumulator from this address on: a warp's part of a block.
///
/// # Safety
/// It has been written, and is visible to this thread.
#[inline(always)]
unsafe fn load_dq<T: Tiles>(mut address: u64) -> T::QueryGradient {
    let mut d_q = T::QueryGradient::zero();
    for m in 0..T::QueryGradient::M {
        for n in 0..T::QueryGradient::N {
            for x in d_q.fragment_mut(m, n) {
                // SAFETY: the caller's contract.
                *x = unsafe { global::ld_global_f32(address) };
                address += REGISTER_STRIDE;
            }
        }
    }
    d_q
}

/// The barrier of warp pair `w` is `PAIR_BARRIER + w`; the one behind the pairs' is that of the gradient warps, barrier 0
/// everybody's.
const PAIR_BARRIER: u32 = 1;
/// Threads of a pair of warps.
const PAIR_THREADS: u32 = 64;

/// Claims tiles until none are left.
///
/// # Safety
/// The launch is as [`super::Blocks::CONFIG`] says; tensors are as [`BackwardParams`] says, of at most `T::HEAD_DIM` columns; the
/// `delta` kernel ran before on the stream.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub unsafe fn backward<E: Products, T: Tiles>(p: &BackwardParams) {
    const { T::CONSISTENT };
    let shared = Layout::new::<E, T>();
    let thread = special::thread_idx_x();
    loop {
        // SAFETY: the barriers order the slot's write and read, and this tile's use of shared memory and the last's.
        let tile_idx = unsafe {
            if spec::lengths() {
                claim_tile::<T>(p, shared, thread);
            } else if thread == 0 {
                shared::st_shared_u32(shared.tile_slot, atomic::atom_add_u32(p.tile_counters, 1));
            }
            meet::<T>();
            shared::ld_shared_u32(shared.tile_slot)
        };
        let schedule = schedule_of(p);
        if tile_idx >= schedule.tiles * schedule.heads {
            return;
        }
        let mut tile = schedule::backward(&schedule, tile_work(&p.blocks), tile_idx);
        // SAFETY: as this function; the list's entry of the tile lies in shared memory.
        unsafe {
            if spec::lengths() {
                tile.k_block = shared.read_listed().block;
            }
            if T::PROFILES {
                record(p, tile, thread == 0).begin();
            }
            attend_key_tile::<E, T>(p, shared, tile, thread);
            if T::PROFILES {
                record(p, tile, thread == 0).end();
            }
        }
    }
}

/// Claims a tile of the list: its number and its entry go to shared memory.
#[inline(always)]
unsafe fn claim_tile<T: Tiles>(p: &BackwardParams, shared: Layout, thread: u32) {
    // SAFETY: as `backward`; the barrier stands behind the last tile's reads of its entry. Whole warps come to it: thread 0 must not
    // meet the others from a branch of its own.
    unsafe {
        let (mut tile_idx, mut listed) = (0, ListedTile::default());
        if thread == 0 {
            tile_idx = atomic::atom_add_u32(p.tile_counters, 1);
            let schedule = schedule_of(p);
            if tile_idx < schedule.tiles * schedule.heads {
                let place = schedule::backward(&schedule, tile_work(&p.blocks), tile_idx);
                listed = varlen::listed(p.list.tiles, place.k_block);
            }
        }
        meet::<T>();
        // Opaque: with the same question before and behind it, the compiler could take the barrier into both ways.
        if special::opaque(thread) == 0 {
            shared::st_shared_u32(shared.tile_slot, tile_idx);
            shared.write_listed(listed);
        }
    }
}

/// One tile of keys: all its steps, then dK and dV.
///
/// # Safety
/// As [`backward`]. All warps of the block come here; they have met since the last tile.
#[inline(always)]
pub(in crate::kernels) unsafe fn attend_key_tile<E: Products, T: Tiles>(
    p: &BackwardParams,
    shared: Layout,
    tile: BackwardTile,
    thread: u32,
) {
    let config = const { T::CONFIG };
    let (batch_idx, kv_head_idx) = batch_and_head(tile.head, p.shape.heads_k);
    let keys = Rows {
        first: tile.k_block * config.block_k,
        len: config.block_k,
    };
    // SAFETY: as `backward`.
    let sequence = unsafe { sequence_of(p, shared, batch_idx) };
    let blocks = sequence.band().q_blocks(keys, config.block_q);
    let steps = if spec::block_mask() {
        // SAFETY: the lists have been made.
        unsafe {
            p.blocks
                .len_of_group(&p.shape, batch_idx, kv_head_idx, tile.k_block)
        }
    } else {
        blocks.n() * p.shape.group_size
    };
    let warp = thread / 32 % T::ROLE_WARPS;
    let q_blocks = p.padded_q as u32 / config.block_q;
    let t = Tile {
        q_blocks,
        keys,
        blocks,
        tile,
        batch_idx,
        kv_head_idx,
        shared,
        thread,
        warp,
        steps,
    };

    let team = Team {
        thread,
        threads: config.threads,
    };
    let (first_key, warp_key) = (keys.first, warp * T::WARP_KEYS);
    // SAFETY: as `backward`. After the last step all warps have met, so that K and V may become dK and dV.
    unsafe {
        let (head_dim, head_dim_v) = (p.shape.head_dim, p.shape.head_dim_v);
        let rows_k = |tensor, columns: u32| {
            let rows = sequence.rows_k::<E>(tensor, kv_head_idx);
            rows.with_chunks(columns / E::PER_CHUNK)
        };
        let k = rows_k(&p.k, head_dim);
        let v = rows_k(&p.v, head_dim_v);
        copy::load::<BoundsChecked>(shared.k, k, first_key, config.block_k, team);
        copy::load::<BoundsChecked>(shared.v, v, first_key, config.block_k, team);
        if thread < T::ROLE_WARPS * 32 {
            if steps > 0 {
                load_d_o::<E, T>(p, &t, 0);
            }
            let mut d_v = score_warp::<E, T>(p, &t);
            if spec::dropout() {
                divide_by_kept(&p.dropout, &mut d_v);
            }
            copy::store_through::<E, _>(
                rows_k(&p.d_v, head_dim_v),
                first_key + warp_key,
                shared.v,
                warp_key,
                &d_v,
            );
        } else {
            if steps > 0 {
                load_q::<E, T>(p, &t, 0);
            }
            let mut d_k = gradient_warp::<E, T>(p, &t);
            d_k.for_each(|_, _, x| *x *= p.scale.scale);
            copy::store_through::<E, _>(
                rows_k(&p.d_k, head_dim),
                first_key + warp_key,
                shared.k,
                warp_key,
                &d_k,
            );
        }
    }
}

/// All steps of a score warp: gives dV.
#[inline(always)]
unsafe fn score_warp<E: Products, T: Tiles>(p: &BackwardParams, t: &Tile) -> T::KeyGradient {
    let config = const { T::CONFIG };
    let mut d_v = T::KeyGradient::zero();
    // SAFETY: as `backward`; `begin_step` has published what each step reads.
    unsafe {
        for i in 0..t.steps {
            begin_step::<T>(p, t, i);
            if i + 1 < t.steps {
                load_d_o::<E, T>(p, t, i + 1);
            }
            let mut s = T::Scores::zero();
            let q = Layout::stage(t.shared.q, config.block_q, i);
            let k = left(t.shared.k, t.warp * T::WARP_KEYS);
            // Sᵀ = K Qᵀ
            E::gemm_ss(&mut s, k, right_transposed(q, 0), T::HEAD_DIM);
            // Pᵀ = exp(Sᵀ − L)
            let mut for_partner = E::zero::<T::Scores>();
            let mut s = if spec::score_gradient() {
                probabilities_and_derivatives::<E, T>(p, t, i, &mut s, &mut for_partner)
            } else {
                probabilities::<T>(p, t, i, &mut s);
                for_partner = E::hold(&s);
                for_partner
            };
            send::<E, T>(t, i, &for_partner);
            barrier::barrier_arrive(PAIR_BARRIER + t.warp, PAIR_THREADS);
            if spec::dropout() {
                dropped_of::<T>(p, t, i).clear_held::<E, T::Scores>(&mut s);
            }
            let d_o = Layout::stage(t.shared.d_o, config.block_q, i);
            // dV += Pᵀ dO
            E::gemm_rs::<_, T::Scores>(&mut d_v, s, E::right(d_o, 0), config.block_q);
            if i > 0 {
                accumulate_dq::<E, T>(p, t, i - 1);
            }
        }
        end_steps::<E, T>(p, t);
    }
    d_v
}

/// All steps of a gradient warp: gives dK / scale.
#[inline(always)]
unsafe fn gradient_warp<E: Products, T: Tiles>(p: &BackwardParams, t: &Tile) -> T::KeyGradient {
    let config = const { T::CONFIG };
    let mut d_k = T::KeyGradient::zero();
    let mut d_s = E::zero::<T::Scores>();
    // SAFETY: as `backward`; `begin_step` has published what each step reads, the pair's barrier P. Q of the last
    // step is read by gradient warps alone: when they have met, it may be overwritten.
    unsafe {
        for i in 0..t.steps {
            begin_step::<T>(p, t, i);
            if i > 0 {
                add_key_gradient::<E, T>(t, i - 1, d_s, &mut d_k);
                barrier::barrier_sync(PAIR_BARRIER + T::ROLE_WARPS, T::ROLE_WARPS * 32);
            }
            if i + 1 < t.steps {
                load_q::<E, T>(p, t, i + 1);
            }
            if i > 0 {
                accumulate_dq::<E, T>(p, t, i - 1);
            }
            let mut d_p = T::Scores::zero();
            let d_o = Layout::stage(t.shared.d_o, config.block_q, i);
            let v = left(t.shared.v, t.warp * T::WARP_KEYS);
            // dPᵀ = V dOᵀ
            E::gemm_ss(&mut d_p, v, right_transposed(d_o, 0), T::HEAD_DIM);
            if spec::dropout() {
                dropped_of::<T>(p, t, i).clear(&mut d_p);
            }
            // dSᵀ = Pᵀ ∘ (dPᵀ − Δ)
            barrier::barrier_sync(PAIR_BARRIER + t.warp, PAIR_THREADS);
            score_gradients::<E, T>(p, t, i, &mut d_p);
            d_s = E::hold(&d_p);
            // All lanes have read P: dS takes its place.
            barrier::warp_sync();
            let rows = Layout::stage(t.shared.d_s, config.block_k, i);
            E::store_held::<T::Scores>(rows, t.warp * T::WARP_KEYS, 0, &d_s);
        }
        if t.steps > 0 {
            add_key_gradient::<E, T>(t, t.steps - 1, d_s, &mut d_k);
        }
        end_steps::<E, T>(p, t);
    }
    d_k
}

/// dK += dSᵀ Q of step `i`.
#[inline(always)]
unsafe fn add_key_gradient<E: Products, T: Tiles>(
    t: &Tile,
    i: u32,
    d_s: E::Held<T::Scores>,
    d_k: &mut T::KeyGradient,
) {
    let block_q = const { T::CONFIG.block_q };
    let q = Layout::stage(t.shared.q, block_q, i);
    // SAFETY: as `gradient_warp`.
    // dK += dSᵀ Q
    unsafe { E::gemm_rs::<_, T::Scores>(d_k, d_s, E::right(q, 0), block_q) };
}

/// dQ of the last step; afterwards nothing reads shared memory.
#[inline(always)]
unsafe fn end_steps<E: Products, T: Tiles>(p: &BackwardParams, t: &Tile) {
    // SAFETY: as `backward`.
    unsafe {
        begin_step::<T>(p, t, t.steps);
        if t.steps > 0 {
            accumulate_dq::<E, T>(p, t, t.steps - 1);
        }
        meet::<T>();
        if t.steps > 0 {
            release_semaphore::<T>(p, t, t.steps - 1);
        }
    }
}

/// All warps of the block meet. The roles come here from different places of the code, so the threads are counted.
///
/// # Safety
/// Every warp of the block comes here.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub(in crate::kernels) unsafe fn meet<T: Tiles>() {
    // SAFETY: the caller's contract.
    unsafe { barrier::barrier_sync(0, const { T::CONFIG.threads }) }
}

/// The barrier of step `i`. Before it thread 0 waits for the dQ semaphore of step `i − 1`; after it, it releases that of step
/// `i − 2`.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
unsafe fn begin_step<T: Tiles>(p: &BackwardParams, t: &Tile, i: u32) {
    cp_async::cp_async_commit_group();
    cp_async::cp_async_wait_group::<0>();
    // SAFETY: as `backward`; all of the block's warps come here.
    unsafe {
        if i > 0 {
            wait_semaphore::<T>(p, t, i - 1);
        }
        meet::<T>();
        if i > 1 {
            release_semaphore::<T>(p, t, i - 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tile::element::Bf16;

    /// A lane's first element, worked out in 128 bits, of a block that only a large problem has.
    fn check<T: Tiles>(block: u64) {
        let registers = (T::QueryGradient::M * T::QueryGradient::N * 4) as u128;
        let block_elems = u128::from(T::CONFIG.block_q * T::HEAD_DIM);
        let (accum, warp, lane) = (1 << 40, 3, 17);
        let elements = u128::from(block) * block_elems + 3 * registers * 32 + 17;
        let address = dq_address::<T>(accum, block, warp, lane);
        assert_eq!(u128::from(address), (1 << 40) + 4 * elements);
    }

    #[test]
    fn addresses_in_the_accumulator_have_64_bits() {
        for block in [0, (1 << 18) + 3, (1 << 31) + 5, (1 << 33) + 7] {
            check::<DefaultTiles<Bf16, 32>>(block);
            check::<DefaultTiles<Bf16, 64>>(block);
            check::<DefaultTiles<Bf16, 128>>(block);
            check::<DefaultTiles<Bf16, 256>>(block);
            check::<CompactTiles<Bf16, 128>>(block);
            check::<CompactTiles<Bf16, 256>>(block);
            check::<DefaultTiles<F32, 128>>(block);
        }
    }
}

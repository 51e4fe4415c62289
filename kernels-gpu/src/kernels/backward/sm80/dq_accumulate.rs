//! dQ: each step's contribution, added to an accumulator in global memory, and the semaphore that orders the tiles.
//!
//! In flash1 one block of threads has all tiles of a head ([`Tiles::ALONE`]). So each warp reads and writes its part of dQ itself, and there is no semaphore.

use super::key_tile::{Layout, Step, Tile, step_at};
use super::{DqPart, REGISTER_STRIDE, Tiles, dq_address, dq_part, load_dq};
use crate::attention::mask::Rows;
use crate::attention::schedule::Direction;
use crate::kernels::bounds;
use crate::params::{BackwardParams, ORDERED};
use crate::ptx::{atomic, global, spec, special};
use crate::tile::products::Products;
use crate::tile::register::Accumulator;

/// dQ += dS K of step `i`: this warp's part.
///
/// # Safety
/// All warps have met since dS of step `i` was written; the semaphore has let the tile pass.
#[inline(always)]
pub(super) unsafe fn accumulate_dq<E: Products, T: Tiles>(p: &BackwardParams, t: &Tile, i: u32) {
    let config = const { T::CONFIG };
    let warp = t.thread / 32;
    let DqPart { row, col } = dq_part::<T>(warp);
    let mut d_q = if const { T::ALONE } {
        // SAFETY: `delta` has cleared it; since then this warp alone has written it.
        unsafe { load_dq::<T>(place_of_part::<T>(p, t, step_at(p, t, i))) }
    } else {
        T::QueryGradient::zero()
    };
    let d_s = E::left_transposed(Layout::stage(t.shared.d_s, config.block_k, i), row / 16);
    let k = E::right(t.shared.k, col / 16);
    // SAFETY: the caller's contract.
    // dQ += dS K
    unsafe { E::gemm_ss(&mut d_q, d_s, k, config.block_k) };

    let step = step_at(p, t, i);
    // SAFETY: the accumulator has this block. The first tile in order finds it unset.
    unsafe {
        let mut address = place_of_part::<T>(p, t, step);
        let is_first = || p.schedule.order == ORDERED && rank::<T>(p, t, step) == 0;
        if const { T::ALONE } || is_first() {
            each_register::<T>(&d_q, |x| {
                global::st_global_f32(address, x);
                address += REGISTER_STRIDE;
            });
        } else {
            each_register::<T>(&d_q, |x| {
                atomic::red_add_f32(address, x);
                address += REGISTER_STRIDE;
            });
        }
    }
}

/// Where this lane's registers of the warp's part of a step's dQ lie in the accumulator.
#[inline(always)]
unsafe fn place_of_part<T: Tiles>(p: &BackwardParams, t: &Tile, step: Step) -> u64 {
    // SAFETY: as `accumulate_dq`.
    let block = unsafe { block_in_workspace(p, t, step) };
    dq_address::<T>(p.d_q_accum, block, t.thread / 32, special::lane_idx())
}

#[inline(always)]
fn each_register<T: Tiles>(d_q: &T::QueryGradient, mut f: impl FnMut(f32)) {
    for m in 0..T::QueryGradient::M {
        for n in 0..T::QueryGradient::N {
            for x in d_q.fragment(m, n) {
                f(x);
            }
        }
    }
}

/// The number of a step's query block in the workspace.
#[inline(always)]
unsafe fn block_in_workspace(p: &BackwardParams, t: &Tile, step: Step) -> u64 {
    // SAFETY: as `accumulate_dq`.
    let block = unsafe { t.sequence(p) }.q_blocks_before() + step.block;
    block_of_all(step.head, t.q_blocks, block)
}

/// Which block of queries this is of all heads', each of which has `q_blocks`.
#[inline(always)]
fn block_of_all(head: u32, q_blocks: u32, block: u32) -> u64 {
    u64::from(head) * u64::from(q_blocks) + u64::from(block)
}

/// How many tiles of keys add to this query block before this one.
#[inline(always)]
unsafe fn rank<T: Tiles>(p: &BackwardParams, t: &Tile, step: Step) -> u32 {
    let config = const { T::CONFIG };
    if spec::block_mask() {
        // SAFETY: the ranks have been made.
        return unsafe {
            let (direction, lists) = (t.tile.direction, &p.blocks);
            lists.rank(t.batch_idx, step.head_idx, step.listed, direction)
        };
    }
    let block = step.block;
    let tile = t.tile.k_block;
    match t.tile.direction {
        Direction::Down if !bounds().left => tile,
        direction => {
            // SAFETY: as `accumulate_dq`.
            let band = unsafe { t.sequence(p) }.band();
            let first = block * config.block_q;
            let queries = Rows::of_sequence(first, config.block_q, band.seqlen_q());
            let tiles = band.kv_blocks(queries, config.block_k);
            match direction {
                Direction::Down => tile - tiles.first,
                Direction::Up => tiles.end - 1 - tile,
            }
        }
    }
}

/// The address of the counter of tiles that have added to the query block of step `i`.
#[inline(always)]
unsafe fn counter(p: &BackwardParams, t: &Tile, i: u32) -> u64 {
    // SAFETY: as `accumulate_dq`.
    p.dq_semaphore + unsafe { block_in_workspace(p, t, step_at(p, t, i)) } * 4
}

/// Waits, in the deterministic order, until this tile may add to the query block of step `i`. Thread 0 does; the
/// barrier that follows holds the others.
///
/// # Safety
/// A barrier of all warps follows.
#[inline(always)]
pub(super) unsafe fn wait_semaphore<T: Tiles>(p: &BackwardParams, t: &Tile, i: u32) {
    if const { !T::ALONE } && p.schedule.order == ORDERED && t.thread == 0 {
        // SAFETY: the counter is one of the workspace's. Tiles that are waited for were claimed earlier: they run.
        unsafe {
            let (rank, counter) = (rank::<T>(p, t, step_at(p, t, i)), counter(p, t, i));
            while atomic::ld_acquire_u32(counter) != rank {}
        }
    }
}

/// Lets the next tile add to the query block of step `i`.
///
/// # Safety
/// All warps have added and met at a barrier since.
#[inline(always)]
pub(super) unsafe fn release_semaphore<T: Tiles>(p: &BackwardParams, t: &Tile, i: u32) {
    if const { !T::ALONE } && p.schedule.order == ORDERED && t.thread == 0 {
        // SAFETY: the counter is one of the workspace's.
        unsafe { atomic::red_release_add_u32(counter(p, t, i), 1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_all_heads_are_counted_in_64_bits() {
        assert_eq!(block_of_all(3, 10, 7), 37);
        assert_eq!(block_of_all(1 << 20, 1 << 14, 5), (1 << 34) + 5);
    }
}

//! Warps that have the same rows, and divide the columns: of Q, K, V and O each has as many. What a warp's columns of Q and K give of S is a
//! part of a sum, which all of them need. So each leaves its own in shared memory, and adds up those of all in the same order: they have the
//! same S to the last bit, and so the same P, m and l.

use super::{Block, Blocks};
use crate::ptx::{barrier, shared, special};
use crate::tile::copy;
use crate::tile::global::GlobalMatrix;
use crate::tile::products::Products;
use crate::tile::register::Accumulator;

/// Bytes from one fragment to the next: lanes side by side.
const FRAGMENT_BYTES: u32 = 32 * 16;

/// Leaves this warp's part of S for the others that have its rows.
///
/// # Safety
/// They have read what lay there.
#[inline(always)]
pub(super) unsafe fn send<T: Blocks>(block: &Block, s: &T::Scores) {
    let mut address = place::<T>(block, block.team.thread / 32);
    for m in 0..T::Scores::M {
        for n in 0..T::Scores::N {
            let fragment = s.fragment(m, n).map(f32::to_bits);
            // SAFETY: the caller's contract.
            unsafe { shared::st_shared_x4(address, fragment) };
            address += FRAGMENT_BYTES;
        }
    }
}

/// S ← the sum of what all warps that have its rows have left.
///
/// # Safety
/// All of them have, and a barrier stands between.
#[inline(always)]
pub(super) unsafe fn sum<T: Blocks>(block: &Block, s: &mut T::Scores) {
    *s = T::Scores::zero();
    let first = block.team.thread / 32 / T::WARPS_ACROSS * T::WARPS_ACROSS;
    for of_rows in 0..T::WARPS_ACROSS {
        let mut address = place::<T>(block, first + of_rows);
        for m in 0..T::Scores::M {
            for n in 0..T::Scores::N {
                // SAFETY: the caller's contract.
                let part = unsafe { shared::ld_shared_x4(address) };
                let sums = s.fragment_mut(m, n);
                for idx in 0..4 {
                    sums[idx] += f32::from_bits(part[idx]);
                }
                address += FRAGMENT_BYTES;
            }
        }
    }
}

/// Writes the tile's O, of which each warp has its columns, to memory, through the place of Q.
///
/// # Safety
/// A barrier stands behind the last use of Q; all warps come here.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub(super) unsafe fn store<E: Products, T: Blocks>(
    block: &Block,
    o: GlobalMatrix,
    output: &T::Output,
) {
    let (tile, rows) = (block.q_tile, block.queries);
    // SAFETY: the caller's contract; the barrier stands between what warps write and what all of them read.
    unsafe {
        copy::store_shared::<E, _>(tile, block.warp_row, block.warp_column, output);
        barrier::barrier_sync_all();
        let block_q = const { T::FOOTPRINT.block_q };
        copy::store(o, rows.first, tile, 0, block_q, block.team);
    }
}

/// Where this lane's first fragment of a warp's part lies.
#[inline(always)]
fn place<T: Blocks>(block: &Block, warp: u32) -> u32 {
    let bytes = (T::Scores::M * T::Scores::N) as u32 * FRAGMENT_BYTES;
    block.exchange + warp * bytes + special::lane_idx() * 16
}

//! Copies of whole tiles, box by box.

use crate::kernels::forward::sm90::Tiles;
use crate::params::BOX_COLUMNS;
use crate::ptx::{mbarrier, spec, tma};
use crate::tile::warpgroup::BoxedTile;

/// Fills a whole tile that is its barrier's only one.
#[inline(always)]
pub(super) unsafe fn fill<T: Tiles>(map: u64, tile: BoxedTile, at: [u32; 4], full: u32) {
    // SAFETY: the caller's contract: the tile is empty.
    unsafe {
        mbarrier::mbarrier_arrive_expect_tx(full, BoxedTile::n_bytes(tile.rows, T::HEAD_DIM));
        load_keys::<T>(map, tile, at, full);
    }
}

/// Begins the copies of the boxes of K or V. Divided keys are read by few, at the same time.
#[inline(always)]
pub(super) unsafe fn load_keys<T: Tiles>(map: u64, tile: BoxedTile, at: [u32; 4], full: u32) {
    // SAFETY: the caller's contract.
    unsafe {
        if T::SPLITS_KV && spec::split_kv() {
            load_boxes::<T, true>(map, tile, at, full);
        } else {
            load_boxes::<T, false>(map, tile, at, full);
        }
    }
}

/// Begins the copies of a tile's boxes, which nobody else may want.
#[inline(always)]
pub(super) unsafe fn load_boxes<T: Tiles, const EVICT_FIRST: bool>(
    map: u64,
    tile: BoxedTile,
    at: [u32; 4],
    full: u32,
) {
    for part in 0..T::HEAD_DIM.div_ceil(BOX_COLUMNS) {
        let at = [part * BOX_COLUMNS, at[1], at[2], at[3]];
        let to = tile.part(part).base;
        // SAFETY: the caller's contract.
        unsafe {
            if EVICT_FIRST {
                tma::tma_load_evict_first(to, map, at, full);
            } else {
                tma::tma_load(to, map, at, full);
            }
        }
    }
}

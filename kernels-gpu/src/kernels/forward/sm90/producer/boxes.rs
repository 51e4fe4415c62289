//! Copies of tiles, box by box.

use crate::kernels::forward::sm90::Tiles;
use crate::params::BOX_COLUMNS;
use crate::ptx::{mbarrier, spec, tma};
use crate::tile::warpgroup::BoxedTile;

/// Parts of 64 columns of a tile: from which one on, and how many.
#[derive(Clone, Copy)]
pub(super) struct Parts {
    pub(super) first: u32,
    pub(super) n: u32,
}

impl Parts {
    /// All of a tile of so many columns.
    #[inline(always)]
    pub(super) const fn all(columns: u32) -> Parts {
        Parts {
            first: 0,
            n: columns.div_ceil(BOX_COLUMNS),
        }
    }

    /// Bytes of these parts of a tile of so many rows.
    #[inline(always)]
    pub(super) const fn n_bytes(self, rows: u32) -> u32 {
        BoxedTile::n_bytes(rows, self.n * BOX_COLUMNS)
    }
}

/// Fills these parts of a tile, the only ones of their barrier.
#[inline(always)]
pub(super) unsafe fn fill<T: Tiles>(
    map: u64,
    tile: BoxedTile,
    parts: Parts,
    at: [u32; 4],
    full: u32,
) {
    // SAFETY: the caller's contract: they are empty.
    unsafe {
        mbarrier::mbarrier_arrive_expect_tx(full, parts.n_bytes(tile.rows));
        load_keys::<T>(map, tile, parts, at, full);
    }
}

/// Begins the copies of the boxes of K or V. Divided keys are read by few, at the same time.
#[inline(always)]
pub(super) unsafe fn load_keys<T: Tiles>(
    map: u64,
    tile: BoxedTile,
    parts: Parts,
    at: [u32; 4],
    full: u32,
) {
    // SAFETY: the caller's contract.
    unsafe {
        if T::SPLITS_KV && !T::LATENT && spec::split_kv() {
            load_boxes::<true>(map, tile, parts, at, full);
        } else {
            load_boxes::<false>(map, tile, parts, at, full);
        }
    }
}

/// Begins the copies of a tile's boxes, which nobody else may want.
#[inline(always)]
pub(super) unsafe fn load_boxes<const EVICT_FIRST: bool>(
    map: u64,
    tile: BoxedTile,
    parts: Parts,
    at: [u32; 4],
    full: u32,
) {
    for part in 0..parts.n {
        let part = parts.first + part;
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

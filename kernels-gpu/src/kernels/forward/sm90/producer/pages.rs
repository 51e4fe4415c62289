//! K and V out of pages: see [`crate::attention::pages`].
//!
//! The maps of K and V that the launch is given describe the pool, a page as its batch entry. Of a sequence's last page only some rows are
//! the sequence's; its own maps, which the list's kernel has made, end behind them. So what lies there is read as 0, whatever it is.

use super::boxes::load_keys;
use crate::attention::lengths::ListedTile;
use crate::attention::pages::{Place, n_slots};
use crate::kernels::forward::sm90::Tiles;
use crate::params::{MAX_ROWS, TmaForwardParams};
use crate::ptx::{global, mbarrier};
use crate::tile::warpgroup::BoxedTile;

/// The pages of a sequence.
#[derive(Clone, Copy, Default)]
pub(super) struct SequencePages {
    /// The address of the first tensor map of the pool.
    pub(super) pool: u64,
    /// The address of its entries of the table.
    table: u64,
    /// How many pages it has.
    n: u32,
}

impl SequencePages {
    /// Of a tile's sequence; `pool` is the address of the launch's first tensor map.
    #[inline(always)]
    pub(super) fn new(p: &TmaForwardParams, pool: u64, tile: ListedTile) -> SequencePages {
        let entries = u64::from(tile.sequence) * u64::from(p.pages.columns);
        SequencePages {
            pool,
            table: p.pages.table + entries * 4,
            n: n_slots(tile.seqlen_k, p.pages.page_size),
        }
    }

    /// Fills a whole tile, which is its barrier's only one, with the sequence's rows from `at[1]` on. `own` is the address of the
    /// sequence's map, `pool` that of the pool's.
    ///
    /// # Safety
    /// The tile is empty; maps and table are there.
    #[inline(always)]
    pub(super) unsafe fn fill<T: Tiles>(
        self,
        p: &TmaForwardParams,
        own: u64,
        pool: u64,
        tile: BoxedTile,
        at: [u32; 4],
        full: u32,
    ) {
        let [_, first_row, head_idx, _] = at;
        let pages = &p.pages;
        let mut place = Place::of_row(first_row, pages.page_size);
        let mut row = 0;
        // SAFETY: the caller's contract: the table has an entry for each of the sequence's pages.
        unsafe {
            mbarrier::mbarrier_arrive_expect_tx(full, BoxedTile::n_bytes(tile.rows, T::HEAD_DIM));
            while row < tile.rows {
                // Behind the sequence's last page lie zeros.
                let (page, row_in_page) = if place.slot < self.n {
                    let entry = self.table + u64::from(place.slot) * 4;
                    (global::ld_global_u32(entry), place.row)
                } else {
                    (0, MAX_ROWS)
                };
                let map = if place.slot + 1 < self.n { pool } else { own };
                let at = [0, row_in_page, head_idx, page];
                load_keys::<T>(map, tile.from_row(row), at, full);
                place.advance(pages.box_rows, pages.page_size);
                row += pages.box_rows;
            }
        }
    }
}

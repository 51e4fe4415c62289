//! A warp's chunks of K and V, side by side or in pages.

use super::{ROWS, Tile, Tiles};
use crate::attention::pages::Place;
use crate::params::ForwardParams;
use crate::ptx::{cp_async, global, shuffle, spec, special};
use crate::tile::copy::{self, BoundsChecked, Team};
use crate::tile::global::GlobalRows;
use crate::tile::shared::SharedTile;

/// The keys and values of a sequence and one head.
#[derive(Clone, Copy)]
pub(super) struct Keys {
    /// Rows of K and of V; of pages, those of page 0.
    rows: [GlobalRows; 2],
    /// Where there are pages: the address of the sequence's entries of the table.
    table: u64,
    /// Bytes from one page of K, and of V, to the next.
    page_bytes: [i64; 2],
    n_pages: u32,
    page_size: u32,
    /// Of the chunk that is loaded next: which page the row is in that has this lane's number, and which row of the page it is.
    found: Found,
}

/// Where a row of a sequence lies in the pool.
#[derive(Clone, Copy, Default)]
struct Found {
    page: u32,
    row: u32,
}

impl Keys {
    /// Of a tile.
    #[inline(always)]
    pub(super) fn new(p: &ForwardParams, tile: Tile) -> Keys {
        let batch_idx = if spec::pages() || p.list.packed_k == 1 {
            0
        } else {
            tile.sequence
        };
        let rows = [&p.k, &p.v].map(|tensor| {
            GlobalRows::new(tensor, batch_idx, tile.kv_head_idx, 0)
                .from_row(tile.rows_k.first, tile.rows_k.len)
        });
        let entries = u64::from(tile.sequence) * u64::from(p.pages.columns);
        Keys {
            rows,
            table: p.pages.table + entries * 4,
            page_bytes: [p.k.batch_stride * 2, p.v.batch_stride * 2],
            n_pages: p.pages.n_pages,
            page_size: p.pages.page_size,
            found: Found::default(),
        }
    }

    /// Looks up the pages of a chunk, so that nobody waits for the table when it is loaded.
    ///
    /// # Safety
    /// The table has an entry for each of the sequence's pages.
    #[inline(always)]
    pub(super) unsafe fn look_up(&mut self, chunk: u32) {
        if !spec::pages() {
            return;
        }
        let row = chunk * ROWS + special::lane_idx() % ROWS;
        // No page of the pool, where the sequence has no such row.
        let mut found = Found {
            page: u32::MAX,
            row: 0,
        };
        if row < self.rows[0].len {
            let place = Place::of_row(row, self.page_size);
            found.row = place.row;
            // SAFETY: the caller's contract.
            found.page = unsafe { global::ld_global_u32(self.table + u64::from(place.slot) * 4) };
        }
        self.found = found;
    }

    /// Begins the copies of a chunk, which has been looked up, to tiles, and looks the next one up. The caller commits the group. Rows that
    /// the sequence or the pool does not have become 0.
    ///
    /// # Safety
    /// Warp-collective. Nobody reads the tiles until the copies have been waited for.
    #[inline(always)]
    pub(super) unsafe fn load<T: Tiles>(&mut self, tiles: [SharedTile; 2], chunk: u32, next: u32) {
        // SAFETY: the caller's contract.
        unsafe {
            if spec::pages() {
                self.load_out_of_pages::<T>(tiles);
                self.look_up(next);
                return;
            }
            let team = Team {
                thread: special::lane_idx(),
                threads: 32,
            };
            let ([k_tile, v_tile], [k, v]) = (tiles, self.rows);
            copy::load::<BoundsChecked>(k_tile, k, chunk * ROWS, ROWS, team);
            copy::load::<BoundsChecked>(v_tile, v, chunk * ROWS, ROWS, team);
        }
    }

    #[inline(always)]
    unsafe fn load_out_of_pages<T: Tiles>(&self, tiles: [SharedTile; 2]) {
        let chunks_per_row = T::HEAD_DIM / 8;
        let (lane, rows_at_once) = (special::lane_idx(), 32 / chunks_per_row);
        let (first, chunk) = (lane / chunks_per_row, lane % chunks_per_row);
        for i in 0..ROWS / rows_at_once {
            let to = first + i * rows_at_once;
            // SAFETY: the caller's contract. What is not there is not read; its address is a valid one.
            unsafe {
                let page = shuffle::shuffle_idx_u32(self.found.page, to);
                let row = shuffle::shuffle_idx_u32(self.found.row, to);
                let inside = page < self.n_pages;
                for of in 0..2 {
                    let rows = self.rows[of];
                    let from = if inside {
                        let page = i64::from(page).wrapping_mul(self.page_bytes[of]);
                        rows.chunk(row, chunk).wrapping_add(page as u64)
                    } else {
                        rows.base
                    };
                    let tile = tiles[of].chunk(to, chunk);
                    cp_async::cp_async_cg_16(tile, from, if inside { 16 } else { 0 });
                }
            }
        }
    }
}

//! K and V out of pages: see [`crate::attention::pages`].

use crate::attention::pages::PageRow;
use crate::params::ForwardParams;
use crate::ptx::{cp_async, global};
use crate::tile::copy::Team;
use crate::tile::global::GlobalMatrix;
use crate::tile::shared::SharedTile;
use core::ops::Range;

/// The pages of a sequence.
#[derive(Clone, Copy, Default)]
pub(super) struct SequencePages {
    /// The address of its entries of the table.
    table: u64,
    n_pages: u32,
    page_size: u32,
    /// The sequence's first row in its pages.
    first: u32,
    /// Bytes from one page of K, and of V, to the next.
    page_bytes: [i64; 2],
}

impl SequencePages {
    /// Of this sequence, which begins at row `first` of its pages; elements have this many bytes.
    #[inline(always)]
    pub(super) fn new(
        p: &ForwardParams,
        sequence: u32,
        first: u32,
        element_bytes: u32,
    ) -> SequencePages {
        let entries = u64::from(sequence) * u64::from(p.pages.columns);
        SequencePages {
            table: p.pages.table + entries * 4,
            n_pages: p.pages.n_pages,
            page_size: p.pages.page_size,
            first,
            page_bytes: [p.k, p.v].map(|pool| pool.batch_stride * i64::from(element_bytes)),
        }
    }

    /// Begins the copies of rows `first_row .. first_row + rows` of K and V, or of one of them as `parts` says, to tiles; the caller commits the group. `sources` are the
    /// pool's rows of a head, of as many rows as the sequence has. Rows behind its end, and of pages that the pool does not have, become 0, as do
    /// columns that the pool does not have.
    ///
    /// # Safety
    /// As [`copy::load`](crate::tile::copy::load); the table has an entry for each of the sequence's pages.
    #[inline(always)]
    pub(super) unsafe fn load(
        self,
        tiles: [SharedTile; 2],
        sources: [GlobalMatrix; 2],
        parts: Range<usize>,
        first_row: u32,
        rows: u32,
        team: Team,
    ) {
        let chunks_per_row = tiles[0].row_bytes / 16;
        let (row, chunk) = (team.thread / chunks_per_row, team.thread % chunks_per_row);
        let rows_at_once = team.threads / chunks_per_row;
        let mut place = PageRow::of_row(self.first + first_row + row, self.page_size);
        for i in 0..rows / rows_at_once {
            let to = row + i * rows_at_once;
            // SAFETY: the caller's contract. What is not there is not read; its address is a valid one.
            unsafe {
                let exists = first_row + to < sources[0].rows.len;
                let page = if exists {
                    global::ld_global_u32(self.table + u64::from(place.slot) * 4)
                } else {
                    0
                };
                let inside = exists && page < self.n_pages;
                for of in parts.clone() {
                    let source = sources[of];
                    let inside = inside & source.has_chunk(chunk);
                    let source = source.rows;
                    let from = if inside {
                        let page = i64::from(page).wrapping_mul(self.page_bytes[of]);
                        source.chunk(place.row, chunk).wrapping_add(page as u64)
                    } else {
                        source.base
                    };
                    let tile = tiles[of].chunk(to, chunk);
                    cp_async::cp_async_cg_16(tile, from, if inside { 16 } else { 0 });
                }
            }
            place.advance(rows_at_once, self.page_size);
        }
    }
}

//! A split's results: O and L of a tile's queries over some of its keys, which go to the workspace in f32.

use super::Tiles;
use super::consumer::Consumer;
use super::layout::WorkTile;
use crate::attention::divide;
use crate::kernels::forward::{LseRows, store_lse};
use crate::ptx::{global, spec, special};
use crate::tile::fragment;
use crate::tile::global::row_of_head;
use crate::tile::register::Accumulator;
use crate::tile::softmax::RowValues;

impl Consumer<'_> {
    /// Writes them. Where sequences have lengths of their own, the place `listed` has the tile's.
    ///
    /// # Safety
    /// All lanes of the warp come here; `first_row` is its first row in the tile's sequence.
    #[inline(always)]
    pub(super) unsafe fn store_split<T: Tiles>(
        &self,
        work: WorkTile,
        listed: u32,
        first_row: u32,
        lse: RowValues,
        o: &T::Output,
    ) {
        let (p, packing) = (self.p, self.packing);
        let split_blocks = divide(p.split.keys, T::FOOTPRINT.block_k);
        let before = u64::from(divide(work.first_block, split_blocks)) * p.split.rows;
        let lse_base = p.split.lse + before * 4;
        // SAFETY: the caller's contract: the workspace has every row of every split, and others are not written.
        unsafe {
            let rows = if spec::lengths() {
                LseRows::listed(lse_base, &p.shape, &p.list, self.layout.read_listed(listed))
            } else {
                LseRows::padded(lse_base, &p.shape)
            };
            let place_of = |row| (packing.head::<T>(work.head, row), packing.query::<T>(row));
            store_lse::<T::Output>(rows, first_row, lse, place_of);
            let place = fragment::accumulator(special::lane_idx(), 0);
            for half in 0..2 {
                let (head, query) = place_of(first_row + half as u32 * 8 + place.row);
                let row = row_of_head(rows.base, head, u64::from(rows.rows), query);
                let row = (row - p.split.lse) / 4 * u64::from(p.shape.head_dim);
                let address = p.split.o + (row + u64::from(place.col)) * 4;
                for n in 0..T::Output::N {
                    let x = o.fragment(0, n);
                    let inside =
                        query < rows.seqlen_q && n as u32 * 8 + place.col < p.shape.head_dim;
                    let pair = [x[2 * half], x[2 * half + 1]].map(f32::to_bits);
                    global::st_global_x2_if(address + n as u64 * 32, pair, inside);
                }
            }
        }
    }
}

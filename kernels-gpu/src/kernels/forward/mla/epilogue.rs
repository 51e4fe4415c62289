//! The end of a tile: O and L to memory.

use super::Tile;
use crate::attention::batch_and_head;
use crate::config::MLA_COLUMNS;
use crate::kernels::forward::sm90::Tiles;
use crate::kernels::forward::sm90::consumer::Consumer;
use crate::kernels::forward::sm90::elements::Elements;
use crate::kernels::forward::sm90::layout::place;
use crate::kernels::forward::{add_sinks, store_statistic, value_of_head};
use crate::ptx::{barrier, spec};
use crate::tile::global::GlobalRows;
use crate::tile::warpgroup::WARPGROUP_ROWS;

/// Both consumers meet at this barrier.
const BOTH_BARRIER: u32 = 4;
/// Threads of both.
const BOTH_THREADS: u32 = 256;

impl Consumer<'_> {
    /// Whether the tile's sequence has one split, and no other tile anything to do with these rows.
    #[inline(always)]
    unsafe fn is_whole(&self, listed: u32) -> bool {
        let split = &self.p.split;
        // Without lengths there are several splits.
        if !spec::lengths() || split.whole_tiles == 0 {
            return false;
        }
        // SAFETY: the place is the tile's.
        unsafe { self.sequence(0, listed) }.n_splits(split, self.split_keys) == 1
    }

    /// l of both consumers' blocks; then O ← diag(l)⁻¹ O, and O and L to memory.
    #[inline(always)]
    pub(super) unsafe fn mla_epilogue<E: Elements, T: Tiles, const I: u32>(&self, t: &mut Tile<T>) {
        let (p, layout) = (self.p, self.layout);
        let first_row = t.work.q_block * WARPGROUP_ROWS + self.row;
        // SAFETY: as `attend`. Both come here for each tile, and meet once more before somebody writes l again.
        unsafe {
            let own = t.softmax.row_sums::<T::Output>();
            self.write_rows(|row| layout.l(I, row), own);
            barrier::barrier_sync(BOTH_BARRIER, BOTH_THREADS);
            let other = self.read_rows(|row| layout.l(1 - I, row));
            barrier::barrier_sync(BOTH_BARRIER, BOTH_THREADS);
            let sums = [own[0][0] + other[0][0], own[0][1] + other[0][1]];
            t.softmax.set_row_sums::<T::Output>([sums, [0.0; 2]]);
            let mut lse = t.softmax.finalize(&mut t.o);
            let listed = place(t.slot, 1);
            if spec::split_kv() && !self.is_whole(listed) {
                let first_column = I * MLA_COLUMNS;
                self.store_split::<T>(t.work, listed, first_row, first_column, lse, &t.o);
                return;
            }
            let place_of = |row| {
                let head = self.packing.head::<T>(t.work.head, row);
                (head, self.packing.query::<T>(row))
            };
            if spec::sinks() {
                let sink = |row| value_of_head(p.sinks, p.shape.heads_q, place_of(row).0);
                lse = add_sinks(first_row, lse, &mut t.o, sink);
            }
            let rows = self.sequence(t.work.head, listed).statistic(p.lse);
            if I == 0 {
                store_statistic::<T::Output>(rows, first_row, lse, place_of);
            }
            let first_chunk = I * MLA_COLUMNS / 8;
            let chunks = (p.shape.head_dim_v / 8).saturating_sub(first_chunk);
            E::store_rows_to(chunks, &t.o, |row, chunk| {
                let (head, query) = place_of(first_row + row);
                let (batch_idx, head_idx, first) = if spec::lengths() {
                    let tile = layout.read_listed(listed);
                    (p.list.batch_q(tile.sequence), head, tile.q_first)
                } else {
                    let (batch_idx, head_idx) = batch_and_head(head, p.shape.heads_q);
                    (batch_idx, head_idx, 0)
                };
                let o = GlobalRows::new(&p.o_rows, batch_idx, head_idx, 0);
                let address = o.chunk(first + query, first_chunk + chunk);
                (address, query < rows.seqlen_q)
            });
        }
    }
}

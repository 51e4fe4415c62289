//! The end of a tile: O and L to memory.

use super::Tile;
use crate::config::MLA_COLUMNS;
use crate::kernels::forward::sm90::Tiles;
use crate::kernels::forward::sm90::consumer::Consumer;
use crate::kernels::forward::sm90::elements::Elements;
use crate::kernels::forward::sm90::layout::place;
use crate::ptx::{barrier, spec};
use crate::tile::warpgroup::WARPGROUP_ROWS;

/// Both consumers meet at this barrier.
const BOTH_BARRIER: u32 = 4;
/// Threads of both.
const BOTH_THREADS: u32 = 256;

impl Consumer<'_> {
    /// l of both consumers' blocks; then O ← diag(l)⁻¹ O, and O and L to memory.
    #[inline(always)]
    pub(super) unsafe fn mla_epilogue<E: Elements, T: Tiles, const I: u32>(&self, t: &mut Tile<T>) {
        let layout = self.layout;
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
            let lse = t.softmax.finalize(&mut t.o);
            let (listed, first_column) = (place(t.slot, 1), I * MLA_COLUMNS);
            if spec::split_kv() && !self.is_whole(t.work, listed) {
                self.store_split::<T>(t.work, listed, first_row, first_column, lse, &t.o);
            } else {
                self.store_rows::<E, T>(t.work, listed, first_row, first_column, lse, &mut t.o);
            }
        }
    }
}

//! What the consumers tell each other by shared memory: P, m and l.

use crate::config::LATENT_EXCHANGE;
use crate::kernels::forward::sm90::consumer::Consumer;
use crate::kernels::forward::sm90::layout::Layout;
use crate::ptx::{shared, special};
use crate::tile::softmax::RowValues;
use crate::tile::warpgroup::{BoxedTile, WARPGROUP_ROWS};

/// Bytes for it.
pub(in super::super) const EXCHANGE_BYTES: u32 =
    LATENT_EXCHANGE[0] + LATENT_EXCHANGE[1] + LATENT_EXCHANGE[2];

impl Layout {
    /// The place of P.
    #[inline(always)]
    pub(super) const fn p(self) -> BoxedTile {
        BoxedTile {
            base: self.o,
            rows: WARPGROUP_ROWS,
        }
    }

    /// The barrier that says that P and m of an owner's next block are there. Each owner has one: with one for both, a warp could pass
    /// before those beside it have said so of the block before.
    #[inline(always)]
    pub(super) const fn p_full(self, owner: u32) -> u32 {
        self.o_ring.full(owner)
    }

    /// Where m of a row lies.
    #[inline(always)]
    pub(super) const fn m(self, row: u32) -> u32 {
        self.o + LATENT_EXCHANGE[0] + row * 4
    }

    /// Where a consumer's l of a row lies.
    #[inline(always)]
    pub(super) const fn l(self, consumer: u32, row: u32) -> u32 {
        self.m(WARPGROUP_ROWS) + (consumer * WARPGROUP_ROWS + row) * 4
    }
}

impl Consumer<'_> {
    /// Writes a number for each of the warp's rows to shared memory.
    #[inline(always)]
    pub(super) unsafe fn write_rows(&self, address: impl Fn(u32) -> u32, values: RowValues) {
        let lane = special::lane_idx();
        if lane.is_multiple_of(4) {
            for (half, x) in values[0].into_iter().enumerate() {
                let row = self.row + lane / 4 + half as u32 * 8;
                // SAFETY: the rows' numbers are nobody else's now.
                unsafe { shared::st_shared_f32(address(row), x) };
            }
        }
    }

    /// Reads a number for each of the warp's rows.
    #[inline(always)]
    pub(super) unsafe fn read_rows(&self, address: impl Fn(u32) -> u32) -> RowValues {
        let mut values = [[0.0; 2]; 2];
        for (half, x) in values[0].iter_mut().enumerate() {
            let row = self.row + special::lane_idx() / 4 + half as u32 * 8;
            // SAFETY: the rows' numbers have been written.
            *x = unsafe { shared::ld_shared_f32(address(row)) };
        }
        values
    }

    /// The rows' references, which have come with P.
    #[inline(always)]
    pub(super) unsafe fn read_m(&self) -> RowValues {
        // SAFETY: P has come.
        unsafe { self.read_rows(|row| self.layout.m(row)) }
    }
}

//! Block masks: the map's bytes, read from device memory.

use crate::attention::divide;
use crate::attention::mask::Band;
use crate::params::{BlockMap, HIDDEN_BLOCK, PARTIAL_BLOCK};
use crate::ptx::{global, spec};

/// The row of the map that a query of a head has. Asked only where the kernel is specialised to have a map.
#[derive(Clone, Copy)]
pub(crate) struct MapRow {
    address: u64,
    block_k: u32,
}

impl MapRow {
    /// That of a query.
    #[inline(always)]
    pub(crate) fn new(map: &BlockMap, batch_idx: u32, head_idx: u32, q_idx: u32) -> MapRow {
        let of_head = batch_idx * map.batch_stride + head_idx * map.head_stride;
        let row = divide(q_idx, map.block_q) * map.k_blocks;
        MapRow {
            address: map.map + u64::from(of_head) + u64::from(row),
            block_k: map.block_k,
        }
    }

    /// Its byte of the block of this key.
    ///
    /// # Safety
    /// The map is as [`BlockMap`] says; query and key are in their sequences.
    #[inline(always)]
    pub(crate) unsafe fn block(self, k_idx: u32) -> u8 {
        let column = divide(k_idx, self.block_k);
        // SAFETY: this function's contract.
        unsafe { global::ld_global_u8(self.address + u64::from(column)) }
    }

    /// Whether no pair of the block that this key lies in is visible.
    ///
    /// # Safety
    /// As [`MapRow::block`].
    #[inline(always)]
    pub(crate) unsafe fn hides(self, k_idx: u32) -> bool {
        // SAFETY: this function's contract.
        spec::block_mask() && unsafe { self.block(k_idx) } == HIDDEN_BLOCK
    }

    /// Which pairs of the block that this key lies in are visible.
    ///
    /// # Safety
    /// As [`MapRow::block`].
    #[inline(always)]
    pub(crate) unsafe fn visible(self, band: Band, k_idx: u32) -> Visible {
        let block = if spec::block_mask() {
            // SAFETY: this function's contract.
            unsafe { self.block(k_idx) }
        } else {
            PARTIAL_BLOCK
        };
        Visible { band, block }
    }
}

/// Which pairs of one block are visible.
#[derive(Clone, Copy)]
pub(crate) struct Visible {
    band: Band,
    block: u8,
}

impl Visible {
    /// Whether the map hides all pairs of the block.
    #[inline(always)]
    pub(crate) fn is_hidden(&self) -> bool {
        spec::block_mask() && self.block == HIDDEN_BLOCK
    }

    /// Whether the map shows all pairs of the block, whatever the mask says.
    #[inline(always)]
    pub(crate) fn is_full(&self) -> bool {
        spec::block_mask() && self.block != HIDDEN_BLOCK && self.block != PARTIAL_BLOCK
    }

    /// Whether this one is; false also for keys beyond the sequence's end.
    #[inline(always)]
    pub(crate) fn keep(&self, q_idx: u32, k_idx: u32) -> bool {
        // The constant is asked for here: behind two ways ptxas would not know it.
        if !spec::block_mask() || self.block == PARTIAL_BLOCK {
            self.band.keep(q_idx, k_idx)
        } else {
            self.block != HIDDEN_BLOCK && k_idx < self.band.seqlen_k()
        }
    }
}

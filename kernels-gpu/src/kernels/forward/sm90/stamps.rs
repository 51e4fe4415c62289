//! A consumer's time stamps: see [`crate::kernels::stamps`].

use super::Tiles;
use super::consumer::{Consumer, PRODUCER_THREADS};
use super::layout::WorkTile;
use crate::kernels::stamps::Record;
use crate::ptx::special;

impl Consumer<'_> {
    /// A stamped kernel records that the block's first tile begins.
    ///
    /// # Safety
    /// The tile is this block's.
    #[inline(always)]
    pub(super) unsafe fn record_begin<T: Tiles>(&self, work: WorkTile) {
        if T::STAMPS {
            // SAFETY: the plan has a record for each tile.
            unsafe { self.record(work).begin() };
        }
    }

    /// The same that a tile ends, and the next one begins.
    ///
    /// # Safety
    /// As [`Consumer::record_begin`].
    #[inline(always)]
    pub(super) unsafe fn record_next<T: Tiles>(&self, ended: WorkTile, next: WorkTile) {
        // SAFETY: as above.
        unsafe {
            self.record_end::<T>(ended);
            self.record_begin::<T>(next);
        }
    }

    /// The same that a tile ends.
    ///
    /// # Safety
    /// As [`Consumer::record_begin`].
    #[inline(always)]
    pub(super) unsafe fn record_end<T: Tiles>(&self, ended: WorkTile) {
        if T::STAMPS {
            // SAFETY: as above.
            unsafe { self.record(ended).end() };
        }
    }

    /// Where: the first consumer's first thread writes.
    #[inline(always)]
    fn record(&self, work: WorkTile) -> Record {
        // Opaque: no register need hold it from tile to tile.
        let writes = special::opaque(special::thread_idx_x()) == PRODUCER_THREADS;
        let tiles = self.p.schedule.tiles;
        Record::new(self.p.stamps, tiles, work.head, work.q_block, writes)
    }
}

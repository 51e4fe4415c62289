//! A consumer's time stamps: see [`crate::kernels::stamps`].

use super::Tiles;
use super::consumer::{Consumer, PRODUCER_THREADS};
use super::layout::WorkTile;
use crate::kernels::stamps::Record;
use crate::ptx::special;

impl Consumer<'_> {
    /// A stamped kernel records that a tile begins.
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

    /// The same of its end.
    ///
    /// # Safety
    /// As [`Consumer::record_begin`].
    #[inline(always)]
    pub(super) unsafe fn record_end<T: Tiles>(&self, work: WorkTile) {
        if T::STAMPS {
            // SAFETY: as above.
            unsafe { self.record(work).end() };
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

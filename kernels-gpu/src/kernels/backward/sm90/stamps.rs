//! A consumer's time stamps: see [`crate::kernels::stamps`].

use super::Tiles;
use super::consumer::{Consumer, THREADS};
use super::work::WorkTile;
use crate::kernels::backward::record;
use crate::kernels::stamps::Record;
use crate::ptx::special;

/// The first consumer's first thread; the producer's warpgroup comes before it.
const FIRST_THREAD: u32 = THREADS;

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

    /// Where.
    #[inline(always)]
    fn record(&self, work: WorkTile) -> Record {
        // Opaque: see `Consumer::send`.
        let writes = special::opaque(special::thread_idx_x()) == FIRST_THREAD;
        record(self.p, work.tile, writes)
    }
}

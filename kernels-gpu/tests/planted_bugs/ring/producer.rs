//! The thread that fills the rings.

use ferroflash_kernels::params::TensorMap;
use ferroflash_kernels::ptx::{mbarrier, shared, tma};

use super::{Bug, HALF, KEYS, Kernel, Ring, STAGES, TILE, address};

impl Kernel<'_> {
    fn wait_empty(&self, ring: Ring, stage: u32, round: u32) {
        if !self.is(Bug::NoWaitForEmpty) {
            // SAFETY: the barrier was made.
            unsafe { mbarrier::mbarrier_wait(self.barrier(ring, stage), round & 1 ^ 1) };
        }
    }

    /// Both halves of 64 rows.
    fn load_tile(&self, to: u32, map: &TensorMap, row: u32, barrier: u32) {
        for half in 0..2 {
            // SAFETY: the tile is empty; what is wrong is wrong on purpose.
            unsafe {
                tma::tma_load(
                    to + half * HALF,
                    address(map),
                    [half * 64, row, 0, 0],
                    barrier,
                );
            }
        }
    }

    fn expect(&self, barrier: u32, n_bytes: u32) {
        let n_bytes = match self.bug {
            Bug::TooFewBytesExpected => n_bytes / 2,
            Bug::TooManyBytesExpected => n_bytes + 128,
            _ => n_bytes,
        };
        // SAFETY: the barrier was made.
        unsafe { mbarrier::mbarrier_arrive_expect_tx(barrier, n_bytes) };
    }

    /// Fills the next stage of one ring.
    fn fill(&self, full: Ring, empty: Ring, count: u32, map: &TensorMap, block: u32) {
        let (stage, round) = (count % STAGES, count / STAGES);
        self.wait_empty(empty, stage, round);
        let barrier = self.barrier(full, stage);
        self.expect(barrier, TILE);
        let to = match full {
            Ring::FullK => self.k_tile(stage),
            _ => self.v_tile(stage),
        };
        self.load_tile(to, map, block * KEYS, barrier);
    }

    pub fn produce(&self) {
        let mut count = 0;
        if self.is(Bug::StoresOverMbarrier) {
            // SAFETY: wrong on purpose.
            unsafe { shared::st_shared_u32(self.barrier(Ring::FullV, 0) + 4, 0) };
        }
        for tile in 0..self.tiles() {
            self.wait_empty(Ring::EmptyQ, 0, tile);
            let barrier = self.barrier(Ring::FullQ, 0);
            self.expect(barrier, TILE * self.consumers);
            for consumer in 0..self.consumers {
                let row = (tile * self.consumers + consumer) * 64;
                self.load_tile(self.q_tile(consumer), self.q, row, barrier);
            }
            for block in 0..self.blocks() {
                self.fill(Ring::FullK, Ring::EmptyK, count, self.k, block);
                self.fill(Ring::FullV, Ring::EmptyV, count, self.v, block);
                count += 1;
            }
        }
        if self.is(Bug::PrefetchesAtTheEnd) {
            self.fill(Ring::FullK, Ring::EmptyK, count, self.k, 0);
        }
    }
}

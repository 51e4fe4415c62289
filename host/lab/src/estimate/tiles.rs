//! The time of tiles: whole waves of them, and each tile's time in addition to its products.

use ferroflash::Pass;

use super::sizes::Visits;
use super::{Gpu, efficiency};

/// The work tiles of a main kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tiles {
    /// Tiles of all heads.
    pub n: u64,
    /// Blocks that are streamed past all of them, and past the longest and the shortest.
    pub blocks: u64,
    pub longest: u64,
    pub shortest: u64,
    /// Bytes that a tile reads before its first product and writes after its last: its own rows.
    pub own_bytes: u64,
    /// Blocks of threads that an SM holds.
    pub blocks_per_sm: u32,
    /// Whether plans split the streamed rows, so that few tiles keep all SMs busy.
    pub splits: bool,
}

impl Tiles {
    /// The tiles of this many heads.
    pub fn new(heads: u64, visits: Visits, own_bytes: u64, blocks_per_sm: u32) -> Tiles {
        Tiles {
            n: heads * visits.tiles,
            blocks: heads * visits.blocks,
            longest: visits.longest,
            shortest: visits.shortest,
            own_bytes,
            blocks_per_sm,
            splits: false,
        }
    }

    /// For a block of threads that works on a whole head, each tile of which streams this many blocks: all are one tile.
    pub fn of_heads(heads: u64, blocks: u64, own_bytes: u64, blocks_per_sm: u32) -> Tiles {
        let visits = Visits {
            tiles: 1,
            blocks,
            longest: blocks,
            shortest: blocks,
            ..Visits::default()
        };
        Tiles::new(heads, visits, own_bytes, blocks_per_sm)
    }

    /// Seconds of all tiles, whose FLOPs take `flop_seconds` at the fraction of the peak that kernels reach in steady state.
    ///
    /// A *slot* is the place of one block of threads on an SM. Tiles are spread over all SMs before two of them share one. A tile takes the time of
    /// its products at a slot's fraction of the speed, plus its beginning and end. Tiles of one length go in whole waves. Uneven ones, of
    /// a mask, fill each other's gaps, but last as long as the longest of them.
    pub fn seconds(&self, flop_seconds: f64, pass: Pass, gpu: &Gpu) -> f64 {
        if self.n == 0 {
            return 0.0;
        }
        let n_sms = u64::from(gpu.n_sms);
        let per_sm = u64::from(self.blocks_per_sm).min(self.n.div_ceil(n_sms));
        let slots = (n_sms * per_sm) as f64;
        let bandwidth = gpu.bandwidth * efficiency::MEMORY / slots;
        let ends = efficiency::tile_latency(pass) + self.own_bytes as f64 / bandwidth;
        let of_block = flop_seconds * slots / self.blocks.max(1) as f64;
        let longest = self.longest as f64 * of_block + ends;
        let evenly = flop_seconds + self.n as f64 * ends / slots;
        if self.splits {
            evenly
        } else if self.longest == self.shortest {
            (self.n as f64 / slots).ceil() * longest
        } else {
            evenly.max(longest)
        }
    }
}

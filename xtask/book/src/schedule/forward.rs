//! Forward passes: tiles in their order, each in the place that is free first.

use anyhow::Result;
use ferroflash::Problem;
use ferroflash::plan::Algorithm;
use ferroflash::validate::Pass;
use ferroflash_kernels::attention::mask::Rows;
use ferroflash_kernels::attention::schedule;

use super::{Doing, N_SMS, Planned, Stretch, Timeline};

/// In which order tiles begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The planner's.
    Planned,
    /// From a sequence's first tile to its last, one head after the other.
    Ascending,
}

/// The forward pass of flash2 or flash3. A tile begins in the place that is free first: of flash2 the hardware puts the grid's next block of threads
/// there, of flash3 the block of threads that is resident there claims the next tile.
pub fn forward(problem: &Problem, algorithm: Algorithm, order: Order) -> Result<Timeline> {
    let planned = Planned::new(problem, Pass::Forward, algorithm, N_SMS)?;
    let footprint = planned.launch.variant.footprint;
    let work = planned.band.bounds().work();
    let tiles = planned.schedule.tiles * planned.schedule.heads;
    let tile_of = |idx: u32| match order {
        Order::Planned => {
            let tile = schedule::forward(&planned.schedule, work, idx);
            (tile.head, tile.q_block)
        }
        Order::Ascending => (idx / planned.schedule.tiles, idx % planned.schedule.tiles),
    };
    let mut timeline = Timeline {
        lanes: vec![Vec::new(); planned.resident(N_SMS) as usize],
    };
    for idx in 0..tiles {
        let (head, tile) = tile_of(idx);
        let first = tile * footprint.block_q;
        let queries = Rows::of_sequence(first, footprint.block_q, planned.shape.seqlen_q);
        let steps = planned.band.kv_blocks(queries, footprint.block_k).n();
        begin(&mut timeline, steps, Doing::Tile { head, tile });
    }
    Ok(timeline)
}

/// In the place that is free first, the first one of several.
fn begin(timeline: &mut Timeline, len: u32, doing: Doing) {
    let end = |lane: &Vec<Stretch>| lane.last().map_or(0, |last| last.from + last.len);
    let free = timeline.lanes.iter_mut().min_by_key(|lane| end(lane));
    if let Some(lane) = free {
        let from = end(lane);
        lane.push(Stretch { from, len, doing });
    }
}

/// The blocks of FlashAttention's Algorithm 1 for a head, `(B_r, B_c, T_r, T_c)`: B_c = ⌈M / 4d⌉ keys and B_r = min(B_c, d) queries, where shared memory
/// holds M elements.
pub fn flash1_blocks(problem: &Problem, sram_bytes: u64) -> (u64, u64, u64, u64) {
    let columns = problem.head_dim() as u64;
    let elements = sram_bytes / problem.dtype().size_bytes() as u64;
    let block_k = elements.div_ceil(4 * columns);
    let block_q = block_k.min(columns);
    let of = |seqlen: usize, block: u64| (seqlen as u64).div_ceil(block);
    let (tiles_q, tiles_k) = (
        of(problem.seqlen_q(), block_q),
        of(problem.seqlen_k(), block_k),
    );
    (block_q, block_k, tiles_q, tiles_k)
}

/// FlashAttention's Algorithm 1: a block of threads for each head, an outer loop over blocks of keys, all queries past each of them.
pub fn flash1(problem: &Problem, sram_bytes: u64) -> Timeline {
    let (_, _, tiles_q, tiles_k) = flash1_blocks(problem, sram_bytes);
    let mut timeline = Timeline {
        lanes: vec![Vec::new(); N_SMS as usize],
    };
    for (head, lane) in (0..problem.heads_q()).zip(timeline.lanes.iter_mut()) {
        for tile in 0..tiles_k {
            lane.push(Stretch {
                from: (tile * tiles_q) as u32,
                len: tiles_q as u32,
                doing: Doing::Tile {
                    head: head as u32,
                    tile: tile as u32,
                },
            });
        }
    }
    timeline
}

//! Forward passes: tiles in their order, each in the place that is free first.

use anyhow::Result;
use ferroflash::Problem;
use ferroflash::plan::Algorithm;
use ferroflash::validate::Pass;
use ferroflash_kernels::attention::mask::Rows;
use ferroflash_kernels::attention::schedule;
use ferroflash_kernels::variants::{Kind, VARIANTS};

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

/// Tiles of queries and of keys of a head in flash1's kernel for the problem; none where no kernel has its head_dim.
pub fn flash1_tiles(problem: &Problem) -> (u64, u64) {
    let columns = problem.head_dim() as u32;
    let row = VARIANTS
        .iter()
        .find(|row| row.kind == Kind::Flash1Forward && row.head_dim == Some(columns));
    let of = |seqlen: usize, block: u32| (seqlen as u64).div_ceil(block.into());
    row.map_or((0, 0), |row| {
        (
            of(problem.seqlen_q(), row.footprint.block_q),
            of(problem.seqlen_k(), row.footprint.block_k),
        )
    })
}

/// FlashAttention's Algorithm 1: a block of threads for each head, an outer loop over blocks of keys, all queries past each of them.
pub fn flash1(problem: &Problem) -> Timeline {
    let (tiles_q, tiles_k) = flash1_tiles(problem);
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

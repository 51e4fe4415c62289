//! Launches whose blocks of threads do not wait for each other: the forward passes, and flash1's backward pass. The next work begins in the slot
//! that is free first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use ferroflash::plan::schedule::resident_blocks;
use ferroflash::plan::{DeviceInfo, Plan};
use ferroflash_kernels::attention::block_order;
use ferroflash_kernels::attention::mask::{Band, Rows};
use ferroflash_kernels::attention::schedule;
use ferroflash_kernels::params::{Params, Schedule};
use ferroflash_kernels::variants::{Kind, TileShape};

use super::backward::TIMES;
use super::{
    Doing, Lane, MOST_STEPS, NoTimeline, STEP, Timeline, bounds, main_kernel, not_on_device,
};
use crate::estimate::edges_in_steps;

/// The work of a place until it is free again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// Of which head, of all batch entries: of q forward, of k backward.
    pub head: u32,
    /// A tile of queries; or in flash1 all tiles of keys that a query of the head sees, one after the other.
    pub tiles: Vec<WorkTile>,
}

/// A tile with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkTile {
    /// Its index within its head.
    pub tile: u32,
    /// How many blocks are streamed past it.
    pub steps: u32,
    /// Its time in addition to its steps, in hundredths of a step.
    pub edges: u64,
}

/// The assignment of tiles.
#[derive(Clone, Copy, Debug)]
enum Loops {
    /// A place takes a tile of queries after another, in this order.
    Queries(Schedule),
    /// A block of threads has a head, and tiles of keys are its outer loop. The head takes the edges once.
    Heads { n: u32 },
    /// The same backward: of a KV head, whose query heads pass each tile.
    KvHeads { n: u32, group_size: u32 },
}

/// What is launched.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    loops: Loops,
    band: Band,
    seqlen_q: u32,
    seqlen_k: u32,
    block_q: u32,
    block_k: u32,
    /// The time of a tile, or of a head of flash1's forward pass, in addition to its steps.
    edges: u64,
    /// Blocks of threads that run at a time.
    n_lanes: u32,
    /// Blocks of threads that the device holds.
    n_places: u32,
}

/// The timeline of a plan's main kernel.
pub(super) fn timeline(plan: &Plan, device: &DeviceInfo) -> Result<Timeline, NoTimeline> {
    let launch = Launch::of_plan(plan, device)?;
    Ok(launch.timeline(launch.works()))
}

impl Launch {
    /// The main kernel of a plan for a device: of a forward pass, or of flash1's backward pass.
    pub fn of_plan(plan: &Plan, device: &DeviceInfo) -> Result<Launch, NoTimeline> {
        let main = main_kernel(plan)?;
        not_on_device(main)?;
        if let TileShape::Compact | TileShape::Grouped = main.variant.tiles {
            return Err(NoTimeline::FewQueries);
        }
        let (loops, shape, window) = match main.params {
            Params::Forward(p) => (Loops::Queries(p.schedule), p.shape, p.window),
            Params::TmaForward(p) => (Loops::Queries(p.schedule), p.shape, p.window),
            Params::Flash1Forward(p) => (Loops::Heads { n: main.grid }, p.shape, p.window),
            Params::Backward(p) if main.variant.kind == Kind::Flash1Backward => {
                let loops = Loops::KvHeads {
                    n: main.grid,
                    group_size: p.shape.group_size,
                };
                (loops, p.shape, p.window)
            }
            _ => return Err(NoTimeline::NoTiles(plan.algorithm)),
        };
        let tile_config = &main.variant.tile_config;
        let n_places = resident_blocks(device, tile_config);
        let in_steps = |steps: f64| (STEP as f64 * steps) as u64;
        let launch = Launch {
            loops,
            band: Band::new(shape.seqlen_q, shape.seqlen_k, window, bounds(main)),
            seqlen_q: shape.seqlen_q,
            seqlen_k: shape.seqlen_k,
            block_q: tile_config.block_q,
            block_k: tile_config.block_k,
            edges: match loops {
                Loops::KvHeads { .. } => TIMES.begin + TIMES.end,
                _ => in_steps(edges_in_steps(plan.algorithm, &plan.problem, main.variant)),
            },
            n_lanes: main.grid.min(n_places),
            n_places,
        };
        let (n_works, n_tiles) = launch.numbers();
        let tiles = u64::from(n_works) * u64::from(n_tiles);
        match tiles <= MOST_STEPS {
            true => Ok(launch),
            false => Err(NoTimeline::TooLong {
                steps: tiles,
                most: MOST_STEPS,
            }),
        }
    }

    /// How many works there are, and how many tiles each may have.
    fn numbers(&self) -> (u32, u32) {
        match self.loops {
            Loops::Queries(schedule) => (schedule.tiles.saturating_mul(schedule.heads), 1),
            Loops::Heads { n } | Loops::KvHeads { n, .. } => {
                (n, self.seqlen_k.div_ceil(self.block_k))
            }
        }
    }

    /// All of them, in the plan's order.
    pub fn works(&self) -> impl Iterator<Item = Work> + '_ {
        (0..self.numbers().0).map(|idx| match self.loops {
            Loops::Queries(schedule) => self.query_tile(&schedule, idx),
            Loops::Heads { .. } => self.key_tiles(idx, 1, |first| u64::from(first) * self.edges),
            Loops::KvHeads { group_size, .. } => self.key_tiles(idx, group_size, |_| self.edges),
        })
    }

    fn query_tile(&self, schedule: &Schedule, idx: u32) -> Work {
        let tile = schedule::forward(schedule, self.band.bounds().work(), idx);
        let first = tile.q_block * self.block_q;
        let queries = Rows::of_sequence(first, self.block_q, self.seqlen_q);
        Work {
            head: tile.head,
            tiles: vec![WorkTile {
                tile: tile.q_block,
                // A tile that sees no key makes a step, too.
                steps: self.band.kv_blocks(queries, self.block_k).n().max(1),
                edges: self.edges,
            }],
        }
    }

    /// `edges` gets whether the tile is the head's first one.
    fn key_tiles(&self, head: u32, group_size: u32, edges: impl Fn(bool) -> u64) -> Work {
        let mut tiles = Vec::new();
        for tile in 0..self.seqlen_k.div_ceil(self.block_k) {
            let blocks = block_order::q_blocks(&self.band, tile, self.block_q, self.block_k);
            if blocks.n() > 0 {
                tiles.push(WorkTile {
                    tile,
                    steps: blocks.n() * group_size,
                    edges: edges(tiles.is_empty()),
                });
            }
        }
        Work { head, tiles }
    }

    /// The timeline of this work: of [`Launch::works`], or of the same in another order.
    pub fn timeline(&self, works: impl IntoIterator<Item = Work>) -> Timeline {
        let mut lanes = vec![Lane::default(); self.n_lanes as usize];
        let mut free: BinaryHeap<_> = (0..self.n_lanes).map(|lane| Reverse((0, lane))).collect();
        let mut all_steps = 0;
        for work in works {
            let Some(Reverse((mut now, place))) = free.pop() else {
                break;
            };
            let lane = &mut lanes[place as usize];
            for tile in work.tiles {
                lane.begin(now);
                now += tile.edges + u64::from(tile.steps) * STEP;
                let doing = Doing::Tile {
                    head: work.head,
                    tile: tile.tile,
                };
                lane.end(now, doing);
                all_steps += u64::from(tile.steps);
            }
            free.push(Reverse((now, place)));
        }
        Timeline::new(lanes, self.n_places, all_steps)
    }
}

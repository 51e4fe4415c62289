//! A launch of a main backward kernel as its schedule sees it: blocks take tiles, go through their steps, and wait for the
//! dQ semaphore. `tests/tests/schedule` holds the planner's choices to it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use ferroflash_kernels::attention::block_order::{self, BlockOrder};
use ferroflash_kernels::attention::mask::{Band, Bounds};
use ferroflash_kernels::attention::schedule::{self, BackwardTile, QueryHeads, Shares};
use ferroflash_kernels::params::{
    FASTEST, Params, SHIFTED, Schedule, Shape, TmaBackwardParams, Window,
};

use super::{Doing, Lane, NoTimeline, Timeline, bounds, main_kernel, not_on_device};
use crate::plan::schedule::resident_blocks;
use crate::plan::{DeviceInfo, Plan};

/// What is launched.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// Sizes.
    pub shape: Shape,
    /// Distances of the mask.
    pub window: Window,
    /// Which of them count.
    pub bounds: Bounds,
    /// The order of the tiles.
    pub schedule: Schedule,
    /// Shares of the query heads of a KV head; each is a KV head of `shape`.
    pub n_shares: u32,
    /// How many of them have a query head more than the others.
    pub n_larger_shares: u32,
    /// Queries of a step.
    pub block_q: u32,
    /// Keys of a tile.
    pub block_k: u32,
    /// Number of blocks.
    pub grid: u32,
    /// How many of them the device holds at once.
    pub resident: u32,
}

/// One step of a tile: it adds to a block of dQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Which of the query heads that share the tile's keys.
    pub head: u32,
    /// Which block of its queries.
    pub block: u32,
    /// How many tiles add before.
    pub rank: u32,
}

/// A tile and its way.
#[derive(Clone, Debug)]
pub struct Way {
    /// Which tile.
    pub tile: BackwardTile,
    /// Its steps, one after the other.
    pub steps: Vec<Step>,
}

impl Launch {
    /// The main kernel of a backward pass's plan for a device.
    pub fn of_plan(plan: &Plan, device: &DeviceInfo) -> Result<Launch, NoTimeline> {
        let main = main_kernel(plan)?;
        not_on_device(main)?;
        let pass = match main.params {
            Params::Backward(pass) | Params::TmaBackward(TmaBackwardParams { pass, .. }) => pass,
            _ => return Err(NoTimeline::NoTiles(plan.algorithm)),
        };
        let footprint = &main.variant.footprint;
        Ok(Launch {
            shape: pass.shape,
            window: pass.window,
            bounds: bounds(main),
            schedule: pass.schedule,
            n_shares: pass.n_shares.max(1),
            n_larger_shares: pass.n_larger_shares,
            block_q: footprint.block_q,
            block_k: footprint.block_k,
            grid: main.grid,
            resident: resident_blocks(device, footprint),
        })
    }

    /// An upper bound of the number of its steps.
    fn most_steps(&self) -> u64 {
        let tiles = u64::from(self.schedule.tiles) * u64::from(self.schedule.heads);
        let blocks = u64::from(self.shape.seqlen_q.div_ceil(self.block_q));
        tiles
            .saturating_mul(blocks)
            .saturating_mul(u64::from(self.shape.group_size) + 1)
    }

    /// The mask.
    pub fn band(&self) -> Band {
        let Shape {
            seqlen_q, seqlen_k, ..
        } = self.shape;
        Band::new(seqlen_q, seqlen_k, self.window, self.bounds)
    }

    /// Every tile with its steps, in the order in which tiles are claimed; without those that no query sees.
    pub fn ways(&self) -> Vec<Way> {
        let Launch {
            schedule,
            block_q,
            block_k,
            ..
        } = self;
        let band = self.band();
        let way = |claimed| {
            let tile = schedule::backward_in_shares(
                schedule,
                band.bounds().work(),
                claimed,
                self.n_shares,
            );
            let blocks = block_order::q_blocks(&band, tile.k_block, *block_q, *block_k);
            if blocks.n() == 0 {
                return None;
            }
            let group_size = self.query_heads(tile.head).n;
            let mut order = BlockOrder::begin(band, tile, blocks, schedule, group_size);
            let n_steps = order.steps();
            let step = |_| {
                let step = Step {
                    head: order.head,
                    block: order.block,
                    rank: order.rank(*block_q, *block_k),
                };
                order.advance();
                step
            };
            let steps = (0..n_steps).map(step).collect();
            Some(Way { tile, steps })
        };
        (0..schedule.tiles * schedule.heads)
            .filter_map(way)
            .collect()
    }

    /// The query heads that tiles of a share meet.
    pub fn query_heads(&self, head: u32) -> QueryHeads {
        let shares = Shares {
            n: self.n_shares,
            n_larger: self.n_larger_shares,
            heads: self.shape.group_size,
        };
        shares.query_heads(head)
    }

    /// The same problem, of so many query and KV heads, in so many shares and another order.
    pub fn in_shares(&self, heads: (usize, usize), n_shares: u32, schedule: Schedule) -> Launch {
        let heads_k = heads.1 as u32 * n_shares;
        Launch {
            shape: Shape {
                heads_k,
                group_size: heads.0 as u32 / heads_k,
                ..self.shape
            },
            schedule,
            n_shares,
            n_larger_shares: (heads.0 / heads.1) as u32 % n_shares,
            grid: self.resident,
            ..*self
        }
    }

    /// The number of a block of dQ among those of all heads.
    fn block_of_d_q(&self, way: &Way, step: Step) -> u32 {
        let blocks = self.shape.seqlen_q.div_ceil(self.block_q).max(1);
        (self.query_heads(way.tile.head).first + step.head) * blocks + step.block
    }
}

/// How long things take.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// From a tile's tile_idx to its first product.
    pub begin: u64,
    /// One block of queries.
    pub step: u64,
    /// From a tile's last step to the next tile_idx.
    pub end: u64,
    /// From an addition to the next tile's.
    pub hand_over: u64,
    /// To add dV, or dK, of a tile to those of the shares before.
    pub sum: u64,
}

/// In hundredths of a step, which is about 2.2 µs on an H200: 64 queries at head_dim 128, or 128 at head_dim 64. That the
/// dQ semaphore has reached a tile takes a little more to be seen. Measured of flash3; flash2 is taken to have the same proportions.
pub const TIMES: Times = Times {
    begin: 240,
    step: super::STEP,
    end: 50,
    hand_over: 110,
    sum: 75,
};

/// How a launch ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// All tiles are done after this time.
    Done(u64),
    /// So many blocks wait for ranks that never come.
    Stuck(usize),
}

/// dV, or dK, of a tile of keys: the KV head, the tile, and which of the two.
type Sum = (u32, u32, usize);

/// A launch that runs.
struct Run<'a> {
    launch: &'a Launch,
    ways: &'a [Way],
    times: Times,
    /// When which block has finished a step and would add.
    ready: BinaryHeap<Reverse<(u64, u32)>>,
    /// Where each block is: its tile_idx, and which step.
    at: Vec<(u32, usize)>,
    /// How many tiles have added to each block of dQ, and when the next may.
    semaphores: HashMap<u32, (u32, u64)>,
    /// Who waits for which rank at which block of dQ.
    waiting: HashMap<(u32, u32), u32>,
    /// How many shares have added to the sums of dV and dK of each tile of keys, and when the next may.
    sums: HashMap<Sum, (u32, u64)>,
    /// Who waits for which share there.
    waiting_for_sums: HashMap<(Sum, u32), u32>,
    tile_counter: u32,
    launched: u32,
    time: u64,
    /// What each block does, where that is wanted.
    lanes: Option<Vec<Lane>>,
}

/// The timeline of a plan's main kernel.
pub(super) fn timeline(plan: &Plan, device: &DeviceInfo) -> Result<Timeline, NoTimeline> {
    let launch = Launch::of_plan(plan, device)?;
    let (steps, most) = (launch.most_steps(), super::MOST_STEPS);
    if steps > most {
        return Err(NoTimeline::TooLong { steps, most });
    }
    let ways = launch.ways();
    let mut run = Run::new(&launch, &ways, TIMES);
    run.lanes = Some(vec![Lane::default(); launch.grid as usize]);
    match run.go(|_| 0) {
        Ending::Stuck(blocks) => Err(NoTimeline::Stuck { blocks }),
        Ending::Done(_) => Ok(Timeline::new(
            run.lanes.unwrap_or_default(),
            launch.resident,
            ways.iter().map(|way| way.steps.len() as u64).sum(),
        )),
    }
}

/// Runs a launch; a step takes longer by what `delay` says, which is told its block of dQ.
pub fn run(launch: &Launch, ways: &[Way], times: Times, delay: impl FnMut(u32) -> u64) -> Ending {
    Run::new(launch, ways, times).go(delay)
}

impl<'a> Run<'a> {
    fn new(launch: &'a Launch, ways: &'a [Way], times: Times) -> Run<'a> {
        Run {
            launch,
            ways,
            times,
            ready: BinaryHeap::new(),
            at: vec![(0, 0); launch.grid as usize],
            semaphores: HashMap::new(),
            waiting: HashMap::new(),
            sums: HashMap::new(),
            waiting_for_sums: HashMap::new(),
            tile_counter: 0,
            launched: 0,
            time: 0,
            lanes: None,
        }
    }

    fn go(&mut self, mut delay: impl FnMut(u32) -> u64) -> Ending {
        for _ in 0..self.launch.grid.min(self.launch.resident) {
            self.launch_block(0);
        }
        while let Some(Reverse((now, block))) = self.ready.pop() {
            let (tile_idx, idx) = self.at[block as usize];
            let way = &self.ways[tile_idx as usize];
            match way.steps.get(idx) {
                Some(&step) => self.add(now, block, delay(self.launch.block_of_d_q(way, step))),
                None => self.add_share(now, block),
            }
        }
        match self.waiting.len() + self.waiting_for_sums.len() {
            0 => Ending::Done(self.time),
            n => Ending::Stuck(n),
        }
    }

    /// The next block of the grid, if there is one, begins.
    fn launch_block(&mut self, now: u64) {
        if self.launched < self.launch.grid {
            let block = self.launched;
            self.launched += 1;
            self.begin_tile(now, block, block);
        }
    }

    /// A block takes its next tile; without one, it makes room for another block. In the shifted order no tile is claimed: the
    /// block's is `fixed`, if it takes part in it.
    fn begin_tile(&mut self, now: u64, block: u32, fixed: u32) {
        let tile_idx = if self.launch.schedule.order == SHIFTED {
            match block < block_order::shifted_blocks(&self.launch.schedule) {
                true => fixed,
                false => u32::MAX,
            }
        } else {
            self.tile_counter += 1;
            self.tile_counter - 1
        };
        self.time = self.time.max(now);
        if (tile_idx as usize) < self.ways.len() {
            self.at[block as usize] = (tile_idx, 0);
            self.trace(block, |lane| lane.begin(now));
            let first = now + self.times.begin + self.times.step;
            self.ready.push(Reverse((first, block)));
        } else {
            self.launch_block(now);
        }
    }

    /// A block adds to dQ, or begins to wait for the semaphore.
    fn add(&mut self, now: u64, block: u32, delay: u64) {
        let (tile_idx, idx) = self.at[block as usize];
        let way = &self.ways[tile_idx as usize];
        let step = way.steps[idx];
        if self.launch.schedule.order != FASTEST {
            let place = self.launch.block_of_d_q(way, step);
            let (value, from) = self.semaphores.get(&place).copied().unwrap_or((0, 0));
            if value != step.rank {
                self.note_wait(now, block);
                self.waiting.insert((place, step.rank), block);
                return;
            }
            if from > now {
                self.note_wait(now, block);
                self.ready.push(Reverse((from, block)));
                return;
            }
            let from = now + self.times.hand_over;
            self.semaphores.insert(place, (value + 1, from));
            if let Some(next) = self.waiting.remove(&(place, value + 1)) {
                self.ready.push(Reverse((from, next)));
            }
        }
        self.trace(block, |lane| lane.resume(now));
        self.at[block as usize].1 += 1;
        if idx + 1 < way.steps.len() {
            let next = now + self.times.step + delay;
            self.ready.push(Reverse((next, block)));
        } else if self.launch.n_shares > 1 {
            self.ready.push(Reverse((now, block)));
        } else {
            self.end_tile(now, block);
        }
    }

    /// A block that has made all steps of a tile adds dV, then dK, to those of the shares before, or begins to wait for these.
    fn add_share(&mut self, now: u64, block: u32) {
        let (tile_idx, idx) = self.at[block as usize];
        let way = &self.ways[tile_idx as usize];
        let nth = idx - way.steps.len();
        let share = way.tile.head % self.launch.n_shares;
        let sum = (way.tile.head / self.launch.n_shares, way.tile.k_block, nth);
        let (next_share, from) = self.sums.get(&sum).copied().unwrap_or((0, 0));
        if next_share != share {
            self.note_wait(now, block);
            self.waiting_for_sums.insert((sum, share), block);
            return;
        }
        if from > now {
            self.note_wait(now, block);
            self.ready.push(Reverse((from, block)));
            return;
        }
        self.trace(block, |lane| lane.resume(now));
        let done = now + self.times.sum;
        let from = done + self.times.hand_over;
        self.sums.insert(sum, (share + 1, from));
        if let Some(next) = self.waiting_for_sums.remove(&(sum, share + 1)) {
            self.ready.push(Reverse((from, next)));
        }
        self.at[block as usize].1 += 1;
        if nth == 0 {
            self.ready.push(Reverse((done, block)));
        } else {
            self.end_tile(done, block);
        }
    }

    /// A block goes on to its next tile.
    fn end_tile(&mut self, now: u64, block: u32) {
        let (tile_idx, _) = self.at[block as usize];
        let doing = self.doing(block);
        let done = now + self.times.end;
        self.trace(block, |lane| lane.end(done, doing));
        let next = tile_idx + block_order::shifted_blocks(&self.launch.schedule);
        self.begin_tile(done, block, next);
    }

    /// The tile that a block works on.
    fn doing(&self, block: u32) -> Doing {
        let tile = self.ways[self.at[block as usize].0 as usize].tile;
        Doing::Tile {
            head: tile.head,
            tile: tile.k_block,
        }
    }

    /// A block begins to wait.
    fn note_wait(&mut self, now: u64, block: u32) {
        let doing = self.doing(block);
        self.trace(block, |lane| lane.wait(now, doing));
    }

    fn trace(&mut self, block: u32, write: impl FnOnce(&mut Lane)) {
        if let Some(lane) = self
            .lanes
            .as_mut()
            .and_then(|lanes| lanes.get_mut(block as usize))
        {
            write(lane);
        }
    }
}

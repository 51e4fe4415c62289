//! A launch of a main backward kernel as its schedule sees it: blocks take tiles, go through their steps, and wait for the
//! dQ semaphore. `tests/tests/schedule` compares the planner's choices with it.

mod launch;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use ferroflash::plan::{DeviceInfo, Plan};
use ferroflash_kernels::attention::block_order;
use ferroflash_kernels::params::{FASTEST, SHIFTED};

pub use launch::{Launch, Step, Way};

use super::{Detail, Doing, Lane, NoTimeline, Timeline};

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
    /// Time to add dV, or dK, of a tile to those of the earlier head splits.
    pub sum: u64,
}

/// In hundredths of a step, which is about 2.2 µs on an H200: 64 queries at head_dim 128, or 128 at head_dim 64. A tile sees a little later that the
/// dQ semaphore has reached it. Measured for flash3; flash2 is assumed to have the same proportions.
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
    /// This many blocks wait for ranks that never come.
    Stuck(usize),
}

/// dV, or dK, of a tile of keys: the KV head, the tile, and which of the two.
type Sum = (u32, u32, usize);

/// A launch that runs.
struct Run<'a> {
    launch: &'a Launch,
    ways: &'a [Way],
    times: Times,
    /// When each block finishes a step and would add.
    ready: BinaryHeap<Reverse<(u64, u32)>>,
    /// The state of each block: its tile_idx, and its step.
    at: Vec<(u32, usize)>,
    /// How many tiles have added to each block of dQ, and when the next may.
    semaphores: HashMap<u32, (u32, u64)>,
    /// The blocks that wait, by block of dQ and rank.
    waiting: HashMap<(u32, u32), u32>,
    /// How many head splits have added to the sums of dV and dK of each tile of keys, and when the next may.
    sums: HashMap<Sum, (u32, u64)>,
    /// The blocks that wait there, by head split.
    waiting_for_sums: HashMap<(Sum, u32), u32>,
    tile_counter: u32,
    launched: u32,
    time: u64,
    /// The stretches of each block; none if not wanted.
    lanes: Vec<Lane>,
    detail: Detail,
}

/// The timeline of a plan's main kernel.
pub(super) fn timeline(plan: &Plan, device: &DeviceInfo) -> Result<Timeline, NoTimeline> {
    let launch = Launch::of_plan(plan, device)?;
    let (steps, most) = (launch.most_steps(), super::MOST_STEPS);
    if steps > most {
        return Err(NoTimeline::TooLong { steps, most });
    }
    trace(&launch, &launch.ways(), Detail::Tiles)
}

/// The timeline of a launch whose tiles have these ways: [`Launch::ways`], or others with their own ranks.
pub fn trace(launch: &Launch, ways: &[Way], detail: Detail) -> Result<Timeline, NoTimeline> {
    let mut run = Run::new(launch, ways, TIMES);
    run.lanes = vec![Lane::default(); launch.grid as usize];
    run.detail = detail;
    match run.go(|_| 0) {
        Ending::Stuck(blocks) => Err(NoTimeline::Stuck { blocks }),
        Ending::Done(_) => Ok(Timeline::new(
            run.lanes,
            launch.resident,
            ways.iter().map(|way| way.steps.len() as u64).sum(),
        )),
    }
}

/// Runs a launch; a step takes longer by `delay` of its block of dQ.
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
            lanes: Vec::new(),
            detail: Detail::Tiles,
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
                None => self.accumulate_head_split(now, block),
            }
        }
        match self.waiting.len() + self.waiting_for_sums.len() {
            0 => Ending::Done(self.time),
            n => Ending::Stuck(n),
        }
    }

    /// Starts the next block of the grid, if there is one.
    fn launch_block(&mut self, now: u64) {
        if self.launched < self.launch.grid {
            let block = self.launched;
            self.launched += 1;
            self.begin_tile(now, block, block);
        }
    }

    /// Gives a block its next tile; without one, it makes room for another block. In the shifted order no tile is claimed: the
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
        self.note_step(now, block, step);
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
        } else if self.launch.n_head_splits > 1 {
            self.ready.push(Reverse((now, block)));
        } else {
            self.end_tile(now, block);
        }
    }

    /// A block that has made all steps of a tile adds dV, then dK, to those of the earlier head splits, or begins to wait for them.
    fn accumulate_head_split(&mut self, now: u64, block: u32) {
        let (tile_idx, idx) = self.at[block as usize];
        let way = &self.ways[tile_idx as usize];
        let nth = idx - way.steps.len();
        let share = way.tile.head % self.launch.n_head_splits;
        let sum = (
            way.tile.head / self.launch.n_head_splits,
            way.tile.k_block,
            nth,
        );
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

    /// A block has made a step, with which it may have waited already.
    fn note_step(&mut self, now: u64, block: u32, step: Step) {
        if self.detail == Detail::Tiles {
            return;
        }
        let tile = self.ways[self.at[block as usize].0 as usize].tile;
        let (of_tile, from) = (self.doing(block), now - self.times.step);
        let of_step = Doing::Step {
            head: tile.head,
            tile: tile.k_block,
            block: step.block,
        };
        self.trace(block, |lane| lane.step(from, now, of_tile, of_step));
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
        if let Some(lane) = self.lanes.get_mut(block as usize) {
            write(lane);
        }
    }
}

//! A launch of flash3's main backward kernel as its schedule sees it: blocks take tiles, go through their steps, and wait for the
//! dQ semaphore.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use ferroflash_kernels::attention::block_order::{self, BlockOrder};
use ferroflash_kernels::attention::mask::{Band, Bounds};
use ferroflash_kernels::attention::schedule::{self, BackwardTile, QueryHeads, Shares};
use ferroflash_kernels::params::{FASTEST, SHIFTED, Schedule, Shape, Window};

/// What is launched.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    pub shape: Shape,
    pub window: Window,
    pub bounds: Bounds,
    pub schedule: Schedule,
    /// Shares of the query heads of a KV head; each is a KV head of `shape`.
    pub n_shares: u32,
    /// How many of them have a query head more than the others.
    pub n_larger_shares: u32,
    pub block_q: u32,
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
    pub tile: BackwardTile,
    pub steps: Vec<Step>,
}

impl Launch {
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
}

/// Runs a launch; a step takes longer by what `delay` says, which is told its block of dQ.
pub fn run(
    launch: &Launch,
    ways: &[Way],
    times: Times,
    mut delay: impl FnMut(u32) -> u64,
) -> Ending {
    let mut run = Run {
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
    };
    for _ in 0..launch.grid.min(launch.resident) {
        run.launch_block(0);
    }
    while let Some(Reverse((now, block))) = run.ready.pop() {
        let (tile_idx, idx) = run.at[block as usize];
        let way = &ways[tile_idx as usize];
        match way.steps.get(idx) {
            Some(&step) => run.add(now, block, delay(launch.block_of_d_q(way, step))),
            None => run.add_share(now, block),
        }
    }
    match run.waiting.len() + run.waiting_for_sums.len() {
        0 => Ending::Done(run.time),
        n => Ending::Stuck(n),
    }
}

impl Run<'_> {
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
                self.waiting.insert((place, step.rank), block);
                return;
            }
            if from > now {
                self.ready.push(Reverse((from, block)));
                return;
            }
            let from = now + self.times.hand_over;
            self.semaphores.insert(place, (value + 1, from));
            if let Some(next) = self.waiting.remove(&(place, value + 1)) {
                self.ready.push(Reverse((from, next)));
            }
        }
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
            self.waiting_for_sums.insert((sum, share), block);
            return;
        }
        if from > now {
            self.ready.push(Reverse((from, block)));
            return;
        }
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
        let next = tile_idx + block_order::shifted_blocks(&self.launch.schedule);
        self.begin_tile(now + self.times.end, block, next);
    }
}

//! Which block of threads works on which tile, and when, by simulation or by a kernel's time stamps: how much of a GPU a plan's schedule leaves
//! idle. It touches no device.
//!
//! ```
//! use ferroflash::plan::{Backend, DeviceInfo, plan};
//! use ferroflash::tensor::Location;
//! use ferroflash_lab::timeline::Timeline;
//! use ferroflash::validate::without_tensors;
//! use ferroflash::{Dtype, Mask, Pass, Problem};
//!
//! let problem = Problem::builder(Dtype::Bf16).seqlen(4096).heads(16).head_dim(128).mask(Mask::Causal).build()?;
//! let checked = without_tensors(&problem, Pass::Backward, Location::Cuda(0))?;
//! let device = DeviceInfo::h200();
//! let plan = plan(&checked, &device, Backend::Cuda, None)?;
//! let idle = Timeline::of_plan(&plan, &device)?.idle();
//! assert!(0.0 < idle.all() && idle.all() < 0.5);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The model
//!
//! A *place* is the slot of one block of threads on an SM; the tile config says how many an SM has. Time is counted in hundredths of a step
//! ([`STEP`]): one block of keys past a tile of queries forward, one block of queries past a tile of keys backward. All steps take the same time,
//! regardless of what else uses the SM, the L2 cache and the memory.
//!
//! - **Forward** ([`forward`]). Tiles begin in their order ([`ferroflash_kernels::attention::schedule`]), each in the place that is free first.
//!   flash3's resident blocks claim them, and the hardware schedules flash2's grid there. A tile takes its beginning, its steps and its end. In
//!   flash1 a block of threads has a
//!   whole head, in both passes; its tiles of keys follow one another.
//! - **Backward** ([`backward`]). Blocks take tiles, and go through the steps that the kernels go through. In the deterministic order, a step waits until
//!   the tiles before it have added to its block of dQ, and head splits wait for each other's dK and dV.
//!
//! The time of tiles in addition to their steps is that of an H200: forward as the estimate has it (`estimate/efficiency.rs`), backward [`backward::TIMES`].
//!
//! A place is idle while it makes no step: before the first product and after the last one of a tile ([`Idle::edges`]), at a semaphore
//! ([`Idle::waits`]), or without a tile ([`Idle::without_tile`]). Only the pass's main kernel is simulated.
//!
//! Time stamps show what a GPU really did: [`Plan::profiled`] is a plan whose main kernel writes them, and [`Measured`] evaluates them.

pub mod backward;
pub mod forward;
mod measured;
pub mod picture;

use ferroflash::plan::{DeviceInfo, Plan, PlannedLaunch};
use ferroflash::{Algorithm, Pass};
use ferroflash_kernels::attention::mask::Bounds;
use ferroflash_kernels::spec::Constant;

pub use measured::{BadStamps, Measured, MeasuredLane};

/// Hundredths of a step: the unit of time.
pub const STEP: u64 = 100;

/// The most steps of a simulation: they take some hundred megabytes and a few seconds.
const MOST_STEPS: u64 = 8 << 20;

/// Why a plan has no timeline.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoTimeline {
    /// No launch takes tiles in an order.
    #[error("no kernel of {0} takes tiles in an order that is planned")]
    NoTiles(Algorithm),
    /// Tiles depend on data that planning does not see.
    #[error("the device decides which tiles there are, by {what}")]
    DecidedOnDevice {
        /// The data.
        what: &'static str,
    },
    /// Few queries: memory, not steps, bounds the tiles.
    #[error("tiles of few queries are bound by memory, which the simulation has not")]
    FewQueries,
    /// A simulation would take too long.
    #[error("there are up to {steps} steps; simulated are at most {most}")]
    TooLong {
        /// An upper bound of the steps.
        steps: u64,
        /// The limit.
        most: u64,
    },
    /// Blocks of threads deadlock: the schedule is wrong.
    #[error("{blocks} blocks of threads wait without end")]
    Stuck {
        /// How many.
        blocks: usize,
    },
}

/// The activity of a block of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// It works on a tile; with [`Detail::Steps`], before the first or after the last step.
    Tile {
        /// Of which head, of all batch entries. Backward it is a head of k, and each head split of one counts.
        head: u32,
        /// Which tile: of queries forward, of keys backward and in flash1.
        tile: u32,
    },
    /// A step of a tile.
    Step {
        /// As in [`Doing::Tile`].
        head: u32,
        /// As in [`Doing::Tile`].
        tile: u32,
        /// Which block of queries passes.
        block: u32,
    },
    /// It waits at a semaphore.
    Wait,
}

/// The resolution of a timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// A stretch for a tile, as long as it does not wait.
    Tiles,
    /// A stretch for each step.
    Steps,
}

/// A stretch of time of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// When it begins.
    pub from: u64,
    /// When it ends.
    pub until: u64,
    /// The activity.
    pub doing: Doing,
}

/// The stretches of every place, from the launch on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// Stretches of the places that have tiles, in the order of time.
    pub lanes: Vec<Vec<Stretch>>,
    /// How many places the device has.
    pub n_places: u32,
    /// Steps of all tiles.
    pub n_steps: u64,
}

/// Idle fractions of the time of all places, from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Idle {
    /// Beginnings and ends of tiles.
    pub edges: f64,
    /// Waits at semaphores.
    pub waits: f64,
    /// Places that have no tile yet, or no more.
    pub without_tile: f64,
}

impl Idle {
    /// Their sum: the fraction of the time in which no step is made.
    pub fn all(&self) -> f64 {
        self.edges + self.waits + self.without_tile
    }
}

impl Timeline {
    /// The timeline of a plan's main kernel on a device.
    pub fn of_plan(plan: &Plan, device: &DeviceInfo) -> Result<Timeline, NoTimeline> {
        match (plan.pass, plan.algorithm) {
            (Pass::Backward, Algorithm::Flash1) => forward::timeline(plan, device),
            (Pass::Backward, _) => backward::timeline(plan, device),
            (Pass::Forward | Pass::ForwardWithWeights, _) => forward::timeline(plan, device),
        }
    }

    fn new(lanes: Vec<Lane>, n_places: u32, n_steps: u64) -> Timeline {
        let lanes = lanes.into_iter().map(|lane| lane.stretches);
        Timeline {
            lanes: lanes.filter(|lane| !lane.is_empty()).collect(),
            n_places,
            n_steps,
        }
    }

    /// When the last tile ends.
    pub fn end(&self) -> u64 {
        let last = self.lanes.iter().filter_map(|lane| lane.last());
        last.map(|stretch| stretch.until).max().unwrap_or(0)
    }

    /// The same in steps, for pictures and texts.
    pub fn end_in_steps(&self) -> String {
        format!("{:.1}", self.end() as f64 / STEP as f64)
    }

    /// The idle fractions of the time.
    pub fn idle(&self) -> Idle {
        let all = (self.end() * u64::from(self.n_places)) as f64;
        if all == 0.0 {
            return Idle::default();
        }
        let (mut waits, mut tiles) = (0, 0);
        for stretch in self.lanes.iter().flatten() {
            let len = stretch.until - stretch.from;
            match stretch.doing {
                Doing::Wait => waits += len,
                Doing::Tile { .. } | Doing::Step { .. } => tiles += len,
            }
        }
        let (waits, tiles) = (waits as f64, tiles as f64);
        Idle {
            edges: (tiles - (self.n_steps * STEP) as f64) / all,
            waits: waits / all,
            without_tile: (all - tiles - waits) / all,
        }
    }
}

/// The stretches of a place so far.
#[derive(Clone, Debug, Default)]
struct Lane {
    stretches: Vec<Stretch>,
    /// When the present stretch of a tile began.
    from: u64,
    /// Since when it waits.
    waits_since: Option<u64>,
}

impl Lane {
    /// A tile begins.
    fn begin(&mut self, now: u64) {
        self.from = now;
    }

    /// The tile begins to wait, if it does not wait already.
    fn wait(&mut self, now: u64, doing: Doing) {
        if self.waits_since.is_none() {
            self.push(self.from, now, doing);
            self.waits_since = Some(now);
        }
    }

    /// The tile goes on, if it has waited.
    fn resume(&mut self, now: u64) {
        if let Some(since) = self.waits_since.take() {
            self.push(since, now, Doing::Wait);
            self.from = now;
        }
    }

    /// A step of the tile ends that began at `from`, if the tile does not wait with it already.
    fn step(&mut self, from: u64, now: u64, tile: Doing, step: Doing) {
        if self.waits_since.is_none() {
            self.push(self.from, from, tile);
            self.push(from, now, step);
            self.from = now;
        }
    }

    /// The tile ends.
    fn end(&mut self, now: u64, doing: Doing) {
        self.push(self.from, now, doing);
    }

    fn push(&mut self, from: u64, until: u64, doing: Doing) {
        if from < until {
            self.stretches.push(Stretch { from, until, doing });
        }
    }
}

/// The launch whose tiles a schedule orders.
fn main_kernel(plan: &Plan) -> Result<&PlannedLaunch, NoTimeline> {
    plan.main_launch()
        .ok_or(NoTimeline::NoTiles(plan.algorithm))
}

/// Refuses a kernel whose tiles the plan does not know.
fn not_on_device(main: &PlannedLaunch) -> Result<(), NoTimeline> {
    let by = |constant, what| match main.spec.has(constant) {
        true => Err(NoTimeline::DecidedOnDevice { what }),
        false => Ok(()),
    };
    by(Constant::Lengths, "the lengths of sequences")?;
    by(Constant::BlockMask, "a block mask or the map of a mask")
}

/// The sides on which the kernel's mask ends.
fn bounds(main: &PlannedLaunch) -> Bounds {
    let has = |constant| main.spec.has(constant);
    Bounds {
        left: has(Constant::LeftBound),
        right: has(Constant::RightBound),
        prefix: has(Constant::Prefix),
    }
}

#[cfg(test)]
mod tests;

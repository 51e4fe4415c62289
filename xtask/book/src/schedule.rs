//! Which block of threads works on which tile when: plans of the library's own planner, played on a GPU of a few SMs.
//!
//! One unit of time is a step: one block of keys past a tile of queries, or backward one block of queries past a tile of keys. What a tile
//! takes beside its steps is left out.

mod backward;
mod forward;
mod picture;

use anyhow::{Context, Result, bail};
use ferroflash::plan::{Algorithm, Backend, DeviceInfo, PlannedLaunch, plan};
use ferroflash::tensor::Place;
use ferroflash::validate::{Pass, without_tensors};
use ferroflash::{Dtype, Mask, Problem};
use ferroflash_kernels::attention::mask::{Band, Bounds};
use ferroflash_kernels::params::{
    BackwardParams, ForwardParams, Params, Schedule, Shape, TmaBackwardParams, TmaForwardParams,
    Window,
};
use ferroflash_kernels::spec::Constant;
use ferroflash_kernels::variants::Kind;

pub use backward::{Deterministic, deterministic};
pub use forward::{Order, flash1, flash1_tiles, forward};
pub use picture::{CAUSAL_BACKWARD, FULL_BACKWARD, N_SMS_BACKWARD, pictures};

/// The SMs of the GPU of the pictures.
pub const N_SMS: u32 = 4;

/// What a block of threads does at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// Steps of a tile, of a head: which one, how many.
    Tile {
        /// Of which head.
        head: u32,
        /// Which tile.
        tile: u32,
    },
    /// A step of a tile: it adds to this block of dQ.
    Step {
        /// Which block of queries.
        block: u32,
        /// Of how many.
        of: u32,
    },
    /// It waits at the dQ semaphore.
    Wait,
}

/// A stretch of time of a block of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// When it begins.
    pub from: u32,
    /// How many steps.
    pub len: u32,
    /// What is done.
    pub doing: Doing,
}

/// What every place for a block of threads does, from the first step on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// The places: so many on each SM.
    pub lanes: Vec<Vec<Stretch>>,
}

impl Timeline {
    /// When the last one ends.
    pub fn end(&self) -> u32 {
        let ends = self.lanes.iter().flatten();
        ends.map(|stretch| stretch.from + stretch.len)
            .max()
            .unwrap_or(0)
    }

    /// Steps of all places in which something is done.
    pub fn busy(&self) -> u32 {
        let doing = self.lanes.iter().flatten();
        doing
            .filter(|stretch| stretch.doing != Doing::Wait)
            .map(|stretch| stretch.len)
            .sum()
    }

    /// The share of the time in which places do something, in percent.
    pub fn busy_percent(&self) -> u32 {
        let all = self.end() * self.lanes.len() as u32;
        (100 * self.busy() + all / 2) / all.max(1)
    }
}

/// The main kernel of a plan for the pictures' GPU.
#[derive(Clone, Copy, Debug)]
pub struct Planned {
    /// Its launch.
    pub launch: PlannedLaunch,
    /// Order of its tiles.
    pub schedule: Schedule,
    /// Sizes.
    pub shape: Shape,
    /// The mask.
    pub band: Band,
}

impl Planned {
    /// As the planner has it; `n_sms` is that of the GPU, which is an H200 otherwise.
    pub fn new(problem: &Problem, pass: Pass, algorithm: Algorithm, n_sms: u32) -> Result<Planned> {
        let device = DeviceInfo {
            n_sms,
            ..DeviceInfo::h200()
        };
        let checked = without_tensors(problem, pass, Place::Cuda(0))?;
        let plan = plan(&checked, &device, Backend::Cuda, Some(algorithm))?;
        let is_main = |launch: &&PlannedLaunch| {
            let kind = launch.variant.kind;
            matches!(
                kind,
                Kind::Forward | Kind::TmaForward | Kind::Backward | Kind::TmaBackward
            )
        };
        let main = plan.launches.iter().find(is_main);
        let launch = *main.context("the plan has no main kernel")?;
        let (schedule, shape, window) = parts(&launch.params)?;
        let has = |constant| launch.spec.has(constant);
        let bounds = Bounds {
            left: has(Constant::LeftBound),
            right: has(Constant::RightBound),
            prefix: has(Constant::Prefix),
        };
        Ok(Planned {
            launch,
            schedule,
            shape,
            band: Band::new(shape.seqlen_q, shape.seqlen_k, window, bounds),
        })
    }

    /// Places for its blocks of threads on the GPU.
    pub fn resident(&self, n_sms: u32) -> u32 {
        n_sms * self.launch.variant.footprint.blocks_per_sm
    }
}

/// What the parameters of main kernels have in common.
fn parts(params: &Params) -> Result<(Schedule, Shape, Window)> {
    Ok(match *params {
        Params::Forward(ForwardParams {
            schedule,
            shape,
            window,
            ..
        })
        | Params::TmaForward(TmaForwardParams {
            schedule,
            shape,
            window,
            ..
        })
        | Params::Backward(BackwardParams {
            schedule,
            shape,
            window,
            ..
        })
        | Params::TmaBackward(TmaBackwardParams {
            pass:
                BackwardParams {
                    schedule,
                    shape,
                    window,
                    ..
                },
            ..
        }) => (schedule, shape, window),
        _ => bail!("this kernel has no order of tiles"),
    })
}

/// bf16, head_dim 128, one batch entry.
pub fn problem(heads: usize, seqlen: usize, mask: Mask) -> Result<Problem> {
    let builder = Problem::builder(Dtype::Bf16).seqlen(seqlen).heads(heads);
    Ok(builder.head_dim(128).mask(mask).build()?)
}

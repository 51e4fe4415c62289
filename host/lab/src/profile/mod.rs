//! A problem kernel by kernel, beside what the estimate and a simulation of the schedule say of it; which block of threads worked on which tile when. Who measures
//! puts times and counters in.

mod panel;
mod plot;
mod table;

use ferroflash::Problem;
use ferroflash::backend::cuda::module::Statistics;
use ferroflash::plan::{DeviceInfo, NoStamps, Plan, PlannedLaunch};

use crate::estimate::{Estimate, EstimateError, Gpu};
use crate::timeline::{BadStamps, Measured, NoTimeline, Timeline};

/// All that is known of a problem. Its `Display` is a table for each pass.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Where it runs, or would run.
    pub device: DeviceInfo,
    /// The limits that times are compared with; why there are none.
    pub gpu: Result<Gpu, EstimateError>,
    /// The problem.
    pub problem: Problem,
    /// Its passes.
    pub passes: Vec<OfPass>,
}

/// A pass.
#[derive(Clone, Debug)]
pub struct OfPass {
    /// What runs.
    pub plan: Plan,
    /// Of the plan's algorithm; `None` where it is not counted.
    pub estimate: Option<Estimate>,
    /// The simulated schedule.
    pub timeline: Result<Timeline, NoTimeline>,
    /// What a profiled kernel recorded, or why none did; `None` where nothing ran.
    pub measured: Option<Result<Measured, NotMeasured>>,
    /// Its launches.
    pub kernels: Vec<Kernel>,
    /// Milliseconds of a call, where it was measured.
    pub call_ms: Option<f64>,
}

/// A launch.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// As it is planned.
    pub launch: PlannedLaunch,
    /// What the driver's compiler made of it.
    pub compiled: Option<Statistics>,
    /// Milliseconds, where it was measured.
    pub ms: Option<f64>,
    /// What `ncu` counted, where it was asked.
    pub counters: Option<Counters>,
}

/// What `ncu` counted of a launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counters {
    /// Share of the kernel's cycles in which tensor cores are busy, percent.
    pub tensor_percent: f64,
    /// Bytes read from memory.
    pub read_bytes: f64,
    /// Bytes written to memory.
    pub written_bytes: f64,
}

/// Why it is not known which block of threads worked on which tile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotMeasured {
    /// There is no profiled copy that serves.
    #[error(transparent)]
    NoStamps(#[from] NoStamps),
    /// What it recorded makes no sense.
    #[error("the time stamps make no sense: {0}")]
    Bad(#[from] BadStamps),
}

impl OfPass {
    /// What a plan says; nothing is measured yet.
    pub fn new(plan: Plan, gpu: Option<&Gpu>, device: &DeviceInfo) -> OfPass {
        let kernel = |&launch: &PlannedLaunch| Kernel {
            launch,
            compiled: None,
            ms: None,
            counters: None,
        };
        OfPass {
            estimate: gpu
                .and_then(|gpu| Estimate::of(&plan.problem, gpu, plan.pass, plan.algorithm)),
            timeline: Timeline::of_plan(&plan, device),
            measured: None,
            kernels: plan.launches.iter().map(kernel).collect(),
            call_ms: None,
            plan,
        }
    }

    /// Milliseconds of all launches, if they were measured.
    fn sum_ms(&self) -> Option<f64> {
        self.kernels.iter().map(|kernel| kernel.ms).sum()
    }
}

impl Kernel {
    /// Blocks of threads that an SM holds: by the driver, or else by the kernel's tile config.
    fn blocks_per_sm(&self) -> u32 {
        let compiled = self.compiled.as_ref();
        compiled.map_or(self.launch.variant.tile_config.blocks_per_sm, |compiled| {
            compiled.blocks_per_sm
        })
    }
}

#[cfg(test)]
mod tests;

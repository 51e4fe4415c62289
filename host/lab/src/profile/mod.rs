//! A problem kernel by kernel, compared with the estimate and a simulation of the schedule; which block of threads worked on which tile, and when.
//! The measuring program fills in times and counters.

mod panel;
mod plot;
mod table;

use ferroflash::Problem;
use ferroflash::backend::cuda::module::Statistics;
use ferroflash::plan::{DeviceInfo, NoStamps, Plan, PlannedLaunch};

use crate::estimate::{Estimate, EstimateError, Gpu};
use crate::timeline::{BadStamps, Measured, NoTimeline, Timeline};

/// The profile of a problem. Its `Display` is a table for each pass.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The device that it runs on, or would run on.
    pub device: DeviceInfo,
    /// The limits that times are compared with, or why there are none.
    pub gpu: Result<Gpu, EstimateError>,
    /// The problem.
    pub problem: Problem,
    /// Its passes.
    pub passes: Vec<OfPass>,
}

/// A pass.
#[derive(Clone, Debug)]
pub struct OfPass {
    /// The plan.
    pub plan: Plan,
    /// The estimate of the plan's algorithm; `None` if the model does not cover it.
    pub estimate: Option<Estimate>,
    /// The simulated schedule.
    pub timeline: Result<Timeline, NoTimeline>,
    /// The records of a profiled kernel, or why there are none; `None` if nothing ran.
    pub measured: Option<Result<Measured, NotMeasured>>,
    /// Its launches.
    pub kernels: Vec<Kernel>,
    /// Milliseconds of a call, if it was measured.
    pub call_ms: Option<f64>,
}

/// A launch.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The planned launch.
    pub launch: PlannedLaunch,
    /// The compiled kernel's properties.
    pub compiled: Option<Statistics>,
    /// Milliseconds, if it was measured.
    pub ms: Option<f64>,
    /// Counters of `ncu`, if asked for.
    pub counters: Option<Counters>,
}

/// Counters of `ncu` for a launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counters {
    /// Percentage of the kernel's cycles in which tensor cores are busy.
    pub tensor_percent: f64,
    /// Bytes read from memory.
    pub read_bytes: f64,
    /// Bytes written to memory.
    pub written_bytes: f64,
}

/// Why it is not known which block of threads worked on which tile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotMeasured {
    /// There is no suitable profiled copy.
    #[error(transparent)]
    NoStamps(#[from] NoStamps),
    /// Its records are inconsistent.
    #[error("the time stamps make no sense: {0}")]
    Bad(#[from] BadStamps),
}

impl OfPass {
    /// The profile of a plan, without measurements.
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
    /// Resident blocks of threads per SM: from the driver, or else from the kernel's tile config.
    fn blocks_per_sm(&self) -> u32 {
        let compiled = self.compiled.as_ref();
        compiled.map_or(self.launch.variant.tile_config.blocks_per_sm, |compiled| {
            compiled.blocks_per_sm
        })
    }
}

#[cfg(test)]
mod tests;

//! A merge planned: one launch, without a workspace.

use std::fmt;

use ferroflash_kernels::params::{MergeParams, Params};
use ferroflash_kernels::spec::Spec;
use ferroflash_kernels::variants::{Kind, VARIANTS, Variant};

use super::planned::Planned;
use super::{
    Backend, DeviceInfo, PlannedLaunch, Reason, SpecialisedKernel, WorkspaceLayout, eligible, views,
};
use crate::arguments::Argument;
use crate::error::PlanError;
use crate::problem::merge::MergeProblem;
use crate::validate::merge::CheckedMerge;

/// The most rows that the kernel counts.
const MAX_ROWS: u64 = i32::MAX as u64;

/// All that is decided before a merge is launched.
#[derive(Clone, Debug, PartialEq)]
pub struct MergePlan {
    /// What runs it.
    pub backend: Backend,
    /// What is merged.
    pub problem: MergeProblem,
    /// The kernel. None on the CPU, and where there is nothing to merge.
    pub launch: Option<PlannedLaunch>,
    /// Memory beside inputs and outputs: none.
    pub(super) workspace: WorkspaceLayout,
}

impl MergePlan {
    /// The kernel.
    pub fn kernel(&self) -> Option<SpecialisedKernel> {
        self.launch.as_ref().map(PlannedLaunch::kernel)
    }

    /// The parameters of the launch, with every address filled in, as [`Plan::params`](super::Plan::params) gives them.
    pub fn params(&self, address: impl Fn(Argument) -> u64) -> Option<Params> {
        let launch = self.launch.as_ref()?;
        Some(self.bound(launch, 0, address))
    }
}

/// Plans a checked merge for a GPU (or the emulator's) or for the CPU.
pub fn plan_merge(
    checked: &CheckedMerge,
    device: &DeviceInfo,
    backend: Backend,
) -> Result<MergePlan, PlanError> {
    let launch = match backend {
        Backend::Cpu => Ok(None),
        Backend::Cuda | Backend::Emulated => launch(checked, device),
    };
    match launch {
        Ok(launch) => Ok(MergePlan {
            backend,
            problem: *checked.problem(),
            launch,
            workspace: WorkspaceLayout::default(),
        }),
        Err(reason) => Err(PlanError::Merge { backend, reason }),
    }
}

fn launch(checked: &CheckedMerge, device: &DeviceInfo) -> Result<Option<PlannedLaunch>, Reason> {
    let problem = checked.problem();
    let dtype = problem.dtype();
    let variant = VARIANTS
        .iter()
        .find(|row| row.kind == Kind::Merge && row.dtype == dtype.of_kernels())
        .ok_or(Reason::Dtype { given: dtype })?;
    can_run(variant, checked, device)?;
    if problem.n_rows() == 0 {
        return Ok(None);
    }
    let [_, seqlen, heads, head_dim] = problem.shape();
    let n_rows = problem.n_rows() as u32;
    // Each fits: there are rows, and the product of the sizes is their number.
    let params = MergeParams {
        n_rows,
        seqlen: seqlen as u32,
        heads: heads as u32,
        head_dim: head_dim as u32,
        ..MergeParams::default()
    };
    Ok(Some(PlannedLaunch {
        variant,
        spec: Spec::PLAIN,
        grid: n_rows.div_ceil(variant.footprint.block_q),
        params: views::describe(Params::Merge(params), checked.arguments()),
    }))
}

/// Whether the kernel can merge these tensors on this device.
fn can_run(variant: &Variant, checked: &CheckedMerge, device: &DeviceInfo) -> Result<(), Reason> {
    let problem = checked.problem();
    let [.., head_dim] = problem.shape();
    eligible::head_dim(variant, head_dim)?;
    eligible::compute_capability(variant, device)?;
    if problem.n_rows() > MAX_ROWS {
        return Err(Reason::TooLarge {
            what: "batch · heads · seqlen",
            given: problem.n_rows(),
            limit: MAX_ROWS,
        });
    }
    eligible::alignment(checked.arguments())
}

impl fmt::Display for MergePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Merge on {}", self.backend)?;
        writeln!(f, "  problem   {}", self.problem)?;
        match &self.launch {
            Some(launch) => writeln!(
                f,
                "  launch    {} grid {} threads {}",
                launch.kernel(),
                launch.grid,
                launch.variant.footprint.threads
            ),
            None => Ok(()),
        }
    }
}

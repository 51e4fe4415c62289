//! Operations other than attention, planned: one launch at most, without a workspace.

use std::fmt;

use ferroflash_kernels::params::Params;
use ferroflash_kernels::variants::{Kind, VARIANTS, Variant};

use super::planned::Planned;
use super::{
    Backend, DeviceInfo, PlannedLaunch, Reason, SpecialisedKernel, WorkspaceLayout, eligible,
};
use crate::arguments::{Argument, ByArgument, Need, Operation};
use crate::dtype::Dtype;
use crate::error::PlanError;
use crate::validate::operation::CheckedOperation;

/// All decisions before an operation is launched.
///
/// The [module](mod@crate::plan) has an example.
#[derive(Clone, Debug, PartialEq)]
pub struct OperationPlan<P> {
    /// The backend.
    pub backend: Backend,
    /// The operation.
    pub problem: P,
    /// The kernel. None on the CPU, or if there is nothing to do.
    pub launch: Option<PlannedLaunch>,
    verb: &'static str,
    dtype: Dtype,
    needs: ByArgument<Option<Need>>,
    /// Memory in addition to inputs and outputs: none.
    workspace: WorkspaceLayout,
}

impl<P> OperationPlan<P> {
    /// The kernel.
    pub fn kernel(&self) -> Option<SpecialisedKernel> {
        self.launch.as_ref().map(PlannedLaunch::kernel)
    }

    /// The parameters of the launch, with every address filled in, as [`Plan::params`](super::Plan::params) gives them.
    pub fn params(&self, address: impl Fn(Argument) -> u64) -> Option<Params> {
        let launch = self.launch.as_ref()?;
        Some(self.bound(launch, 0, address, None))
    }
}

/// Plans an operation for a GPU (or the emulator's) or for the CPU. `launch` returns the launch on a GPU.
pub(super) fn plan_operation<P: Operation>(
    checked: &CheckedOperation<P>,
    device: &DeviceInfo,
    backend: Backend,
    launch: fn(&CheckedOperation<P>, &DeviceInfo) -> Result<Option<PlannedLaunch>, Reason>,
) -> Result<OperationPlan<P>, PlanError> {
    let problem = *checked.problem();
    let launch = match backend {
        Backend::Cpu => Ok(None),
        Backend::Cuda | Backend::Emulated => launch(checked, device),
    };
    match launch {
        Ok(launch) => Ok(OperationPlan {
            backend,
            problem,
            launch,
            verb: P::VERB,
            dtype: problem.dtype(),
            needs: problem.needs(),
            workspace: WorkspaceLayout::default(),
        }),
        Err(reason) => Err(PlanError::Operation {
            backend,
            verb: P::VERB,
            reason,
        }),
    }
}

/// The kernel of an operation, if it can work on these tensors on this device.
pub(super) fn kernel<P: Operation>(
    kind: Kind,
    head_dim: usize,
    checked: &CheckedOperation<P>,
    device: &DeviceInfo,
) -> Result<&'static Variant, Reason> {
    let given = checked.problem().dtype();
    let mut rows = VARIANTS.iter();
    let variant = rows
        .find(|row| row.kind == kind && row.dtype == Some(given.of_kernels()))
        .ok_or(Reason::Dtype { given })?;
    eligible::head_dim(variant.head_dims(), head_dim)?;
    eligible::compute_capability(variant, device)?;
    eligible::alignment(checked.arguments())?;
    Ok(variant)
}

/// Whether the kernel can count this far: up to 31 bits.
pub(super) fn counts<const N: usize>(sizes: [(&'static str, u64); N]) -> Result<(), Reason> {
    let limit = i32::MAX as u64;
    match sizes.into_iter().find(|&(_, given)| given > limit) {
        Some((what, given)) => Err(Reason::TooLarge { what, given, limit }),
        None => Ok(()),
    }
}

impl<P> Planned for OperationPlan<P> {
    fn planned_launches(&self) -> &[PlannedLaunch] {
        self.launch.as_slice()
    }

    fn workspace_layout(&self) -> &WorkspaceLayout {
        &self.workspace
    }

    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn need(&self, argument: Argument) -> Option<Need> {
        self.needs[argument]
    }
}

/// A line for the backend, one for the problem, and one for the launch.
impl<P: fmt::Display> fmt::Display for OperationPlan<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} on {}", self.verb, self.backend)?;
        writeln!(f, "  problem   {}", self.problem)?;
        match &self.launch {
            Some(launch) => writeln!(
                f,
                "  launch    {} grid {} threads {}",
                launch.kernel(),
                launch.grid,
                launch.variant.tile_config.threads
            ),
            None => Ok(()),
        }
    }
}

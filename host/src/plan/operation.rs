//! Operations other than attention, planned: a launch or two, or none.

use std::fmt;

use ferroflash_kernels::params::Params;
use ferroflash_kernels::spec::Spec;
use ferroflash_kernels::variants::{Kind, VARIANTS, Variant};

use super::planned::Planned;
use super::{
    Backend, DeviceInfo, PlannedLaunch, Reason, SpecialisedKernel, WorkspaceLayout, eligible, views,
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
    /// The launches, in order. None on the CPU, or if there is nothing to do.
    pub launches: Vec<PlannedLaunch>,
    /// Memory in addition to inputs and outputs.
    pub workspace: WorkspaceLayout,
    verb: &'static str,
    dtype: Dtype,
    needs: ByArgument<Option<Need>>,
}

impl<P> OperationPlan<P> {
    /// The kernel that writes the results. One that finds maxima alone is not it.
    pub fn kernel(&self) -> Option<SpecialisedKernel> {
        let mut launches = self.launches.iter().rev();
        let main = launches.find(|launch| launch.variant.kind != Kind::Amax);
        main.map(PlannedLaunch::kernel)
    }

    /// The parameters of each launch, with every address filled in, as [`Plan::params`](super::Plan::params) gives them.
    pub fn params(&self, workspace: u64, address: impl Fn(Argument) -> u64) -> Vec<Params> {
        let bound = |launch| self.bound(launch, workspace, &address, None);
        self.launches.iter().map(bound).collect()
    }
}

/// What a GPU does for an operation.
#[derive(Default)]
pub(super) struct Launches {
    launches: Vec<PlannedLaunch>,
    /// What they leave for each other.
    pub(super) workspace: WorkspaceLayout,
}

impl Launches {
    /// A kernel of the operation, after the others.
    pub(super) fn push<P>(
        &mut self,
        checked: &CheckedOperation<P>,
        variant: &'static Variant,
        grid: u32,
        params: Params,
    ) {
        self.launches.push(PlannedLaunch {
            variant,
            spec: Spec::PLAIN,
            edit: None,
            grid,
            params: views::describe(params, variant, checked.arguments()),
        });
    }
}

/// Plans an operation for a GPU (or the emulator's) or for the CPU. `launches` returns those on a GPU.
pub(super) fn plan_operation<P: Operation>(
    checked: &CheckedOperation<P>,
    device: &DeviceInfo,
    backend: Backend,
    launches: fn(&CheckedOperation<P>, &DeviceInfo) -> Result<Launches, Reason>,
) -> Result<OperationPlan<P>, PlanError> {
    let problem = *checked.problem();
    let launches = match backend {
        Backend::Cpu => Ok(Launches::default()),
        Backend::Cuda | Backend::Emulated => launches(checked, device),
    };
    match launches {
        Ok(Launches {
            launches,
            workspace,
        }) => Ok(OperationPlan {
            backend,
            problem,
            launches,
            workspace,
            verb: P::VERB,
            dtype: problem.dtype(),
            needs: problem.needs(),
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
        &self.launches
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

/// A line for the backend, one for the problem, and one for each launch.
impl<P: fmt::Display> fmt::Display for OperationPlan<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} on {}", self.verb, self.backend)?;
        writeln!(f, "  problem   {}", self.problem)?;
        for launch in &self.launches {
            writeln!(
                f,
                "  launch    {} grid {} threads {}",
                launch.kernel(),
                launch.grid,
                launch.variant.tile_config.threads
            )?;
        }
        Ok(())
    }
}

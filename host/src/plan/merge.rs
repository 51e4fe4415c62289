//! A merge planned.

use ferroflash_kernels::params::{MergeParams, Params};
use ferroflash_kernels::variants::Kind;

use super::operation::{Launches, OperationPlan, counts, kernel, plan_operation};
use super::{Backend, DeviceInfo, Reason};
use crate::error::PlanError;
use crate::problem::merge::MergeProblem;
use crate::validate::merge::CheckedMerge;

/// The plan made before a merge is launched.
///
/// The [module](mod@crate::plan) has an example.
pub type MergePlan = OperationPlan<MergeProblem>;

/// Plans a checked merge for a GPU (or the emulator's) or for the CPU.
///
/// The [module](mod@crate::plan) has an example.
pub fn plan_merge(
    checked: &CheckedMerge,
    device: &DeviceInfo,
    backend: Backend,
) -> Result<MergePlan, PlanError> {
    plan_operation(checked, device, backend, launches)
}

fn launches(checked: &CheckedMerge, device: &DeviceInfo) -> Result<Launches, Reason> {
    let problem = checked.problem();
    let [_, seqlen, heads, head_dim] = problem.shape();
    let variant = kernel(Kind::Merge, head_dim, checked, device)?;
    counts([("batch · heads · seqlen", problem.n_rows())])?;
    let mut launches = Launches::default();
    if problem.n_rows() == 0 {
        return Ok(launches);
    }
    let n_rows = problem.n_rows() as u32;
    // Each fits: there are rows, and the product of the sizes is their number.
    let params = MergeParams {
        n_rows,
        seqlen: seqlen as u32,
        heads: heads as u32,
        head_dim: head_dim as u32,
        ..MergeParams::default()
    };
    let grid = n_rows.div_ceil(variant.tile_config.block_q);
    launches.push(checked, variant, grid, Params::Merge(params));
    Ok(launches)
}

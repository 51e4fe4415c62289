//! The launches of flash3's backward pass.

use ferroflash_kernels::config;
use ferroflash_kernels::params::{Params, TmaBackwardParams};
use ferroflash_kernels::variants::Kind;

use super::WARPGROUP_ROWS;
use crate::plan::backward::{self, Cut};
use crate::plan::reason::Reason;
use crate::plan::select::PassKernels;
use crate::plan::tensor_map::boxes;
use crate::plan::workspace::WorkspaceLayout;
use crate::plan::{DeviceInfo, PlannedLaunch, schedule};
use crate::validate::Checked;

/// Δ, then the main kernel: see [`backward::launches`].
pub fn launches(
    checked: &Checked,
    device: &DeviceInfo,
    kernels: &PassKernels,
    workspace: &mut WorkspaceLayout,
) -> Result<Vec<PlannedLaunch>, Reason> {
    let Some(main) = kernels.of_kind(Kind::TmaBackward) else {
        return Ok(Vec::new());
    };
    let problem = checked.problem();
    let footprint = &main.footprint;
    let cut = Cut::new(problem, footprint);
    let columns = config::padded_columns(main.head_dim.unwrap_or(problem.head_dim() as u32));
    let schedule = schedule::tma_backward(problem, &cut, device, footprint);
    let pass = backward::params(checked, &cut, columns, schedule, workspace)?;
    let params = TmaBackwardParams {
        q: boxes(footprint.block_q, 1),
        k: boxes(footprint.block_k, 1),
        v: boxes(footprint.block_k, 1),
        d_o: boxes(footprint.block_q, 1),
        d_k: boxes(WARPGROUP_ROWS, 1),
        d_v: boxes(WARPGROUP_ROWS, 1),
        pass,
    };
    backward::launches(
        checked,
        device,
        kernels,
        &cut,
        &pass,
        Params::TmaBackward(params),
    )
}

//! The launches of flash3's backward pass.

use ferroflash_kernels::config;
use ferroflash_kernels::params::{Params, TmaBackwardParams};
use ferroflash_kernels::variants::Kind;

use super::{WARPGROUP_ROWS, place};
use crate::plan::backward;
use crate::plan::reason::Reason;
use crate::plan::schedule::TmaBackward;
use crate::plan::select::PassKernels;
use crate::plan::tensor_map::tensor_map;
use crate::plan::workspace::WorkspaceLayout;
use crate::plan::{Addresses, DeviceInfo, PlannedLaunch, schedule};
use crate::validate::Checked;

/// Δ, then the main kernel: see [`backward::launches`].
pub fn launches(
    checked: &Checked,
    device: &DeviceInfo,
    kernels: &PassKernels,
    workspace: &mut WorkspaceLayout,
) -> Result<Vec<PlannedLaunch>, Reason> {
    let (Some(main), Some(gradients)) = (kernels.of_kind(Kind::TmaBackward), checked.gradients())
    else {
        return Ok(Vec::new());
    };
    let problem = checked.problem();
    let footprint = &main.footprint;
    let columns = config::padded_columns(main.head_dim.unwrap_or(problem.head_dim as u32));
    let TmaBackward { cut, schedule, .. } = schedule::tma_backward(problem, device, footprint);
    let pass = backward::params(checked, main, &cut, columns, schedule, workspace)?;
    let tensors = checked.forward();
    let params = TmaBackwardParams {
        q: tensor_map(&tensors.q, footprint.block_q, 1),
        k: tensor_map(&tensors.k, footprint.block_k, 1),
        v: tensor_map(&tensors.v, footprint.block_k, 1),
        d_o: tensor_map(&gradients.d_o, footprint.block_q, 1),
        d_k: tensor_map(&gradients.d_k, WARPGROUP_ROWS, 1),
        d_v: tensor_map(&gradients.d_v, WARPGROUP_ROWS, 1),
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

/// Fills the addresses in. Without keys, k, v and their gradients lie nowhere.
pub fn bind(mut params: TmaBackwardParams, at: &Addresses) -> TmaBackwardParams {
    let seqlen_k = params.pass.shape.seqlen_k;
    params.q.base = at.q;
    params.d_o.base = at.d_o;
    params.k.base = place(seqlen_k, at.k, at.q);
    params.v.base = place(seqlen_k, at.v, at.q);
    params.d_k.base = place(seqlen_k, at.d_k, at.q);
    params.d_v.base = place(seqlen_k, at.d_v, at.q);
    params.pass = backward::bind(params.pass, at);
    params
}

//! Launches of flash1: a block of threads for every query head, in the backward pass for every KV head.

use ferroflash_kernels::params::{FASTEST, Flash1ForwardParams, Params, Schedule};
use ferroflash_kernels::variants::Kind;

use super::backward::{self, Cut};
use super::select::{PassKernels, grid};
use super::views::{scale, shape};
use super::workspace::WorkspaceLayout;
use super::{DeviceInfo, PlannedLaunch, Reason};
use crate::validate::Checked;

/// One kernel; none without rows.
pub fn forward(
    checked: &Checked,
    kernels: &PassKernels,
    workspace: &mut WorkspaceLayout,
) -> Result<Vec<PlannedLaunch>, Reason> {
    let Some(variant) = kernels.of_kind(Kind::Flash1Forward) else {
        return Ok(Vec::new());
    };
    let problem = checked.problem();
    let padded_q = (problem.seqlen_q() as u64).next_multiple_of(variant.tile_config.block_q.into());
    let heads = (problem.batch() * problem.heads_q()) as u64;
    let grid = grid("the number of query heads", &[heads])?;
    let columns = u64::from(variant.head_dim.unwrap_or_default());
    let f32_bytes = size_of::<f32>() as u64;
    let mut push = |name, factors: &[u64]| workspace.place(name, factors);
    let params = Flash1ForwardParams {
        o_accum: push("o_accum", &[heads, padded_q, columns, f32_bytes])?,
        l: push("l", &[heads, padded_q, f32_bytes])?,
        m: push("m", &[heads, padded_q, f32_bytes])?,
        shape: shape(checked),
        window: checked.window(),
        scale: scale(checked),
        ..Default::default()
    };
    if grid == 0 || padded_q == 0 {
        return Ok(Vec::new());
    }
    let params = Params::Flash1Forward(params);
    Ok(vec![PlannedLaunch::new(checked, variant, grid, params)])
}

/// Δ, then the main kernel, then dQ: see [`backward::launches_in_three`].
pub fn backward(
    checked: &Checked,
    device: &DeviceInfo,
    kernels: &PassKernels,
    workspace: &mut WorkspaceLayout,
) -> Result<Vec<PlannedLaunch>, Reason> {
    let Some(main) = kernels.of_kind(Kind::Flash1Backward) else {
        return Ok(Vec::new());
    };
    let cut = Cut::new(checked.problem(), &main.tile_config);
    // Nobody waits for anybody: a head's tiles are one block's. The accumulator of dQ is cleared before.
    let schedule = Schedule {
        tiles: cut.tiles,
        heads_per_group: 1,
        heads: grid("the number of key heads", &[cut.heads_k])?,
        order: FASTEST,
        stride: 1,
    };
    backward::launches_in_three(checked, device, kernels, main, &cut, schedule, workspace)
}

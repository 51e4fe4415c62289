//! Launches of flash2: grids and parameters.

use ferroflash_kernels::params::{ForwardParams, Params};
use ferroflash_kernels::variants::{Kind, TileShape};

use super::backward::{self, Cut};
use super::select::{PassKernels, grid};
use super::views::{scale, shape};
use super::workspace::WorkspaceLayout;
use super::{DeviceInfo, PlannedLaunch, Reason, block_mask, lengths, schedule};
use crate::validate::Checked;

pub mod decode;

/// Query tiles of every head; none without rows.
pub fn forward(
    checked: &Checked,
    device: &DeviceInfo,
    kernels: &PassKernels,
    workspace: &mut WorkspaceLayout,
) -> Result<Vec<PlannedLaunch>, Reason> {
    let problem = checked.problem();
    let mut launches = Vec::new();
    for &variant in kernels.variants() {
        if variant.tiles == TileShape::Compact {
            return decode::launches(checked, device, variant, workspace);
        }
        let block_q = variant.tile_config.block_q;
        let cut = lengths::Tiles {
            rows: block_q,
            block_q: 0,
            split: Default::default(),
            maps: &[],
        };
        let listed = lengths::list(checked, cut, workspace)?;
        // A list is of one head of all sequences.
        let (tiles, heads) = match listed {
            Some(_) => (lengths::most_q_blocks(problem, block_q), 1),
            None => (
                (problem.seqlen_q() as u64).div_ceil(block_q.into()),
                problem.batch(),
            ),
        };
        let heads = (heads * problem.heads_q()) as u32;
        let grid = grid("the number of query tiles", &[tiles, heads.into()])?;
        let list = listed.map(|(list, launch)| {
            launches.push(launch);
            list
        });
        let masked = block_mask::forward(checked, device, variant, workspace)?;
        let (blocks, lists) = masked.unwrap_or_default();
        launches.extend(lists);
        let params = ForwardParams {
            shape: shape(checked),
            window: checked.window(),
            scale: scale(checked),
            schedule: schedule::forward(
                problem,
                &device.thresholds,
                block_mask::query_work(problem, &blocks),
                tiles as u32,
                heads,
                problem.group_size() as u32,
                problem.dtype().size_bytes() as u64,
            ),
            list: list.unwrap_or_default(),
            blocks,
            pages: lengths::pages(checked, variant.tile_config.block_k),
            ..Default::default()
        };
        if grid > 0 {
            let params = Params::Forward(params);
            launches.push(PlannedLaunch::new(checked, variant, grid, params));
        }
    }
    Ok(launches)
}

/// Δ, then the main kernel, then dQ: see [`backward::launches_in_three`].
pub fn backward(
    checked: &Checked,
    device: &DeviceInfo,
    kernels: &PassKernels,
    workspace: &mut WorkspaceLayout,
) -> Result<Vec<PlannedLaunch>, Reason> {
    let Some(main) = kernels.of_kind(Kind::Backward) else {
        return Ok(Vec::new());
    };
    let problem = checked.problem();
    let cut = match checked.has_lengths() {
        true => Cut::of_lengths(problem, &main.tile_config)?,
        false => Cut::new(problem, &main.tile_config),
    };
    let schedule = schedule::backward(problem, &cut, device, &main.tile_config);
    backward::launches_in_three(checked, device, kernels, main, &cut, schedule, workspace)
}

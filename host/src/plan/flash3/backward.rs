//! The launches of flash3's backward pass.

use ferroflash_kernels::config::{self, TmaBackward as Tiles};
use ferroflash_kernels::params::{BackwardParams, Params, TmaBackwardParams};
use ferroflash_kernels::variants::Kind;

use crate::plan::backward::{self, Cut};
use crate::plan::schedule::TmaBackward;
use crate::plan::select::PassKernels;
use crate::plan::tensor_map::boxes;
use crate::plan::workspace::WorkspaceLayout;
use crate::plan::{DeviceInfo, PlannedLaunch, Reason, block_mask, schedule};
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
    let tile_config = &main.tile_config;
    let columns = config::padded_columns(main.head_dim.unwrap_or(problem.head_dim() as u32));
    let (cut, schedule) = if checked.has_lengths() {
        let cut = Cut::of_lengths(problem, tile_config)?;
        let schedule = schedule::tma_backward_in_a_list(problem, &cut, device, tile_config);
        (cut, schedule)
    } else if let Some(work) = block_mask::work(checked, device, main) {
        let cut = Cut::new(problem, tile_config);
        let schedule = schedule::tma_backward_in_lists(problem, &cut, device, tile_config, work);
        (cut, schedule)
    } else {
        let TmaBackward { cut, schedule, .. } =
            schedule::tma_backward(problem, device, tile_config);
        (cut, schedule)
    };
    let head_dim = main.head_dim.unwrap_or_default();
    let tiles = Tiles::of(head_dim, main.head_dim_v.unwrap_or(head_dim), main.tiles);
    let maps = [
        boxes(tile_config.block_q, 1),
        boxes(tiles.keys_of_block(), 1),
        boxes(tiles.keys_of_block(), 1),
        boxes(tile_config.block_q, 1),
        boxes(tiles.rows_out(), 1),
        boxes(tiles.rows_out(), 1),
    ];
    let before = backward::before(checked, device, main, &maps, workspace)?;
    let pass = BackwardParams {
        list: before.list,
        blocks: before.blocks,
        ..backward::params(checked, main, &cut, columns, schedule, workspace)?
    };
    let [q, k, v, d_o, d_k, d_v] = maps;
    let params = TmaBackwardParams {
        q,
        k,
        v,
        d_o,
        d_k,
        d_v,
        pass,
    };
    backward::launches(
        checked,
        device,
        kernels,
        &cut,
        before.launches,
        &pass,
        Params::TmaBackward(params),
    )
}

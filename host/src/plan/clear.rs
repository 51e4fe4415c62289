//! The launch that clears dK and dV of keys that no query sees, if there are such keys.

use ferroflash_kernels::config::TileConfig;
use ferroflash_kernels::params::{BlockLists, ClearParams, Params};
use ferroflash_kernels::variants::Kind;

use super::select::{grid, only_variant};
use super::views::shape_in_halves;
use super::{PlannedLaunch, Reason};
use crate::problem::Problem;
use crate::validate::Checked;

/// Whether some key is seen by no query: tiles of such keys are not visited.
fn has_unseen_keys(problem: &Problem) -> bool {
    let before_the_first = match problem.mask().window().0 {
        Some(left) => problem.seqlen_q().saturating_add(left),
        None => usize::MAX,
    };
    problem.seqlen_q() == 0 || before_the_first < problem.seqlen_k()
}

/// For a backward pass whose main kernel has these tiles and, under a block mask, these lists.
pub fn backward(
    checked: &Checked,
    main: &TileConfig,
    lists: Option<BlockLists>,
) -> Result<Option<PlannedLaunch>, Reason> {
    let problem = checked.problem();
    let Some(variant) = only_variant(Kind::Clear) else {
        return Ok(None);
    };
    if !has_unseen_keys(problem) && lists.is_none() {
        return Ok(None);
    }
    let blocks = (problem.seqlen_k() as u64).div_ceil(variant.tile_config.block_k.into());
    let grid = grid(
        "the number of blocks of rows",
        &[blocks, problem.batch() as u64],
    )?;
    let params = ClearParams {
        shape: shape_in_halves(checked),
        window: checked.window(),
        blocks: lists.unwrap_or_default(),
        tile_rows: main.block_k,
        ..ClearParams::default()
    };
    let launch = PlannedLaunch::new(checked, variant, grid, Params::Clear(params));
    Ok(Some(launch).filter(|launch| launch.grid > 0))
}

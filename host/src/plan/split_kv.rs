//! Keys divided among tiles in a forward pass: into how many splits, where their results lie, and the launch that merges them.

use ferroflash_kernels::attention::split_kv::n_splits;
use ferroflash_kernels::config::Footprint;
use ferroflash_kernels::params::{CombineParams, Params, SplitKv, TileList};
use ferroflash_kernels::variants::{Kind, VARIANTS};

use super::select::grid;
use super::views::shape;
use super::workspace::WorkspaceLayout;
use super::{PlannedLaunch, Reason, lengths};
use crate::validate::Checked;

/// The splits of kernels with these tiles; none, where keys are not divided.
pub fn splits(checked: &Checked, footprint: &Footprint) -> SplitKv {
    let problem = checked.problem();
    let Some(keys) = problem.split_kv() else {
        return SplitKv::default();
    };
    // A split of more keys than there are is one of all.
    let keys = keys.min(problem.seqlen_k().max(1)) as u32;
    let keys = keys.next_multiple_of(footprint.block_k);
    SplitKv {
        rows: checked.n_rows(),
        keys,
        n: n_splits(problem.seqlen_k() as u32, keys),
        ..SplitKv::default()
    }
}

/// The same with a place in the workspace.
pub fn place(
    checked: &Checked,
    split: SplitKv,
    workspace: &mut WorkspaceLayout,
) -> Result<SplitKv, Reason> {
    if split.n == 0 {
        return Ok(split);
    }
    let (n, word) = (split.n.into(), size_of::<f32>() as u64);
    let head_dim = checked.problem().head_dim() as u64;
    Ok(SplitKv {
        o: workspace.place("split_o", &[n, split.rows, head_dim, word])?,
        lse: workspace.place("split_lse", &[n, split.rows, word])?,
        ..split
    })
}

/// The launch that merges the results of placed splits, of which there are some: a block for every row.
pub fn combine(
    checked: &Checked,
    split: SplitKv,
    list: TileList,
) -> Result<Option<PlannedLaunch>, Reason> {
    let problem = checked.problem();
    let variant = VARIANTS
        .iter()
        .find(|row| row.kind == Kind::Combine && row.dtype == problem.dtype().of_kernels());
    let Some(variant) = variant.filter(|_| split.n > 0) else {
        return Ok(None);
    };
    let grid = grid("the number of rows", &[split.rows])?;
    let [_, _, rows_q] = problem.shape_lse();
    let params = CombineParams {
        split,
        shape: shape(checked),
        rows_q: rows_q as u32,
        lengths: lengths::rows(problem),
        list,
        ..CombineParams::default()
    };
    let launch = PlannedLaunch::new(checked, variant, grid, Params::Combine(params));
    Ok(Some(launch))
}

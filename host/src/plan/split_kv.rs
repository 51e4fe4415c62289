//! Keys divided among tiles in a forward pass: the number of splits, the place of their results, and the launch that merges them.

mod time;

use ferroflash_kernels::attention::split_kv::n_splits;
use ferroflash_kernels::params::{CombineParams, Params, SplitKv, TileList};
use ferroflash_kernels::spec::Constant;
use ferroflash_kernels::variants::{Kind, VARIANTS, Variant};

use super::select::grid;
use super::views::shape;
use super::workspace::WorkspaceLayout;
use super::{DeviceInfo, PlannedLaunch, Reason, Thresholds, block_mask, lengths};
use crate::problem;
use crate::validate::Checked;
use time::Step;

/// The number of parts per SM, or per resident blocks of an SM, into which the device divides the work of all sequences. With one, all wait for a
/// tile with a few blocks too many; with four, merging costs more (tests/benches/notes/2026-11-24-kv-cache.md).
const PARTS_PER_SM: u32 = 2;

/// The splits of a kernel that has this many tiles with undivided keys; none if that is faster, or if it cannot divide them.
pub fn splits(checked: &Checked, device: &DeviceInfo, variant: &Variant, tiles: u64) -> SplitKv {
    let problem = checked.problem();
    let block_k = variant.tile_config.block_k;
    let keys = match problem.split_kv() {
        _ if !variant.capabilities().has(Constant::SplitKv)
            || block_mask::work(checked, device, variant).is_some() =>
        {
            None
        }
        problem::SplitKv::Never => None,
        // A split of more keys than there are is one of all.
        problem::SplitKv::Keys(keys) => Some(keys.min(problem.seqlen_k().max(1)) as u32),
        problem::SplitKv::Auto => fastest(checked, device, variant, tiles),
    };
    let device_chooses = checked.has_lengths() && problem.split_kv() == problem::SplitKv::Auto;
    let Some(keys) = keys else {
        return SplitKv::default();
    };
    let keys = keys.next_multiple_of(block_k);
    SplitKv {
        rows: checked.n_rows(),
        keys,
        n: n_splits(problem.seqlen_k() as u32, keys),
        parts: match variant.kind {
            _ if !device_chooses => 0,
            Kind::TmaForwardMla => device.n_sms,
            _ => PARTS_PER_SM.max(variant.tile_config.blocks_per_sm) * device.n_sms,
        },
        // What a split writes, and merging, cost as much as several blocks of keys. Where tiles are few, all are divided.
        whole_tiles: match variant.kind {
            Kind::TmaForwardMla => 1,
            Kind::TmaForward => (2 * tiles > device.n_sms.into()).into(),
            _ => 0,
        },
        ..SplitKv::default()
    }
}

/// Keys of a split with which a forward pass of this many undivided tiles takes the least time; `None`: undivided. For sequences of different
/// lengths, these are the fewest keys of a split: the device divides the work of all into equal parts, and only one sequence may have the greatest length.
fn fastest(checked: &Checked, device: &DeviceInfo, variant: &Variant, tiles: u64) -> Option<u32> {
    let problem = checked.problem();
    // Tiles that a window leaves few keys have few to divide.
    if problem.seqlen_q() as u64 > device.thresholds.split_queries || problem.bounds().left {
        return None;
    }
    let tiles = match checked.has_lengths() {
        true => tiles.div_ceil((problem.batch() as u64).max(1)),
        false => tiles,
    };
    let block_k = u64::from(variant.tile_config.block_k);
    let blocks = (problem.seqlen_k() as u64).div_ceil(block_k);
    let n_sms = u64::from(device.n_sms.max(1));
    let row_bytes = problem.kv_columns() as u64 * problem.dtype_k().size_bytes() as u64;
    let step = Step {
        bytes: block_k.saturating_mul(row_bytes),
        n_sms,
        blocks: match variant.kind {
            Kind::ForwardE4m3 => time::CONVERTING,
            _ => time::READING,
        },
    };
    let n = time::fastest(step, tiles, blocks);
    (n > 1).then(|| (blocks.div_ceil(n) * block_k) as u32)
}

/// Whether tiles of a launch with this many blocks merge their splits themselves.
pub fn tiles_merge(device: &DeviceInfo, split: SplitKv, blocks: u32) -> bool {
    let Thresholds {
        arrivals,
        rows_merged_by_block,
        ..
    } = device.thresholds;
    split.rows <= arrivals.min(rows_merged_by_block.saturating_mul(blocks.into()))
}

/// The same with a place in the workspace, for a launch with this many blocks.
pub fn place(
    checked: &Checked,
    device: &DeviceInfo,
    split: SplitKv,
    blocks: u32,
    workspace: &mut WorkspaceLayout,
) -> Result<SplitKv, Reason> {
    if split.n == 0 {
        return Ok(split);
    }
    let (n, word) = (split.n.into(), size_of::<f32>() as u64);
    let columns = checked.problem().head_dim_v() as u64;
    let arrivals = match tiles_merge(device, split, blocks) {
        true => workspace.place_arrivals("arrivals", split.rows),
        false => None,
    };
    Ok(SplitKv {
        arrivals: arrivals.unwrap_or_default(),
        tiles_merge: arrivals.is_some().into(),
        o: workspace.place("split_o", &[n, split.rows, columns, word])?,
        lse: workspace.place("split_lse", &[n, split.rows, word])?,
        ..split
    })
}

/// The launch that merges the results of placed splits, if there are some and tiles do not merge them: a warp for every row.
pub fn combine(
    checked: &Checked,
    split: SplitKv,
    list: TileList,
) -> Result<Option<PlannedLaunch>, Reason> {
    let problem = checked.problem();
    let variant = VARIANTS
        .iter()
        .find(|row| row.kind == Kind::Combine && row.dtype == Some(problem.dtype().of_kernels()));
    let Some(variant) = variant.filter(|_| split.n > 0 && split.tiles_merge == 0) else {
        return Ok(None);
    };
    let blocks = split.rows.div_ceil(variant.tile_config.block_q.into());
    let grid = grid("the number of rows", &[blocks])?;
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

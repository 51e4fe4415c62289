//! The launches that list what a block mask leaves of tiles, and what the main kernels are told of it.

use ferroflash_kernels::attention::block_mask::ListedBlock;
use ferroflash_kernels::config::Footprint;
use ferroflash_kernels::params::{BlockListParams, BlockListPhase, BlockLists, Params};
use ferroflash_kernels::variants::{Kind, Variant};

use super::block_mask::block_map;
use super::select::{grid, only_variant};
use super::views::shape;
use super::workspace::WorkspaceLayout;
use super::{PlannedLaunch, Reason};
use crate::validate::Checked;

/// What the main kernels are told, and the launches that come before them; without a block mask nothing.
pub type Listed = (BlockLists, Vec<PlannedLaunch>);

/// How a pass cuts sequences into blocks.
#[derive(Clone, Copy)]
struct Blocks {
    block_q: u32,
    block_k: u32,
    n_q: u64,
    n_k: u64,
}

/// Of a forward pass whose main kernel has these tiles.
pub fn forward(
    checked: &Checked,
    main: &Footprint,
    workspace: &mut WorkspaceLayout,
) -> Result<Listed, Reason> {
    let blocks = Blocks::new(checked, main.block_q, main.block_k);
    let Some((maker, lists)) = lists(checked, blocks.n_q, blocks.n_k, workspace)? else {
        return Ok(Listed::default());
    };
    let launch = launch(checked, maker, blocks, lists, BlockListPhase::Forward)?;
    Ok((
        lists,
        vec![launch]
            .into_iter()
            .filter(|launch| launch.grid > 0)
            .collect(),
    ))
}

/// Of a backward pass whose main kernel has these tiles.
pub fn backward(
    checked: &Checked,
    main: &Footprint,
    workspace: &mut WorkspaceLayout,
) -> Result<Listed, Reason> {
    let blocks = Blocks::new(checked, main.block_q, main.block_k);
    let Some((maker, lists)) = lists(checked, blocks.n_k, blocks.n_q, workspace)? else {
        return Ok(Listed::default());
    };
    let n_maps = n_maps(checked);
    let columns = u64::from(lists.columns) + 1;
    let lists = BlockLists {
        ranks: workspace.place("block_ranks", &[n_maps, blocks.n_q, columns, 4])?,
        ..lists
    };
    let launches = [BlockListPhase::Ranks, BlockListPhase::Backward]
        .into_iter()
        .map(|phase| launch(checked, maker, blocks, lists, phase))
        .collect::<Result<Vec<_>, _>>()?;
    let launches = launches.into_iter().filter(|launch| launch.grid > 0);
    Ok((lists, launches.collect()))
}

impl Blocks {
    fn new(checked: &Checked, block_q: u32, block_k: u32) -> Blocks {
        let problem = checked.problem();
        Blocks {
            block_q,
            block_k,
            n_q: (problem.seqlen_q() as u64).div_ceil(block_q.into()),
            n_k: (problem.seqlen_k() as u64).div_ceil(block_k.into()),
        }
    }
}

/// How many maps the caller's block mask has.
fn n_maps(checked: &Checked) -> u64 {
    let [batch, heads, ..] = checked.problem().block_mask_shape().unwrap_or_default();
    batch as u64 * heads as u64
}

/// The kernel that makes the lists, and where these lie; `None` without a block mask.
fn lists(
    checked: &Checked,
    tiles: u64,
    entries: u64,
    workspace: &mut WorkspaceLayout,
) -> Result<Option<(&'static Variant, BlockLists)>, Reason> {
    let Some([batch, heads, _, columns]) = checked.problem().block_mask_shape() else {
        return Ok(None);
    };
    let Some(maker) = only_variant(Kind::BlockList) else {
        return Ok(None);
    };
    let places = [
        n_maps(checked),
        tiles,
        entries + 1,
        ListedBlock::N_BYTES.into(),
    ];
    let lists = BlockLists {
        lists: workspace.place("block_lists", &places)?,
        ranks: 0,
        batch_stride: if batch > 1 { heads as u32 } else { 0 },
        head_stride: (heads > 1).into(),
        tiles: tiles as u32,
        entries: entries as u32,
        columns: columns as u32,
        reserved: 0,
    };
    Ok(Some((maker, lists)))
}

/// A launch of the kernel, with a warp for each list, or for the ranks of each query block.
fn launch(
    checked: &Checked,
    maker: &'static Variant,
    blocks: Blocks,
    lists: BlockLists,
    phase: BlockListPhase,
) -> Result<PlannedLaunch, Reason> {
    let n_maps = n_maps(checked);
    let warps = n_maps.saturating_mul(match phase {
        BlockListPhase::Ranks => lists.entries.into(),
        BlockListPhase::Forward | BlockListPhase::Backward => lists.tiles.into(),
    });
    let per_block = u64::from(maker.footprint.threads / 32);
    let grid = grid(
        "the number of lists of blocks",
        &[warps.div_ceil(per_block)],
    )?;
    let params = BlockListParams {
        map: block_map(checked.problem()),
        lists,
        shape: shape(checked),
        window: checked.window(),
        block_q: blocks.block_q,
        block_k: blocks.block_k,
        n_maps: n_maps as u32,
        phase: phase as u32,
    };
    Ok(PlannedLaunch::new(
        checked,
        maker,
        grid,
        Params::BlockList(params),
    ))
}

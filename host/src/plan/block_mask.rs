//! A block mask as the kernels take it: the caller's map, and the launches that list the visible blocks of tiles.

use ferroflash_kernels::attention::block_mask::SparseBlock;
use ferroflash_kernels::attention::mask::Work;
use ferroflash_kernels::config::TileConfig;
use ferroflash_kernels::params::{
    BlockListParams, BlockListPhase, BlockLists, BlockMap, MAX_ROWS, Params,
};
use ferroflash_kernels::variants::{Kind, Variant};

use super::select::{grid, only_variant};
use super::views::shape;
use super::workspace::WorkspaceLayout;
use super::{DeviceInfo, PlannedLaunch, Reason, mask_map};
use crate::problem::Problem;
use crate::validate::Checked;

/// The map of a problem that is eligible; the address is filled in at launch. Empty without a block mask.
pub fn block_map(problem: &Problem) -> BlockMap {
    let (Some(blocks), Some([batch, heads, q_blocks, k_blocks])) =
        (problem.block_mask(), problem.block_mask_shape())
    else {
        return BlockMap::default();
    };
    // A block that is longer than any sequence makes one row or column all the same.
    let rows = |block: usize| block.min(MAX_ROWS as usize) as u32;
    let of_head = q_blocks.saturating_mul(k_blocks);
    // Where there is one map for all, or one entry, nothing is stepped over.
    let stride = |n: usize, elems: usize| if n > 1 { elems as u32 } else { 0 };
    BlockMap {
        map: 0,
        batch_stride: stride(batch, heads.saturating_mul(of_head)),
        head_stride: stride(heads, of_head),
        q_blocks: q_blocks as u32,
        k_blocks: k_blocks as u32,
        block_q: rows(blocks.block_q()),
        block_k: rows(blocks.block_k()),
    }
}

/// The main kernels' parameters, and the launches before them; nothing without maps.
pub type Listed = Option<(BlockLists, Vec<PlannedLaunch>)>;

/// The maps of a pass: the caller's, or those of a mask expression.
pub struct Maps {
    /// Their place.
    pub map: BlockMap,
    /// Batch entries with their own maps.
    pub batch: u64,
    /// Heads with their own maps.
    pub heads: u64,
    /// How the work of tiles grows, as far as that is known.
    pub work: Work,
    /// The launches that make them.
    pub launches: Vec<PlannedLaunch>,
}

impl Maps {
    /// The maps of a pass with this main kernel.
    fn new(
        checked: &Checked,
        device: &DeviceInfo,
        main: &Variant,
        workspace: &mut WorkspaceLayout,
    ) -> Result<Option<Maps>, Reason> {
        let problem = checked.problem();
        match problem.block_mask_shape() {
            Some([batch, heads, ..]) => Ok(Some(Maps {
                map: block_map(problem),
                batch: batch as u64,
                heads: heads as u64,
                work: Work::Even,
                launches: Vec::new(),
            })),
            None => mask_map::maps(checked, device, main, workspace),
        }
    }

    /// How many there are.
    fn n(&self) -> u64 {
        self.batch * self.heads
    }
}

/// How a pass cuts sequences into blocks.
#[derive(Clone, Copy)]
struct Blocks {
    block_q: u32,
    block_k: u32,
    n_q: u64,
    n_k: u64,
}

/// How the work of tiles grows in a pass that has maps, as far as that is known; `None` without maps.
pub fn work(checked: &Checked, device: &DeviceInfo, main: &Variant) -> Option<Work> {
    match checked.problem().block_mask() {
        Some(_) => Some(Work::Even),
        None => {
            mask_map::is_mapped(checked, device, main).then(|| mask_map::work(checked.problem()))
        }
    }
}

/// How the work of tiles of queries grows, for kernels with these lists.
pub fn query_work(problem: &Problem, lists: &BlockLists) -> Work {
    match lists.growing {
        0 => problem.work(),
        _ => Work::Growing,
    }
}

/// For a forward pass with this main kernel.
pub fn forward(
    checked: &Checked,
    device: &DeviceInfo,
    main: &Variant,
    workspace: &mut WorkspaceLayout,
) -> Result<Listed, Reason> {
    let blocks = Blocks::new(checked, &main.tile_config);
    let maps = Maps::new(checked, device, main, workspace)?;
    let (Some(maps), Some(maker)) = (maps, only_variant(Kind::BlockList)) else {
        return Ok(None);
    };
    let lists = lists(&maps, blocks.n_q, blocks.n_k, workspace)?;
    let list = launch(
        checked,
        maker,
        blocks,
        &maps,
        lists,
        BlockListPhase::Forward,
    )?;
    let launches = maps.launches.into_iter().chain([list]);
    Ok(Some((
        lists,
        launches.filter(|launch| launch.grid > 0).collect(),
    )))
}

/// For a backward pass with this main kernel.
pub fn backward(
    checked: &Checked,
    device: &DeviceInfo,
    main: &Variant,
    workspace: &mut WorkspaceLayout,
) -> Result<Listed, Reason> {
    let blocks = Blocks::new(checked, &main.tile_config);
    let maps = Maps::new(checked, device, main, workspace)?;
    let (Some(maps), Some(maker)) = (maps, only_variant(Kind::BlockList)) else {
        return Ok(None);
    };
    let lists = lists(&maps, blocks.n_k, blocks.n_q, workspace)?;
    let columns = u64::from(lists.columns) + 1;
    let lists = BlockLists {
        ranks: workspace.place("block_ranks", &[maps.n(), blocks.n_q, columns, 4])?,
        ..lists
    };
    let phases = [BlockListPhase::Ranks, BlockListPhase::Backward]
        .into_iter()
        .map(|phase| launch(checked, maker, blocks, &maps, lists, phase))
        .collect::<Result<Vec<_>, _>>()?;
    let launches = maps.launches.into_iter().chain(phases);
    Ok(Some((
        lists,
        launches.filter(|launch| launch.grid > 0).collect(),
    )))
}

impl Blocks {
    fn new(checked: &Checked, main: &TileConfig) -> Blocks {
        let problem = checked.problem();
        let (block_q, block_k) = (main.block_q, main.block_k);
        Blocks {
            block_q,
            block_k,
            n_q: (problem.seqlen_q() as u64).div_ceil(block_q.into()),
            n_k: (problem.seqlen_k() as u64).div_ceil(block_k.into()),
        }
    }
}

/// The place of the lists of maps.
fn lists(
    maps: &Maps,
    tiles: u64,
    entries: u64,
    workspace: &mut WorkspaceLayout,
) -> Result<BlockLists, Reason> {
    let places = [maps.n(), tiles, entries + 1, SparseBlock::N_BYTES.into()];
    Ok(BlockLists {
        lists: workspace.place("block_lists", &places)?,
        ranks: 0,
        batch_stride: if maps.batch > 1 { maps.heads as u32 } else { 0 },
        head_stride: (maps.heads > 1).into(),
        tiles: tiles as u32,
        entries: entries as u32,
        columns: maps.map.k_blocks,
        growing: (maps.work == Work::Growing).into(),
    })
}

/// A launch of the kernel, with a warp for each list, or for the ranks of each query block.
fn launch(
    checked: &Checked,
    maker: &'static Variant,
    blocks: Blocks,
    maps: &Maps,
    lists: BlockLists,
    phase: BlockListPhase,
) -> Result<PlannedLaunch, Reason> {
    let warps = maps.n().saturating_mul(match phase {
        BlockListPhase::Ranks => lists.entries.into(),
        BlockListPhase::Forward | BlockListPhase::Backward => lists.tiles.into(),
    });
    let per_block = u64::from(maker.tile_config.threads / 32);
    let grid = grid(
        "the number of lists of blocks",
        &[warps.div_ceil(per_block)],
    )?;
    let params = BlockListParams {
        map: maps.map,
        lists,
        shape: shape(checked),
        window: checked.window(),
        block_q: blocks.block_q,
        block_k: blocks.block_k,
        n_maps: maps.n() as u32,
        phase: phase as u32,
    };
    Ok(PlannedLaunch::new(
        checked,
        maker,
        grid,
        Params::BlockList(params),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;
    use crate::problem::BlockMask;

    #[test]
    fn strides_are_those_of_the_maps_that_there_are() {
        let blocks = BlockMask::new(128, 256);
        let of = |blocks| {
            let builder = Problem::builder(Dtype::Bf16).batch(3).heads_q(4).heads_k(2);
            let sized = builder.seqlen_q(300).seqlen_k(1025).head_dim(64);
            block_map(&sized.block_mask(blocks).build().unwrap())
        };
        let shared = BlockMap {
            map: 0,
            batch_stride: 0,
            head_stride: 0,
            q_blocks: 3,
            k_blocks: 5,
            block_q: 128,
            block_k: 256,
        };
        assert_eq!(of(blocks), shared);
        let per_batch = BlockMap {
            batch_stride: 15,
            ..shared
        };
        assert_eq!(of(blocks.per_batch()), per_batch);
        let per_head = BlockMap {
            head_stride: 15,
            ..shared
        };
        assert_eq!(of(blocks.per_head()), per_head);
        let both = BlockMap {
            batch_stride: 60,
            ..per_head
        };
        assert_eq!(of(blocks.per_batch().per_head()), both);
        let long = of(BlockMask::new(usize::MAX - 127, 1 << 40));
        assert_eq!((long.q_blocks, long.k_blocks), (1, 1));
        assert_eq!((long.block_q, long.block_k), (MAX_ROWS, MAX_ROWS));
    }
}

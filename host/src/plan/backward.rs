//! The common parts of the backward passes of flash1, flash2 and flash3: their kernels, the workspace that they pass on, the parameters.

use ferroflash_kernels::config::{self, TileConfig};
use ferroflash_kernels::params::{
    BackwardParams, BlockLists, Params, Schedule, Shape, SinkGradientParams, TensorMap, TileList,
};
use ferroflash_kernels::spec::Constant;
use ferroflash_kernels::variants::{Kind, Variant};

use super::select::{PassKernels, grid};
use super::views::{scale, shape};
use super::workspace::WorkspaceLayout;
use super::{DeviceInfo, PlannedLaunch, Reason, block_mask, clear, lengths, schedule, sinks};
use crate::problem::Problem;
use crate::validate::Checked;

/// How the main kernel of a pass cuts the problem.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    /// Rows of a block of queries.
    pub block_q: u64,
    /// Rows of q of a head in whole blocks.
    pub padded_q: u64,
    /// Tiles of keys of a head.
    pub tiles: u32,
    /// (batch, head) pairs of queries.
    pub heads_q: u64,
    /// (batch, head) pairs of keys; head splits of one count each.
    pub heads_k: u64,
    /// Query heads that a tile of keys meets; those of the larger head splits meet one more.
    pub group_size: u64,
    /// Head splits: parts of the query heads of a KV head. Their tiles have the same keys.
    pub n_head_splits: u64,
    /// How many of the head splits are larger.
    pub n_larger_head_splits: u64,
}

impl Cut {
    /// From the blocks and tiles of this kernel.
    pub fn new(problem: &Problem, main: &TileConfig) -> Cut {
        let block_q = u64::from(main.block_q);
        Cut {
            block_q,
            padded_q: (problem.seqlen_q() as u64).next_multiple_of(block_q),
            tiles: (problem.seqlen_k() as u32).div_ceil(main.block_k),
            heads_q: (problem.batch() * problem.heads_q()) as u64,
            heads_k: (problem.batch() * problem.heads_k()) as u64,
            group_size: problem.group_size() as u64,
            n_head_splits: 1,
            n_larger_head_splits: 0,
        }
    }

    /// The same for sequences of different lengths: the most blocks and tiles that a head of all sequences can have.
    pub fn of_lengths(problem: &Problem, main: &TileConfig) -> Result<Cut, Reason> {
        let tiles = lengths::most_k_blocks(problem, main.block_k);
        let block_q = u64::from(main.block_q);
        Ok(Cut {
            padded_q: lengths::most_q_blocks(problem, main.block_q) * block_q,
            tiles: grid("the number of key tiles", &[tiles])?,
            heads_q: problem.heads_q() as u64,
            heads_k: problem.heads_k() as u64,
            ..Cut::new(problem, main)
        })
    }

    /// The same, with one head split so far, divided into this many: not more than a KV head has query heads.
    pub fn in_head_splits(&self, n_head_splits: u64) -> Cut {
        Cut {
            heads_k: self.heads_k * n_head_splits,
            group_size: self.group_size / n_head_splits,
            n_head_splits,
            n_larger_head_splits: self.group_size % n_head_splits,
            ..*self
        }
    }

    /// Query heads of the largest head split.
    pub fn most_heads(&self) -> u64 {
        self.group_size + u64::from(self.n_larger_head_splits > 0)
    }

    /// Blocks of queries of a head.
    pub fn q_blocks(&self) -> u64 {
        self.padded_q / self.block_q
    }
}

/// The launches before the others, and the main kernel's parameters for them.
pub struct Before {
    /// The list of tiles, for sequences of different lengths.
    pub list: TileList,
    /// The lists of blocks, under a block mask.
    pub blocks: BlockLists,
    /// The launches that make these, and the kernel that clears dK and dV of keys that no query sees, if there are any.
    pub launches: Vec<PlannedLaunch>,
}

/// The launches before the others.
pub fn before(
    checked: &Checked,
    device: &DeviceInfo,
    main: &Variant,
    maps: &[TensorMap],
    workspace: &mut WorkspaceLayout,
) -> Result<Before, Reason> {
    let tiles = lengths::Tiles {
        rows: main.tile_config.block_k,
        block_q: main.tile_config.block_q,
        split: Default::default(),
        maps,
    };
    if let Some((list, launch)) = lengths::list(checked, tiles, workspace)? {
        return Ok(Before {
            list,
            blocks: BlockLists::default(),
            launches: vec![launch],
        });
    }
    let masked = block_mask::backward(checked, device, main, workspace)?;
    let lists = masked.as_ref().map(|(lists, _)| *lists);
    let clear = clear::backward(checked, &main.tile_config, lists)?;
    let (blocks, launches) = masked.unwrap_or_default();
    Ok(Before {
        list: TileList::default(),
        blocks,
        launches: launches.into_iter().chain(clear).collect(),
    })
}

/// [`launches`] of flash1 and flash2: their main kernels take the same parameters.
pub fn launches_in_three(
    checked: &Checked,
    device: &DeviceInfo,
    kernels: &PassKernels,
    main: &'static Variant,
    cut: &Cut,
    schedule: Schedule,
    workspace: &mut WorkspaceLayout,
) -> Result<Vec<PlannedLaunch>, Reason> {
    let columns = main.head_dim.unwrap_or_default();
    let before = before(checked, device, main, &[], workspace)?;
    let params = BackwardParams {
        list: before.list,
        blocks: before.blocks,
        ..params(checked, main, cut, columns, schedule, workspace)?
    };
    launches(
        checked,
        device,
        kernels,
        cut,
        before.launches,
        &params,
        Params::Backward(params),
    )
}

/// The launches before the others; Δ; the main kernel with its own parameters; then, in flash1 and flash2, dQ.
pub fn launches(
    checked: &Checked,
    device: &DeviceInfo,
    kernels: &PassKernels,
    cut: &Cut,
    before: Vec<PlannedLaunch>,
    params: &BackwardParams,
    of_main: Params,
) -> Result<Vec<PlannedLaunch>, Reason> {
    let mut launches = before;
    let problem = checked.problem();
    if problem.seqlen_q() == 0 {
        launches.extend(sink_gradient(checked, cut, params)?);
        return Ok(launches);
    }
    for &variant in kernels.variants() {
        let tile_config = &variant.tile_config;
        let (grid, params) = match variant.kind {
            Kind::Backward | Kind::TmaBackward => {
                let tiles = grid("the number of key tiles", &[cut.tiles.into(), cut.heads_k])?;
                let resident = schedule::resident_blocks(device, tile_config);
                // In flash3, blocks without a tile convert dQ.
                let converting = match variant.kind {
                    Kind::TmaBackward => cut.q_blocks() * cut.heads_q,
                    _ => 0,
                };
                let cluster = u64::from(tile_config.cluster);
                let of_tiles = u64::from(tiles) * cluster;
                let useful = converting.max(of_tiles).next_multiple_of(cluster);
                (useful.min(resident.into()) as u32, of_main)
            }
            // A block has all tiles of a head.
            Kind::Flash1Backward => {
                let heads = grid("the number of key heads", &[cut.heads_k])?;
                (if cut.tiles > 0 { heads } else { 0 }, of_main)
            }
            _ => {
                let blocks = cut.padded_q.div_ceil(tile_config.block_q.into());
                let grid = grid("the number of query blocks", &[blocks, cut.heads_q])?;
                (grid, Params::Backward(*params))
            }
        };
        if grid > 0 {
            let mut launch = PlannedLaunch::new(checked, variant, grid, params);
            if cut.n_head_splits > 1 && variant.kind == Kind::TmaBackward {
                launch.spec = launch.spec.with(Constant::HeadSplits);
            }
            launches.push(launch);
        }
    }
    launches.extend(sink_gradient(checked, cut, params)?);
    Ok(launches)
}

/// The gradients of sinks, if they are wanted, from the output of Δ's kernel.
fn sink_gradient(
    checked: &Checked,
    cut: &Cut,
    params: &BackwardParams,
) -> Result<Option<PlannedLaunch>, Reason> {
    let is_listed = checked.has_lengths();
    let rows = SinkGradientParams {
        lse_log2: params.lse_log2,
        delta: params.delta,
        q_blocks: params.list.q_blocks,
        padded_q: cut.padded_q,
        batch: if is_listed { 1 } else { params.shape.batch },
        block_q: if is_listed { cut.block_q as u32 } else { 0 },
        ..SinkGradientParams::default()
    };
    sinks::gradient(checked, rows)
}

/// The common parameters of the kernels; the workspace's pieces are laid out here. The accumulator of dQ has `columns` columns.
pub fn params(
    checked: &Checked,
    main: &Variant,
    cut: &Cut,
    columns: u32,
    schedule: Schedule,
    workspace: &mut WorkspaceLayout,
) -> Result<BackwardParams, Reason> {
    let &Cut {
        padded_q,
        heads_q: heads,
        ..
    } = cut;
    let shape = shape(checked);
    let f32_bytes = size_of::<f32>() as u64;
    // Blocks of a cluster have semaphores of their own.
    let cluster = u64::from(main.tile_config.cluster);
    let mut push = |name, factors: &[u64]| workspace.place(name, factors);
    let lse_log2 = push("lse_log2", &[heads, padded_q, f32_bytes])?;
    let delta = push("delta", &[heads, padded_q, f32_bytes])?;
    let d_q_accum = push("d_q_accum", &[heads, padded_q, columns.into(), f32_bytes])?;
    let dq_semaphore = push(
        "dq_semaphore",
        &[heads, cut.q_blocks(), cluster, size_of::<u32>() as u64],
    )?;
    let tile_counters = push("tile_counters", &[2, size_of::<u32>() as u64])?;
    let (mut dkv_accum, mut dkv_semaphore) = (0, 0);
    if cut.n_head_splits > 1 {
        let head_dim = main.head_dim.unwrap_or(shape.head_dim);
        let kv_heads = cut.heads_k / cut.n_head_splits;
        let tiles = [kv_heads, cut.tiles.into()];
        let keys = [
            2,
            main.tile_config.block_k.into(),
            head_dim.into(),
            f32_bytes,
        ];
        dkv_accum = push("dkv_accum", &[tiles.as_slice(), &keys].concat())?;
        let warps = [
            cluster,
            config::TMA_BACKWARD_SUM_WARPS.into(),
            size_of::<u32>() as u64,
        ];
        dkv_semaphore = push("dkv_semaphore", &[tiles.as_slice(), &warps].concat())?;
    }

    Ok(BackwardParams {
        lse_log2,
        delta,
        d_q_accum,
        dq_semaphore,
        tile_counters,
        dkv_accum,
        dkv_semaphore,
        padded_q,
        shape: Shape {
            heads_k: shape.heads_k * cut.n_head_splits as u32,
            group_size: cut.group_size as u32,
            ..shape
        },
        window: checked.window(),
        scale: scale(checked),
        schedule,
        n_head_splits: cut.n_head_splits as u32,
        n_larger_head_splits: cut.n_larger_head_splits as u32,
        ..Default::default()
    })
}

//! The launch of flash3's forward pass.

use ferroflash_kernels::attention::mask::Work;
use ferroflash_kernels::config::TileConfig;
use ferroflash_kernels::params::{Descales, Pages, Params, Schedule, TensorMap, TmaForwardParams};
use ferroflash_kernels::spec::Constant;
use ferroflash_kernels::variants::{TileShape, Variant};

use crate::plan::select::{PassKernels, grid};
use crate::plan::tensor_map::boxes;
use crate::plan::views::{scale, shape};
use crate::plan::workspace::WorkspaceLayout;
use crate::plan::{
    DeviceInfo, PlannedLaunch, Reason, block_mask, lengths, schedule, short, split_kv,
};
use crate::problem::{Problem, ScaleLayout};
use crate::validate::Checked;

use super::WARPGROUP_ROWS;

/// One launch, of as many blocks as are resident at once: they claim the query tiles of all heads by the tile counter. If keys are divided among
/// tiles, a second launch merges their results. None without rows.
pub fn launches(
    checked: &Checked,
    device: &DeviceInfo,
    kernels: &PassKernels,
    workspace: &mut WorkspaceLayout,
) -> Result<Vec<PlannedLaunch>, Reason> {
    let problem = checked.problem();
    let typical = lengths::of_average_length(checked);
    let mut launches = Vec::new();
    for &variant in kernels.variants() {
        let tile_config = &variant.tile_config;
        let pack_gqa_log2 = match variant.tiles {
            // Each head has a map of its own; nor are heads packed under an expression.
            _ if problem.block_mask().is_some() => 0,
            TileShape::Compact | TileShape::Grouped => {
                short::pack_gqa_log2(&typical, tile_config.block_q.into())
            }
            TileShape::Default | TileShape::Wide | TileShape::OneLevel | TileShape::Paired => 0,
        };
        let tile_rows = tile_config.block_q >> pack_gqa_log2;
        let pages = lengths::pages(checked, tile_config.block_k);
        let maps = maps(&pages, tile_config.block_k, pack_gqa_log2);
        let heads = problem.heads_q() as u64 >> pack_gqa_log2;
        let undivided = lengths::most_q_blocks(problem, tile_rows).saturating_mul(heads);
        let split = split_kv::splits(checked, device, variant, undivided);
        let cut = lengths::Tiles {
            rows: tile_rows,
            block_q: 0,
            split: lengths::SplitTiles {
                kv: split,
                heads: heads as u32,
                block_k: tile_config.block_k,
            },
            maps: &maps,
        };
        let tile_counter = workspace.place_counter("tile_counter");
        let listed = lengths::list(checked, cut, workspace)?;
        // A list is of one head of all sequences.
        let (tiles, heads) = match listed {
            Some(_) => (lengths::most_q_blocks(problem, tile_rows), 1),
            None => (
                (problem.seqlen_q() as u64).div_ceil(tile_rows.into()),
                problem.batch(),
            ),
        };
        // Each split of a tile counts as a tile.
        let tiles = tiles.saturating_mul(split.n.max(1).into());
        let heads = (heads * problem.heads_q()) as u32 >> pack_gqa_log2;
        let group_size = problem.group_size() as u32 >> pack_gqa_log2;
        let all = grid("the number of query tiles", &[tiles, heads.into()])?;
        let is_listed = listed.is_some();
        let list = listed.map(|(list, launch)| {
            launches.push(launch);
            list
        });
        if all == 0 {
            continue;
        }
        let masked = block_mask::forward(checked, device, variant, workspace)?;
        let (masked, lists) = masked.unwrap_or_default();
        launches.extend(lists);
        let keys_once = reads_keys_once(problem, variant, undivided);
        let blocks = all.min(side_by_side(device, tile_config, keys_once));
        let together = is_listed && (keys_once || problem.values_in_keys());
        let work = block_mask::query_work(problem, &masked);
        let of_heads = [tiles as u32, heads, group_size];
        let schedule = order(checked, device, work, of_heads, together);
        let split = split_kv::place(checked, device, split, blocks, workspace)?;
        let list = list.unwrap_or_default();
        let [q, k, v, o] = maps;
        let params = TmaForwardParams {
            q,
            k,
            v,
            o,
            tile_counter,
            shape: shape(checked),
            window: checked.window(),
            scale: scale(checked),
            schedule,
            pack_gqa_log2,
            list,
            blocks: masked,
            split,
            lengths: lengths::rows(problem),
            pages,
            descales: descales(problem),
            ..Default::default()
        };
        let mut launch = PlannedLaunch::new(checked, variant, blocks, Params::TmaForward(params));
        if split.n > 0 {
            launch.spec = launch.spec.with(Constant::SplitKv);
        }
        launches.push(launch);
        launches.extend(split_kv::combine(checked, split, list)?);
    }
    Ok(launches)
}

/// How many blocks of threads are resident at once. If keys are read only once, memory is the bound, and two tiles of an SM slow each other down.
fn side_by_side(device: &DeviceInfo, tile_config: &TileConfig, keys_once: bool) -> u32 {
    match keys_once {
        true => device.n_sms.max(1),
        false => schedule::resident_blocks(device, tile_config),
    }
}

/// The order of the tiles: all heads of a listed tile together, or as many as the L2 cache has room for. Heads of a sequence have adjacent keys, and
/// read whole rows of memory together; or they share keys, and read them once.
fn order(
    checked: &Checked,
    device: &DeviceInfo,
    work: Work,
    [tiles, heads, group_size]: [u32; 3],
    together: bool,
) -> Schedule {
    let problem = checked.problem();
    let elem_bytes = problem.dtype().size_bytes() as u64;
    let thresholds = &device.thresholds;
    let order = schedule::forward(
        problem, thresholds, work, tiles, heads, group_size, elem_bytes,
    );
    Schedule {
        heads_per_group: if together {
            heads
        } else {
            order.heads_per_group
        },
        ..order
    }
}

/// The strides of scales.
pub fn descales(problem: &Problem) -> Descales {
    let layouts = problem.scale_layouts();
    let [strides_q, strides_k] = layouts
        .map(|layouts| layouts.map(ScaleLayout::strides))
        .unwrap_or_default();
    Descales {
        strides_q,
        strides_k,
        ..Descales::default()
    }
}

/// The boxes of q, k, v and o.
fn maps(pages: &Pages, block_k: u32, pack_gqa_log2: u32) -> [TensorMap; 4] {
    let of_q = boxes(WARPGROUP_ROWS >> pack_gqa_log2, 1 << pack_gqa_log2);
    let of_k = match pages.page_size {
        0 => boxes(block_k, 1),
        _ => boxes(pages.box_rows, 1),
    };
    [of_q, of_k, of_k, of_q]
}

/// Whether only one tile reads each key, with keys undivided.
fn reads_keys_once(problem: &Problem, variant: &Variant, undivided: u64) -> bool {
    let heads_k = (problem.batch() * problem.heads_k()) as u64;
    let packs = [TileShape::Compact, TileShape::Grouped].contains(&variant.tiles);
    packs && undivided <= heads_k
}

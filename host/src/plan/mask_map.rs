//! Blocks of scores that a mask expression hides or shows as a whole: when they are found before a pass, and the launches that do so. The pass after
//! these launches is one under a block mask.

use ferroflash_expression::{Expression, Index, MaskMapping};
use ferroflash_kernels::attention::mask::Work;
use ferroflash_kernels::params::{
    BLOCK_MULTIPLE, BlockMap, MAP_THREADS, MaskMapParams, MaskMapPhase, Params, ScoreParams,
};
use ferroflash_kernels::spec::Constant;
use ferroflash_kernels::variants::{Kind, Variant};

use super::block_mask::Maps;
use super::select::{grid, only_variant};
use super::views::shape;
use super::workspace::WorkspaceLayout;
use super::{DeviceInfo, PlannedLaunch, Reason};
use crate::problem::{Problem, SplitKv};
use crate::terms::{MaskBlocks, Unmapped};
use crate::validate::Checked;

/// Queries, and keys, of a block of the map.
const ROWS: u64 = BLOCK_MULTIPLE as u64;

/// Bytes of kept bounds of a value.
const BOUNDS_BYTES: u64 = 16;

/// How a problem's mask expression is mapped, if kernels should skip the blocks that it hides; `None` without such a mask.
pub fn mapping(
    checked: &Checked,
    device: &DeviceInfo,
) -> Option<Result<&'static MaskMapping, Unmapped>> {
    let mapping = checked.problem().edit_parts()?.mask_mapping()?;
    Some(reason_against(checked, device).map_or(Ok(mapping), Err))
}

/// Why not to look for hidden blocks, for any mask.
fn reason_against(checked: &Checked, device: &DeviceInfo) -> Option<Unmapped> {
    let problem = checked.problem();
    let [n_maps, q_blocks, k_blocks] = blocks(problem)?;
    let tiles = [problem.batch() as u64, problem.heads_q() as u64, q_blocks];
    let tiles = tiles.into_iter().fold(1, u64::saturating_mul);
    let of_an_sm = tiles
        .div_ceil(device.n_sms.max(1).into())
        .saturating_mul(k_blocks);
    let of_maps = n_maps.saturating_mul(q_blocks).saturating_mul(k_blocks);
    let thresholds = &device.thresholds;
    if problem.block_mask().is_some() {
        Some(Unmapped::BlockMask)
    } else if checked.has_lengths() || problem.pages().is_some() {
        Some(Unmapped::Lengths)
    } else if matches!(problem.split_kv(), SplitKv::Keys(_)) {
        Some(Unmapped::SplitKv)
    } else if (problem.seqlen_q() as u64) < ROWS {
        Some(Unmapped::FewQueries {
            given: problem.seqlen_q() as u64,
            needed: ROWS,
        })
    } else if of_an_sm < thresholds.mapped_blocks_per_sm {
        Some(Unmapped::Few {
            given: of_an_sm,
            needed: thresholds.mapped_blocks_per_sm,
        })
    } else if of_maps > thresholds.mapped_blocks {
        Some(Unmapped::Many {
            given: of_maps,
            most: thresholds.mapped_blocks,
        })
    } else {
        None
    }
}

/// How many maps a problem's mask expression has, and blocks of queries and of keys of each.
fn blocks(problem: &Problem) -> Option<[u64; 3]> {
    let [batch, heads] = maps_of(problem, problem.mask_expression()?.expression());
    let of = |rows: usize| (rows as u64).div_ceil(ROWS);
    let n_maps = batch.saturating_mul(heads);
    Some([n_maps, of(problem.seqlen_q()), of(problem.seqlen_k())])
}

/// The numbers of batch entries and of heads with their own map.
fn maps_of(problem: &Problem, mask: &Expression) -> [u64; 2] {
    let of_batch = mask.depends_on(Index::Batch);
    let of_heads = mask.depends_on(Index::Head) || mask.depends_on(Index::KvHead);
    let each = |each: bool, n: usize| if each { n as u64 } else { 1 };
    [
        each(of_batch, problem.batch()),
        each(of_heads, problem.heads_q()),
    ]
}

/// Whether a pass with this main kernel skips what the problem's mask expression hides.
pub fn is_mapped(checked: &Checked, device: &DeviceInfo, main: &Variant) -> bool {
    of_kernel(checked, device, main).is_some()
}

fn of_kernel(
    checked: &Checked,
    device: &DeviceInfo,
    main: &Variant,
) -> Option<&'static MaskMapping> {
    let takes = main.takes(Constant::BlockMask) && main.score_site().is_some();
    mapping(checked, device)?.ok().filter(|_| takes)
}

/// The maps of a pass with this main kernel, in the workspace, with the launches that make them.
pub fn maps(
    checked: &Checked,
    device: &DeviceInfo,
    main: &Variant,
    workspace: &mut WorkspaceLayout,
) -> Result<Option<Maps>, Reason> {
    let problem = checked.problem();
    let mapping = of_kernel(checked, device, main);
    let (Some(mapping), Some(mask), Some([n_maps, q_blocks, k_blocks])) =
        (mapping, problem.mask_expression(), blocks(problem))
    else {
        return Ok(None);
    };
    let program = &mapping.program;
    let Some(variant) = only_variant(Kind::MaskMap) else {
        return Ok(None);
    };
    let [batch, heads] = maps_of(problem, mask.expression());
    let of_map = q_blocks * k_blocks;
    // Kernels write four bytes at a time.
    let n_bytes = (n_maps * of_map).next_multiple_of(size_of::<u32>() as u64);
    let [of_rows, of_columns] = [program.row_bounds, program.column_bounds].map(u64::from);
    let mut place_bounds = |name, blocks: u64, of_block: u64| match of_block {
        0 => Ok(0),
        _ => workspace.place(name, &[n_maps, blocks, of_block, BOUNDS_BYTES]),
    };
    let row_bounds = place_bounds("row_bounds", q_blocks, of_rows)?;
    let column_bounds = place_bounds("column_bounds", k_blocks, of_columns)?;
    let stride = |n: u64, blocks: u64| if n > 1 { blocks as u32 } else { 0 };
    let map = BlockMap {
        map: workspace.place("mask_map", &[n_bytes])?,
        batch_stride: stride(batch, heads * of_map),
        head_stride: stride(heads, of_map),
        q_blocks: q_blocks as u32,
        k_blocks: k_blocks as u32,
        block_q: BLOCK_MULTIPLE,
        block_k: BLOCK_MULTIPLE,
    };
    let launch = |phase: MaskMapPhase, threads: u64| {
        let blocks = threads.div_ceil(variant.tile_config.threads.into());
        let grid = grid("the number of blocks of scores", &[blocks])?;
        let params = MaskMapParams {
            program: *program,
            row_bounds,
            column_bounds,
            map,
            shape: shape(checked),
            window: checked.window(),
            maps_per_batch: heads as u32,
            n_maps: n_maps as u32,
            phase: phase as u32,
            score: ScoreParams::default(),
            padding: [0; 2],
        };
        let params = Params::MaskMap(params);
        let launch = PlannedLaunch::new(checked, variant, grid, params);
        Ok(match phase {
            MaskMapPhase::Pairs => launch,
            MaskMapPhase::Bounds | MaskMapPhase::Map => launch.without_edit(),
        })
    };
    let of_side = |bounds: u64, blocks: u64| if bounds > 0 { n_maps * blocks } else { 0 };
    let sides = of_side(of_rows, q_blocks) + of_side(of_columns, k_blocks);
    let threads_if = |is_needed: bool, of_block: u32| match is_needed {
        true => n_maps * of_map * u64::from(of_block),
        false => 0,
    };
    let phases = [
        (MaskMapPhase::Bounds, ROWS * sides),
        (MaskMapPhase::Map, threads_if(program.end > 0, 1)),
        (
            MaskMapPhase::Pairs,
            threads_if(mapping.at_pairs, MAP_THREADS),
        ),
    ];
    let phases = phases.into_iter().filter(|&(_, threads)| threads > 0);
    let launches = phases.map(|(phase, threads)| launch(phase, threads));
    Ok(Some(Maps {
        map,
        batch,
        heads,
        work: work(problem),
        launches: launches.collect::<Result<_, Reason>>()?,
    }))
}

/// The order of tiles: as under a causal mask, the longest first, unless the problem's mask has another order. Most expressions hide later keys, or
/// leave all tiles the same work.
pub fn work(problem: &Problem) -> Work {
    match problem.work() {
        Work::Even => Work::Growing,
        work => work,
    }
}

/// The launches of a pass, compiled for the map if they make one.
pub fn specialise(checked: &Checked, mut launches: Vec<PlannedLaunch>) -> Vec<PlannedLaunch> {
    if is_map_made(&launches) {
        let edits_all = checked.problem().score().is_some();
        for launch in &mut launches {
            let mut constants = vec![Constant::BlockMask];
            if launch.spec.has(Constant::Score) && !edits_all {
                constants.push(Constant::EditPartial);
            }
            for constant in constants {
                if launch.variant.capabilities().has(constant) {
                    launch.spec = launch.spec.with(constant);
                }
            }
        }
    }
    launches
}

fn is_map_made(launches: &[PlannedLaunch]) -> bool {
    let mut kinds = launches.iter().map(|launch| launch.variant.kind);
    kinds.any(|kind| kind == Kind::MaskMap)
}

/// Whether a pass of these launches skips the blocks that a mask expression hides; `None` without such a mask, or without a launch.
pub fn outcome(
    checked: &Checked,
    device: &DeviceInfo,
    launches: &[PlannedLaunch],
) -> Option<MaskBlocks> {
    let mapping = mapping(checked, device).filter(|_| !launches.is_empty())?;
    Some(match mapping {
        _ if is_map_made(launches) => MaskBlocks::Skipped,
        Ok(_) => MaskBlocks::Computed(Unmapped::Kernels),
        Err(why) => MaskBlocks::Computed(why),
    })
}

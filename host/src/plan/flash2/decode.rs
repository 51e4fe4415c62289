//! The launch of flash2's decode kernel: a forward pass of few queries.

use ferroflash_kernels::attention::divisor::Divisor;
use ferroflash_kernels::params::{
    Descales, Divisors, ForwardParams, Params, ScaleStrides, Schedule, SplitKv, TileList,
};
use ferroflash_kernels::spec::Constant;
use ferroflash_kernels::variants::{TileShape, Variant};

use crate::plan::flash3::forward::descales;
use crate::plan::select::grid;
use crate::plan::views::{scale, shape};
use crate::plan::workspace::WorkspaceLayout;
use crate::plan::{DeviceInfo, PlannedLaunch, Reason, lengths, split_kv};
use crate::problem::{Fp8Kv, Problem};
use crate::validate::{Checked, Pass};

/// Whether its kernel is the faster one.
pub fn prefers_decode(problem: &Problem, device: &DeviceInfo) -> bool {
    let packed = problem.seqlen_q().saturating_mul(problem.group_size());
    packed as u64 <= device.thresholds.decode_rows && problem.total_q().is_none()
}

/// Whether it is faster than flash3's: if lengths differ, since it makes no list of tiles, and if caches are large. Head_dims that it pads have not
/// been measured. In 8 bits flash3 neither divides keys nor packs heads into a tile.
pub fn beats_flash3(checked: &Checked, device: &DeviceInfo) -> bool {
    let problem = checked.problem();
    let bytes = [
        problem.batch(),
        problem.seqlen_k(),
        problem.heads_k(),
        problem.head_dim(),
    ]
    .iter()
    .fold(2 * problem.dtype().size_bytes() as u64, |product, &n| {
        product.saturating_mul(n as u64)
    });
    let few = checked.pass() == Pass::Forward
        && prefers_decode(problem, device)
        && problem.block_mask().is_none()
        && problem.edit_parts().is_none();
    let is_large = checked.has_lengths() || bytes >= device.thresholds.large_cache_bytes;
    let beats_16_bits = [32, 64, 128].contains(&problem.head_dim()) && is_large;
    few && (problem.fp8().is_some() || beats_16_bits)
}

/// Whether a kernel can work on a problem: in its tiles rows of different heads follow one another, and each sequence has the same number of tiles.
pub fn eligible(variant: &Variant, problem: &Problem) -> Result<(), Reason> {
    if variant.tiles != TileShape::Compact {
        return Ok(());
    }
    match problem.total_q() {
        Some(_) => Err(Reason::PackedQueries),
        None => tiles(problem, variant).map(|_| ()),
    }
}

/// Tiles of all heads of a sequence.
fn tiles(problem: &Problem, variant: &Variant) -> Result<u32, Reason> {
    let rows = grid(
        "seqlen_q · the heads of a group",
        &[problem.seqlen_q() as u64, problem.group_size() as u64],
    )?;
    let of_head = rows.div_ceil(variant.tile_config.block_q);
    let factors = [
        of_head.into(),
        problem.heads_k() as u64,
        problem.batch() as u64,
    ];
    grid("the number of query tiles", &factors)?;
    grid("the query tiles of a sequence", &factors[..2])
}

/// Keys of a step: the device's unit of work.
const STEP_KEYS: u64 = 64;

/// Sequences that a block counts at a time, the same number in each lane.
const LANES: u64 = 32;

/// The most work of all sequences, in steps of each of the tiles of a sequence.
fn work(problem: &Problem, tiles: u64) -> u64 {
    let steps = (problem.seqlen_k() as u64).div_ceil(STEP_KEYS);
    let sequences = (problem.batch() as u64).next_multiple_of(LANES);
    steps.saturating_mul(sequences).saturating_mul(tiles.max(1))
}

/// Where the scales of q, k and v lie, of those that have 8 bits.
fn scales(problem: &Problem) -> Descales {
    let Some(of) = problem.fp8_kv() else {
        return descales(problem);
    };
    Descales {
        strides_k: ScaleStrides {
            batch: match of {
                Fp8Kv::PerSequence => problem.heads_k() as u32,
                Fp8Kv::PerPage => 0,
            },
            head: 1,
            block: 0,
        },
        ..Descales::default()
    }
}

/// One launch, with a block for every split of every tile. If keys are divided among more tiles than there are counters, a second launch merges their results.
pub fn launches(
    checked: &Checked,
    device: &DeviceInfo,
    variant: &'static Variant,
    workspace: &mut WorkspaceLayout,
) -> Result<Vec<PlannedLaunch>, Reason> {
    let problem = checked.problem();
    let (tiles, batch) = (u64::from(tiles(problem, variant)?), problem.batch() as u64);
    let split = split_kv::splits(checked, device, variant, tiles * batch);
    // Only the last block of a tile merges its splits, when the others have ended: it may have twice as many rows.
    let blocks = u32::try_from(2 * tiles * batch).unwrap_or(u32::MAX);
    // What merges apart does not know how the device divides; and tiles of more rows than are counted fill it undivided.
    let split = match split.parts > 0 && !split_kv::tiles_merge(device, split, blocks) {
        true => SplitKv::default(),
        false => split,
    };
    let mut split = split_kv::place(checked, device, split, blocks, workspace)?;
    if work(problem, tiles) > device.thresholds.shared_work {
        split.parts = 0;
    }
    // Of shares there are as many as parts, and one more for each sequence, as none has keys of two.
    let shares = match split.parts {
        0 => batch * u64::from(split.n.max(1)),
        parts => u64::from(parts) / tiles.max(1) + batch,
    };
    let grid = grid("the number of splits", &[tiles, shares])?;
    if grid == 0 {
        return Ok(Vec::new());
    }
    let list = TileList {
        packed_k: problem.total_k().is_some().into(),
        ..TileList::default()
    };
    let pages = lengths::pages(checked, variant.tile_config.block_k);
    let tiles_of_kv_head = (tiles / (problem.heads_k() as u64).max(1)) as u32;
    let params = ForwardParams {
        shape: shape(checked),
        window: checked.window(),
        scale: scale(checked),
        // What a plan says; the kernel counts by itself.
        schedule: Schedule {
            tiles: tiles_of_kv_head,
            heads: (batch * problem.heads_k() as u64) as u32,
            heads_per_group: problem.heads_k() as u32,
            ..Schedule::default()
        },
        list,
        pages,
        split,
        lengths: lengths::rows(problem),
        descales: scales(problem),
        page_scales: match problem.fp8_kv() {
            Some(Fp8Kv::PerPage) => problem.heads_k() as u32,
            _ => 0,
        },
        divisors: Divisors {
            heads_k: Divisor::new(problem.heads_k() as u32),
            tiles: Divisor::new(tiles_of_kv_head),
            group_size: Divisor::new(problem.group_size() as u32),
            page_size: Divisor::new(pages.page_size),
            parts: Divisor::new(split.parts),
        },
        ..Default::default()
    };
    let mut launch = PlannedLaunch::new(checked, variant, grid, Params::Forward(params));
    if split.n > 0 {
        launch.spec = launch.spec.with(Constant::SplitKv);
    }
    let mut launches = vec![launch];
    launches.extend(split_kv::combine(checked, split, list)?);
    Ok(launches)
}

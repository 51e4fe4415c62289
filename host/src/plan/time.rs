//! A model of the time of flash3's main backward kernel, with which [`super::schedule`] chooses the order of the tiles and the number of head
//! splits. `tests/tests/schedule` compares it with a simulator, and with measurements.

use ferroflash_kernels::attention::block_order;
use ferroflash_kernels::attention::mask::Band;
use ferroflash_kernels::config::TileConfig;
use ferroflash_kernels::params::{FASTEST, Schedule};

use super::DeviceInfo;
use super::backward::Cut;
use super::schedule::{head_bytes, lacking, streams_all_heads, tiles_at_once};
use crate::problem::Problem;

/// The unit of time: one block of queries.
pub const STEP: u64 = 100;
/// Beginning and end of a tile of [`TILE_ELEMENTS`], without any products.
const TILE_EDGES: u64 = 3 * STEP;
/// Time to add dV and dK of such a tile to those of another head split.
const SUM: u64 = 150;
/// Elements of K of a tile at head_dim 128. At head_dim 64 there are half as many, and a step is as many products.
const TILE_ELEMENTS: u64 = 128 * 128;
/// How much later a head split has added to the same sums than the one before, if both end at once.
const SUM_HAND_OVER: u64 = 185;
/// Without a mask: if q, dO and the accumulator of dQ do not stay in the L2 cache, a step takes this much longer (H200: 15 to 20).
const MISS_PERCENT: u64 = 18;
/// How much longer it takes if the tiles of a group are fewer than blocks, so that two groups run at a time and wait for each other:
/// 18 to 26, by the simulator.
const SMALL_GROUPS_PERCENT: u64 = 22;
/// The same if they are more, but not several times as many.
const LARGE_GROUPS_PERCENT: u64 = 5;

/// Under a mask: how much longer a step takes that misses. At head_dim 64 exponentials take longer, and hide most of it.
const fn miss_percent_in_a_band(head_dim: usize) -> u64 {
    if head_dim <= 64 { 10 } else { 30 }
}

/// A tile's time in addition to its steps.
fn edges(cut: &Cut) -> u64 {
    TILE_EDGES + if cut.n_head_splits > 1 { SUM } else { 0 }
}

/// How long the last of the head splits of the same keys waits, if they begin and end together.
fn wait_for_sums(cut: &Cut, schedule: &Schedule) -> u64 {
    let kv_heads = (cut.heads_k / cut.n_head_splits).max(1);
    let together = u64::from(schedule.heads_per_group).div_ceil(kv_heads);
    SUM_HAND_OVER * together.min(cut.n_head_splits).saturating_sub(1)
}

/// Time until the last tile ends, in shifted order: groups of heads follow one another, and all tiles of a group are resident at
/// once. `u64::MAX` if they cannot be, or would not
/// begin one after another, or would not end together.
///
/// In shifted order tiles are spread over all query blocks of their heads. If these are more than the L2 cache keeps, as with several query heads
/// that share keys, every step misses it. In a list tiles follow one another closely.
pub(super) fn time_shifted(
    problem: &Problem,
    cut: &Cut,
    shifted: &Schedule,
    device: &DeviceInfo,
    resident: u32,
) -> u64 {
    let together = block_order::tiles_per_ring(shifted);
    let steps = cut.q_blocks().saturating_mul(cut.group_size);
    let even = cut.n_larger_head_splits == 0;
    if !even || together > resident || u64::from(together) > steps {
        return u64::MAX;
    }
    let groups = shifted.heads.div_ceil(shifted.heads_per_group);
    let rounds = u64::from(groups) * u64::from(shifted.stride);
    let edges = edges(cut);
    let time = rounds.saturating_mul(steps.saturating_mul(STEP).saturating_add(edges));
    let bytes = head_bytes(problem, cut).saturating_mul(shifted.heads_per_group.into());
    let misses = match bytes > device.thresholds.gradient_bytes {
        true => MISS_PERCENT,
        false => 0,
    };
    time.saturating_add(time.saturating_mul(misses) / 100)
        .saturating_add(wait_for_sums(cut, shifted))
}

/// The same if tiles are claimed from a list: blocks are always busy, except those that begin together. Each of these follows
/// its left neighbour a step behind.
pub(super) fn time_in_a_list(cut: &Cut, list: &Schedule, resident: u32) -> u64 {
    let steps = cut.q_blocks().saturating_mul(cut.most_heads());
    let tiles = u64::from(list.tiles) * u64::from(list.heads);
    let rounds = tiles.div_ceil(resident.into());
    let together = resident.div_ceil(list.heads_per_group).min(list.tiles);
    let ramp = match list.order {
        FASTEST => 0,
        _ => u64::from(together.saturating_sub(1)),
    };
    rounds
        .saturating_mul(steps.saturating_mul(STEP).saturating_add(edges(cut)))
        .saturating_add(ramp * STEP)
        .saturating_add(wait_for_sums(cut, list))
}

/// The same under a mask, where tiles differ in length: at least the longest tile, and at least an equal share of all work per block. Groups end
/// with short tiles, or begin with long ones, so blocks end at about the same time.
pub(super) fn time_in_a_band(
    problem: &Problem,
    cut: &Cut,
    list: &Schedule,
    tile_config: &TileConfig,
    device: &DeviceInfo,
) -> u64 {
    let resident = tiles_at_once(device, tile_config);
    let band = Band::new(
        problem.seqlen_q() as u32,
        problem.seqlen_k() as u32,
        problem.window_of(problem.seqlen_q() as u32, problem.seqlen_k() as u32),
        problem.bounds(),
    );
    // Tiles of equal lengths keep their distance in further rounds. These do not: some wait each time.
    let elements = u64::from(tile_config.block_k) * problem.head_dim() as u64;
    let waits = wait_for_sums(cut, list) / 2;
    let of_tile = edges(cut) * elements / TILE_ELEMENTS + waits;
    let (mut tiles, mut all, mut longest) = (0_u64, 0_u64, 0_u64);
    for tile in 0..list.tiles {
        let blocks =
            block_order::q_blocks(&band, tile, tile_config.block_q, tile_config.block_k).n();
        tiles += u64::from(blocks > 0);
        all += u64::from(blocks);
        longest = longest.max(blocks.into());
    }
    let steps = all.saturating_mul(cut.heads_q);
    let of_edges = tiles.saturating_mul(cut.heads_k).saturating_mul(of_tile);
    let busy = steps
        .saturating_mul(STEP)
        .saturating_add(of_edges)
        .div_ceil(resident.into());
    let missed = if streams_all_heads(problem, cut, device, resident) {
        cut.heads_k * 100 / u64::from(resident)
    } else {
        let bytes = head_bytes(problem, cut).saturating_mul(list.heads_per_group.into());
        bytes.saturating_sub(device.thresholds.gradient_bytes_in_band) / (bytes / 100).max(1)
    };
    let of_group = 8 * u64::from(list.heads_per_group) * u64::from(list.tiles);
    let resident = u64::from(resident);
    let (heads, heads_per_group) = (u64::from(list.heads), u64::from(list.heads_per_group));
    let idle = if heads_per_group >= heads {
        0
    } else {
        let ill = if of_group < 7 * resident {
            SMALL_GROUPS_PERCENT
        } else if (8 * resident + resident / 2..16 * resident).contains(&of_group) {
            LARGE_GROUPS_PERCENT
        } else {
            0
        };
        ill + 100 * lacking(heads, heads_per_group) / heads
    };
    let percent = missed * miss_percent_in_a_band(problem.head_dim()) / 100 + idle;
    // Uneven head splits do not quite make up for each other's long and short tiles.
    let uneven = match cut.n_larger_head_splits {
        0 => 0,
        _ => longest * STEP / 3,
    };
    let longest = longest
        .saturating_mul(cut.most_heads())
        .saturating_mul(STEP)
        + edges(cut)
        + waits;
    // Where few tiles run, nobody waits for them: the longest take no more for their misses (H200, 8 and 71 query heads over one).
    longest.max(busy.saturating_add(busy.saturating_mul(percent) / 100) + uneven)
}

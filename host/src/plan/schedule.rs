//! The number of blocks of a kernel, and the order in which they take the tiles. Choices of speed only: every choice gives the same results.

mod groups;

use ferroflash_kernels::attention::mask::Work;
use ferroflash_kernels::config::TileConfig;
use ferroflash_kernels::params::{FASTEST, ORDERED, SHIFTED, Schedule};

use groups::{heads_of_a_list, in_even_groups, in_full_groups};

pub(super) use groups::lacking;

use super::backward::Cut;
use super::time::{time_in_a_band, time_in_a_list, time_shifted};
use crate::plan::{DeviceInfo, Thresholds};
use crate::problem::{Order, Problem};

/// Bytes of K and V that the heads of one causal group may take together, of `kv_bytes` each. Tiles of a long sequence do not read all of it at the
/// same time: above head_dim 128, where each byte is used in more products, twice as many heads are 2 to 4 % faster at 8k and 16k, and 2 to
/// 12 % slower at 2k and less (H200).
fn group_bytes(thresholds: &Thresholds, head_dim: usize, kv_bytes: u64) -> u64 {
    let bytes = thresholds.causal_group_bytes;
    if head_dim > 128 && kv_bytes >= bytes / 4 {
        bytes.saturating_mul(2)
    } else {
        bytes
    }
}

/// The most blocks of a grid: CUDA's limit of the x dimension.
pub const MAX_GRID: u64 = i32::MAX as u64;

/// Query tiles of the forward pass.
///
/// Without a mask every tile costs the same, and tiles of one head are adjacent in the order: they read the same K and V.
/// Causal tiles cost between one key block and all: long ones of several heads start first, as many heads as the L2
/// cache holds.
///
/// `group_size` of the heads that it counts share K and V.
pub fn forward(
    problem: &Problem,
    thresholds: &Thresholds,
    work: Work,
    tiles: u32,
    heads: u32,
    group_size: u32,
    element_bytes: u64,
) -> Schedule {
    let heads_per_group = match work {
        Work::Even => 1,
        Work::Growing | Work::Shrinking => {
            let kv_bytes = (2 * element_bytes)
                .saturating_mul(problem.seqlen_k() as u64)
                .saturating_mul(problem.head_dim() as u64)
                .max(1);
            let bytes = group_bytes(thresholds, problem.head_dim(), kv_bytes);
            let heads_k = (bytes / kv_bytes).max(1);
            let heads_q = heads_k.saturating_mul(group_size.into());
            heads_q.clamp(1, u64::from(heads.max(1))) as u32
        }
    };
    Schedule {
        tiles,
        heads_per_group,
        heads,
        order: ORDERED,
        stride: 1,
    }
}

/// Key tiles of the backward pass: as many heads at a time as fill the device once.
pub fn backward(
    problem: &Problem,
    cut: &Cut,
    device: &DeviceInfo,
    tile_config: &TileConfig,
) -> Schedule {
    let heads = cut.heads_k as u32;
    let heads_per_group =
        (tiles_at_once(device, tile_config) / cut.tiles.max(1)).clamp(1, heads.max(1));
    let order = match problem.order() {
        Order::Deterministic => ORDERED,
        Order::Fastest => FASTEST,
    };
    Schedule {
        tiles: cut.tiles,
        heads_per_group,
        heads,
        order,
        stride: 1,
    }
}

/// Tiles of a head that run at a time, if neighbours meet the same query blocks.
const TOGETHER: u32 = 16;

/// The same for flash3 with a map of blocks: in groups as under a causal mask, if tiles are taken in that order.
///
/// An expression without a band may hide any blocks, often all but those near the diagonal, as documents do. Tiles that begin
/// together then wait for each other at the few blocks that they meet: fewer of a head at a time wait less. H200, 32 documents of 512:
/// 0.69 ms with one head at a time and 0.59 with eight at head_dim 64, 0.457 and 0.440 at 128; under a mask that hides nothing it makes no difference.
pub fn tma_backward_in_lists(
    problem: &Problem,
    cut: &Cut,
    device: &DeviceInfo,
    tile_config: &TileConfig,
    work: Work,
) -> Schedule {
    let schedule = backward(problem, cut, device, tile_config);
    let resident = tiles_at_once(device, tile_config);
    match work {
        Work::Growing => {
            let mut heads_per_group =
                heads_of_a_list(&schedule, resident, heads_in_l2(problem, cut, device));
            let tiles_wait = schedule.order == ORDERED && problem.work() == Work::Even;
            let wanted = resident / TOGETHER;
            if tiles_wait && wanted > heads_per_group {
                heads_per_group = in_even_groups(schedule.heads.into(), wanted.into());
            }
            Schedule {
                heads_per_group,
                ..schedule
            }
        }
        Work::Even | Work::Shrinking => schedule,
    }
}

/// The schedule of flash3's backward pass: how tiles are cut, and their order.
#[derive(Clone, Copy, Debug)]
pub struct TmaBackward {
    /// The number of head splits of query heads.
    pub cut: Cut,
    /// The order of the tiles.
    pub schedule: Schedule,
    /// The predicted time: see `time.rs`.
    pub time: u64,
}

/// The same for flash3: tiles are taken in shifted order, or claimed from a list in groups that fill the device well. If query heads share keys and
/// tiles are few, several tiles have the same keys.
pub fn tma_backward(
    problem: &Problem,
    device: &DeviceInfo,
    tile_config: &TileConfig,
) -> TmaBackward {
    let one = tma_backward_head_splits(problem, device, tile_config, 1);
    let tiles = u64::from(one.cut.tiles).saturating_mul(one.cut.heads_k);
    let resident = u64::from(tiles_at_once(device, tile_config));
    let even_work = problem.work() == Work::Even;
    // Under a mask, head splits also spare the L2 cache.
    let enough = device.thresholds.enough_rounds.saturating_mul(resident);
    if tiles == 0 || even_work && tiles >= enough {
        return one;
    }
    // Head splits take memory, and the model has its errors: they pay where the time is less by more percent than this. Without a mask it has
    // been held to fewer measurements, and to none of uneven head splits.
    let gain = if even_work { 6 } else { 3 };
    let price = |planned: &TmaBackward| {
        let percent = match planned.cut {
            Cut {
                n_head_splits: 1, ..
            } => 100 - gain,
            Cut {
                n_larger_head_splits: 1..,
                ..
            } if even_work => 100 + gain,
            _ => 100,
        };
        u128::from(planned.time) * percent
    };
    let group_size = one.cut.group_size;
    let planned = numbers_of_head_splits(group_size)
        .map(|n_head_splits| tma_backward_head_splits(problem, device, tile_config, n_head_splits));
    std::iter::once(one)
        .chain(planned)
        .min_by_key(price)
        .unwrap_or(one)
}

/// The numbers of head splits into which this many query heads may be divided: for each size of the largest split the least number, ascending.
pub fn numbers_of_head_splits(group_size: u64) -> impl Iterator<Item = u64> {
    let mut last = 1;
    (1..group_size).rev().filter_map(move |heads| {
        let n_head_splits = group_size.div_ceil(heads);
        let is_new = n_head_splits != last;
        last = n_head_splits;
        is_new.then_some(n_head_splits)
    })
}

/// The same with this many head splits: not more than a KV head has query heads.
pub fn tma_backward_head_splits(
    problem: &Problem,
    device: &DeviceInfo,
    tile_config: &TileConfig,
    n_head_splits: u64,
) -> TmaBackward {
    let cut = Cut::new(problem, tile_config).in_head_splits(n_head_splits);
    let resident = tiles_at_once(device, tile_config);
    let side_by_side = backward(problem, &cut, device, tile_config);
    let most = match problem.work() {
        Work::Even => u64::MAX,
        Work::Growing | Work::Shrinking => heads_in_l2(problem, &cut, device),
    };
    let list = Schedule {
        heads_per_group: if streams_all_heads(problem, &cut, device, resident) {
            side_by_side.heads
        } else {
            heads_of_a_list(&side_by_side, resident, most)
        },
        ..side_by_side
    };
    let shifted = strided(
        Schedule {
            order: SHIFTED,
            ..side_by_side
        },
        tile_config,
        resident,
    );
    let planned = |schedule, time| TmaBackward {
        cut,
        schedule,
        time,
    };
    match (problem.work(), problem.order()) {
        (Work::Even, Order::Fastest) => {
            planned(side_by_side, time_in_a_list(&cut, &side_by_side, resident))
        }
        (Work::Even, Order::Deterministic) => {
            let in_a_list = time_in_a_list(&cut, &list, resident);
            let in_shifted_order = time_shifted(problem, &cut, &shifted, device, resident);
            // All tiles of a shifted order run at once. Of clusters a device may hold fewer than its SMs would, if a GPC has an odd number of them.
            if in_shifted_order < in_a_list && tile_config.cluster == 1 {
                planned(shifted, in_shifted_order)
            } else {
                planned(list, in_a_list)
            }
        }
        _ => planned(
            list,
            time_in_a_band(problem, &cut, &list, tile_config, device),
        ),
    }
}

/// The same for sequences of different lengths: from a list, whose tiles belong to one head of all sequences. Without a mask the number of heads at
/// a time lets enough tiles of each run that they follow one another closely; under a mask, where tiles are spread over the queries, it is what the
/// L2 cache keeps of the longest sequence. H200, nine lengths of 16k tokens, TFLOP/s without a
/// mask, and causal: at head_dim 128 521 and 496 with 2 heads, 541 and 517 with 4, 552 and 478 with 8; at head_dim 64 462 and 424 with 4,
/// 479 and 425 with 8, 478 and 415 with 16.
pub fn tma_backward_in_a_list(
    problem: &Problem,
    cut: &Cut,
    device: &DeviceInfo,
    tile_config: &TileConfig,
) -> Schedule {
    let schedule = backward(problem, cut, device, tile_config);
    let wanted = match problem.work() {
        Work::Even => u64::from(tiles_at_once(device, tile_config) / TOGETHER),
        Work::Growing | Work::Shrinking => heads_in_l2(problem, cut, device),
    };
    let wanted = wanted.max(schedule.heads_per_group.into());
    Schedule {
        heads_per_group: in_full_groups(schedule.heads.into(), wanted),
        ..schedule
    }
}

/// Every second tile is shifted, if neighbours would follow each other by a single step: if a block has more than half as many queries as a tile has
/// keys. At head_dim 64 that is 4 to 5 % faster (H200). In tile lists it is 9 to 12 % slower: long tiles
/// then end last.
fn strided(shifted: Schedule, tile_config: &TileConfig, resident: u32) -> Schedule {
    let close = 2 * tile_config.block_q > tile_config.block_k;
    if !close || shifted.tiles < 4 || shifted.tiles % 2 == 1 {
        return shifted;
    }
    let heads_per_group = (resident / (shifted.tiles / 2)).clamp(1, shifted.heads.max(1));
    Schedule {
        heads_per_group,
        stride: 2,
        ..shifted
    }
}

/// How many KV heads' q, dO and accumulator of dQ stay in the L2 cache while tiles of these heads read them.
fn heads_in_l2(problem: &Problem, cut: &Cut, device: &DeviceInfo) -> u64 {
    device.thresholds.gradient_heads_bytes / head_bytes(problem, cut)
}

/// Bytes of q, dO and the accumulator of dQ that tiles of a KV head read or add to; at least 1.
pub(super) fn head_bytes(problem: &Problem, cut: &Cut) -> u64 {
    let row_bytes = (2 * problem.dtype().size_bytes() + 4) * problem.head_dim();
    cut.most_heads()
        .saturating_mul(problem.seqlen_q() as u64)
        .saturating_mul(row_bytes as u64)
        .max(1)
}

/// Whether a list interleaves the tiles of all heads: under a causal mask, if the L2 cache does not keep a single head. Then few tiles of each head
/// run at a time, of nearly the same length and close to each other, so that only the first of them misses the cache at a step. In groups most steps miss: 72
/// to 97 % at 48k tokens and more, by the simulator of `tests/tests/schedule`.
///
/// Tiles that meet several heads wait for longer ones at each further head, so there have to be more of them.
pub(super) fn streams_all_heads(
    problem: &Problem,
    cut: &Cut,
    device: &DeviceInfo,
    resident: u32,
) -> bool {
    let rounds = if cut.most_heads() == 1 { 7 } else { 12 };
    let (tiles, resident) = (u64::from(cut.tiles), u64::from(resident));
    let causal = problem.bounds().right && !problem.bounds().left;
    causal
        && head_bytes(problem, cut) > device.thresholds.gradient_bytes
        && 4 * cut.heads_k <= resident
        && tiles.saturating_mul(cut.heads_k) >= rounds * resident
}

/// Blocks that the device holds at once: whole clusters.
pub fn resident_blocks(device: &DeviceInfo, tile_config: &TileConfig) -> u32 {
    tiles_at_once(device, tile_config).saturating_mul(tile_config.cluster)
}

/// Tiles that the device works on at once: the blocks of a cluster share one.
pub fn tiles_at_once(device: &DeviceInfo, tile_config: &TileConfig) -> u32 {
    let blocks = device.n_sms.saturating_mul(tile_config.blocks_per_sm);
    (blocks / tile_config.cluster).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_of_the_largest_head_split_comes_up_once() {
        let of = |group_size| numbers_of_head_splits(group_size).collect::<Vec<_>>();
        assert_eq!(of(1), []);
        assert_eq!(of(2), [2]);
        assert_eq!(of(7), [2, 3, 4, 7]);
        assert_eq!(of(8), [2, 3, 4, 8]);
        assert_eq!(of(71)[..5], [2, 3, 4, 5, 6]);
        assert_eq!(of(71)[12..], [24, 36, 71]);
    }
}

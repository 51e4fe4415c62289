//! How many blocks a kernel gets and in which order they take the tiles. Choices of speed only: every choice gives the
//! same results.

use ferroflash_kernels::attention::mask::Work;
use ferroflash_kernels::config::Footprint;
use ferroflash_kernels::params::{FASTEST, ORDERED, SHIFTED, Schedule};

use super::backward::Cut;
use super::time::{time_in_a_band, time_in_a_list, time_shifted};
use crate::plan::DeviceInfo;
use crate::problem::{Order, Problem};

/// Bytes of K and V that the heads of one causal group may take together, of `kv_bytes` each: what the L2 cache of an H200
/// (50 MB) keeps while their query tiles pass. Tiles of a long sequence do not read all of it at a time: above head_dim 128,
/// where a byte is worth more products, twice as many heads are 2 to 4 % faster at 8k and 16k, and 2 to 12 % slower at 2k
/// and less.
const fn group_bytes(head_dim: usize, kv_bytes: u64) -> u64 {
    if head_dim > 128 && kv_bytes >= 8 << 20 {
        64 << 20
    } else {
        32 << 20
    }
}

/// The most blocks of a grid: CUDA's limit of the x dimension.
pub const MAX_GRID: u64 = i32::MAX as u64;

/// Query tiles of the forward pass.
///
/// Without a mask every tile costs the same, and tiles of one head lie side by side: they read the same K and V.
/// Causal tiles cost between one key block and all: long ones of several heads start first, as many heads as the L2
/// cache holds.
///
/// `group_size` of the heads that it counts share K and V.
pub fn forward(
    problem: &Problem,
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
            let heads_k = (group_bytes(problem.head_dim(), kv_bytes) / kv_bytes).max(1);
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

/// Key tiles of the backward pass: as many heads side by side as fill the device once.
pub fn backward(
    problem: &Problem,
    cut: &Cut,
    device: &DeviceInfo,
    footprint: &Footprint,
) -> Schedule {
    let heads = cut.heads_k as u32;
    let heads_per_group =
        (resident_blocks(device, footprint) / cut.tiles.max(1)).clamp(1, heads.max(1));
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

/// The same of flash3, where a map says which blocks tiles meet: if tiles are taken as under a causal mask, in groups as there.
pub fn tma_backward_in_lists(
    problem: &Problem,
    cut: &Cut,
    device: &DeviceInfo,
    footprint: &Footprint,
    work: Work,
) -> Schedule {
    let schedule = backward(problem, cut, device, footprint);
    let resident = resident_blocks(device, footprint);
    match work {
        Work::Growing => Schedule {
            heads_per_group: heads_of_a_list(&schedule, resident, heads_in_l2(problem, cut)),
            ..schedule
        },
        Work::Even | Work::Shrinking => schedule,
    }
}

/// What is decided of flash3's backward pass: how tiles are cut, and taken.
#[derive(Clone, Copy, Debug)]
pub struct TmaBackward {
    /// Into how many shares query heads are divided, too.
    pub cut: Cut,
    /// The order of the tiles.
    pub schedule: Schedule,
    /// How long that takes by a model of it: see `time.rs`.
    pub time: u64,
}

/// The same of flash3: tiles go round in shifted order, or are claimed from a list in groups that fill the device well. Where query
/// heads share keys and tiles are few, several tiles have the same keys.
pub fn tma_backward(problem: &Problem, device: &DeviceInfo, footprint: &Footprint) -> TmaBackward {
    /// Without a mask, tiles of so many rounds fill the device well enough. Under one, shares also spare the L2 cache.
    const ENOUGH: u64 = 8;
    let one = tma_backward_in_shares(problem, device, footprint, 1);
    let tiles = u64::from(one.cut.tiles).saturating_mul(one.cut.heads_k);
    let resident = u64::from(resident_blocks(device, footprint));
    let even_work = problem.work() == Work::Even;
    if tiles == 0 || even_work && tiles >= ENOUGH * resident {
        return one;
    }
    // Shares take memory, and the model has its errors: they pay where the time is less by more percent than this. Without a mask it has
    // been held to fewer measurements, and to none of uneven shares.
    let gain = if even_work { 6 } else { 3 };
    let price = |planned: &TmaBackward| {
        let percent = match planned.cut {
            Cut { n_shares: 1, .. } => 100 - gain,
            Cut {
                n_larger_shares: 1..,
                ..
            } if even_work => 100 + gain,
            _ => 100,
        };
        u128::from(planned.time) * percent
    };
    let group_size = one.cut.group_size;
    let planned = numbers_of_shares(group_size)
        .map(|n_shares| tma_backward_in_shares(problem, device, footprint, n_shares));
    std::iter::once(one)
        .chain(planned)
        .min_by_key(price)
        .unwrap_or(one)
}

/// Into how many shares so many query heads may be divided: for each size of the largest share the least number, ascending.
pub fn numbers_of_shares(group_size: u64) -> impl Iterator<Item = u64> {
    let mut last = 1;
    (1..group_size).rev().filter_map(move |heads| {
        let n_shares = group_size.div_ceil(heads);
        let is_new = n_shares != last;
        last = n_shares;
        is_new.then_some(n_shares)
    })
}

/// The same with so many shares: not more than a KV head has query heads.
pub fn tma_backward_in_shares(
    problem: &Problem,
    device: &DeviceInfo,
    footprint: &Footprint,
    n_shares: u64,
) -> TmaBackward {
    let cut = Cut::new(problem, footprint).in_shares(n_shares);
    let resident = resident_blocks(device, footprint);
    let side_by_side = backward(problem, &cut, device, footprint);
    let most = match problem.work() {
        Work::Even => u64::MAX,
        Work::Growing | Work::Shrinking => heads_in_l2(problem, &cut),
    };
    let list = Schedule {
        heads_per_group: if streams_all_heads(problem, &cut, resident) {
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
        footprint,
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
            let in_shifted_order = time_shifted(problem, &cut, &shifted, resident);
            if in_shifted_order < in_a_list {
                planned(shifted, in_shifted_order)
            } else {
                planned(list, in_a_list)
            }
        }
        _ => planned(
            list,
            time_in_a_band(problem, &cut, &list, footprint, resident),
        ),
    }
}

/// The same where sequences have lengths of their own: from a list, whose tiles are of one head of all sequences. About as many heads
/// lie side by side as let so many tiles of each run at a time that they follow one another closely; under a mask, where tiles
/// are spread over the queries, as many as the L2 cache keeps of the longest sequence. H200, nine lengths of 16k tokens, TFLOP/s without a
/// mask, and causal: at head_dim 128 521 and 496 with 2 heads, 541 and 517 with 4, 552 and 478 with 8; at head_dim 64 462 and 424 with 4,
/// 479 and 425 with 8, 478 and 415 with 16.
pub fn tma_backward_in_a_list(
    problem: &Problem,
    cut: &Cut,
    device: &DeviceInfo,
    footprint: &Footprint,
) -> Schedule {
    /// Tiles of a head that run at a time.
    const TOGETHER: u32 = 16;
    let schedule = backward(problem, cut, device, footprint);
    let wanted = match problem.work() {
        Work::Even => u64::from(resident_blocks(device, footprint) / TOGETHER),
        Work::Growing | Work::Shrinking => heads_in_l2(problem, cut),
    };
    let wanted = wanted.max(schedule.heads_per_group.into());
    Schedule {
        heads_per_group: in_full_groups(schedule.heads.into(), wanted),
        ..schedule
    }
}

/// Shifted of every second tile, if neighbours would follow each other by a single step: where a block has more than half as
/// many queries as a tile has keys. At head_dim 64 that is 4 to 5 % faster (H200). In lists it is 9 to 12 % slower: long tiles
/// then end last.
fn strided(shifted: Schedule, footprint: &Footprint, resident: u32) -> Schedule {
    let close = 2 * footprint.block_q > footprint.block_k;
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

/// How many KV heads' q, dO and accumulator of dQ stay in the L2 cache while tiles of these heads read them: 26 MB. An
/// H200, of 50 MB, is fast with 34 MB (half shifted), and was slow with 70 MB.
fn heads_in_l2(problem: &Problem, cut: &Cut) -> u64 {
    const BYTES: u64 = 26 << 20;
    BYTES / head_bytes(problem, cut)
}

/// Bytes of q, dO and the accumulator of dQ that tiles of a KV head read or add to; at least 1.
pub(super) fn head_bytes(problem: &Problem, cut: &Cut) -> u64 {
    let row_bytes = (2 * problem.dtype().size_bytes() + 4) * problem.head_dim();
    cut.most_heads()
        .saturating_mul(problem.seqlen_q() as u64)
        .saturating_mul(row_bytes as u64)
        .max(1)
}

/// How much of these stays in the L2 cache: a little more than half shifted of heads of their own pass, which are fast: see [`heads_in_l2`].
pub(super) const L2_BYTES: u64 = 36 << 20;

/// Whether tiles of all heads lie side by side in a list: under a causal mask, where the L2 cache does not keep a single head. Few
/// tiles of each head run then, of nearly the same length, and one after another closely, so that one in so many steps as there
/// are tiles of a head misses. In groups most do: 72 to 97 % at 48k tokens and more, by the simulator of `tests/tests/schedule`.
///
/// Tiles that meet several heads wait for longer ones at each further head, so there have to be more of them.
pub(super) fn streams_all_heads(problem: &Problem, cut: &Cut, resident: u32) -> bool {
    let rounds = if cut.most_heads() == 1 { 7 } else { 12 };
    let (tiles, resident) = (u64::from(cut.tiles), u64::from(resident));
    let causal = problem.bounds().right && !problem.bounds().left;
    causal
        && head_bytes(problem, cut) > L2_BYTES
        && 4 * cut.heads_k <= resident
        && tiles.saturating_mul(cut.heads_k) >= rounds * resident
}

/// How many heads' tiles lie side by side in a list.
///
/// As many as fill the device once, where these leave no more than a sixteenth of it idle. Otherwise tiles that lie in the
/// same group cannot all run beside each other, and it is better to have several times as many as blocks: a block that has done a
/// short tile then finds a long one. Groups alternate between ascending and descending order, so there are an even number of them, of
/// one size.
/// `tests/tests/schedule` compares this with other choices.
///
/// But not more than `most`, if these fill the device once. Under a causal mask the tiles that run are spread over all queries of
/// their heads, so that is what the L2 cache keeps: eight heads of 70 tiles, more than that, have run at 0.86 of the speed of two
/// heads of 66 (H200). Without a mask tiles follow one another closely, however many heads there are.
fn heads_of_a_list(side_by_side: &Schedule, resident: u32, most: u64) -> u32 {
    /// Tiles of a group, in all the blocks that the device holds, where they do not fit it.
    const ROUNDS: u64 = 3;
    let (tiles, heads) = (
        u64::from(side_by_side.tiles.max(1)),
        u64::from(side_by_side.heads),
    );
    let (fitting, resident) = (u64::from(side_by_side.heads_per_group), u64::from(resident));
    let over = (fitting * tiles) % resident;
    let fits = 16 * over.min(resident - over) <= resident;
    if fits {
        return in_even_groups(heads, fitting);
    }
    let wanted = (ROUNDS * resident).div_ceil(tiles);
    if wanted <= most || most < fitting {
        return in_even_groups(heads, wanted);
    }
    // As many as nearly fill the device, in groups of one size if that can be.
    let fills = |n: &u64| 8 * n * tiles >= 7 * resident && heads.is_multiple_of(2 * n);
    match (1..=most).rev().find(fills) {
        Some(n) => n as u32,
        None => in_even_groups(heads, most),
    }
}

/// So many heads of a group, or about as many, that groups are of one size and an even number.
fn in_even_groups(heads: u64, wanted: u64) -> u32 {
    let pairs = ((heads + wanted) / (2 * wanted)).max(1);
    heads.div_ceil(2 * pairs).max(1) as u32
}

/// So many heads of a group, or about as many, that an even number of groups lacks few heads, or none: those that are left over for a
/// small last group leave much of the device idle. From three quarters of the wanted number up to twice as many; of equally good numbers the
/// one whose ratio to it is the least.
fn in_full_groups(heads: u64, wanted: u64) -> u32 {
    let wanted = wanted.clamp(1, heads.div_ceil(2).max(1));
    let sizes = (3 * wanted).div_ceil(4)..2 * wanted;
    // Larger over smaller, in 64ths.
    let ratio = |n: u64| 64 * n.max(wanted) / n.min(wanted);
    let best = sizes.min_by_key(|&n| (lacking(heads, n), ratio(n)));
    best.unwrap_or(wanted) as u32
}

/// How many heads more an even number of groups would have. Blocks are idle that long: of two groups one ascends and one descends, so
/// that a block does a long tile and a short one.
pub(super) fn lacking(heads: u64, of_group: u64) -> u64 {
    heads.next_multiple_of(2 * of_group) - heads
}

/// Blocks that the device holds at once.
pub fn resident_blocks(device: &DeviceInfo, footprint: &Footprint) -> u32 {
    device.n_sms.saturating_mul(footprint.blocks_per_sm).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_a_list_are_full_where_they_can_be() {
        for (heads, wanted, expected) in [
            // Measured: head_dim 128 and 64, under a causal mask and without one.
            (16, 3, 4),
            (16, 8, 8),
            (32, 7, 8),
            (32, 8, 8),
            (28, 8, 7),
            (30, 8, 15),
            (12, 8, 6),
            (12, 3, 3),
            (71, 8, 9),
            (71, 3, 3),
            (5, 8, 3),
            (3, 8, 2),
            (3, 1, 1),
            (1, 8, 1),
            (0, 8, 1),
        ] {
            assert_eq!(
                in_full_groups(heads, wanted),
                expected,
                "{wanted} of {heads}"
            );
        }
    }

    #[test]
    fn every_size_of_the_largest_share_comes_up_once() {
        let of = |group_size| numbers_of_shares(group_size).collect::<Vec<_>>();
        assert_eq!(of(1), []);
        assert_eq!(of(2), [2]);
        assert_eq!(of(7), [2, 3, 4, 7]);
        assert_eq!(of(8), [2, 3, 4, 8]);
        assert_eq!(of(71)[..5], [2, 3, 4, 5, 6]);
        assert_eq!(of(71)[12..], [24, 36, 71]);
    }
}

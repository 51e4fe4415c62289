//! How many blocks a kernel gets and in which order they take the tiles. Choices of speed only: every choice gives the
//! same results.

use ferroflash_kernels::attention::block_order;
use ferroflash_kernels::attention::mask::{Band, Work};
use ferroflash_kernels::config::Footprint;
use ferroflash_kernels::params::{FASTEST, ORDERED, SHIFTED, Schedule};

use super::backward::Cut;
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
    tiles: u32,
    heads: u32,
    group_size: u32,
    element_bytes: u64,
) -> Schedule {
    let heads_per_group = match problem.work() {
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

/// What is decided of flash3's backward pass: how tiles are cut, and taken.
#[derive(Clone, Copy, Debug)]
pub struct TmaBackward {
    /// Into how many shares query heads are divided, too.
    pub cut: Cut,
    /// The order of the tiles.
    pub schedule: Schedule,
    /// How long that takes by a model of it, in [`STEP`]s.
    pub time: u64,
}

/// The same of flash3: tiles go round in shifted order, or are claimed from a list in groups that fill the device well. Where query
/// heads share keys and tiles are few, several tiles have the same keys.
pub fn tma_backward(problem: &Problem, device: &DeviceInfo, footprint: &Footprint) -> TmaBackward {
    /// Tiles of so many rounds fill the device well enough.
    const ENOUGH: u64 = 8;
    /// Shares take memory, and the price of misses is known to about this: they pay where the time is less by more.
    const GAIN_PERCENT: u64 = 6;
    let mut best = tma_backward_in_shares(problem, device, footprint, 1);
    let tiles = u64::from(best.cut.tiles).saturating_mul(best.cut.heads_k);
    let resident = u64::from(resident_blocks(device, footprint));
    if tiles == 0 || tiles >= ENOUGH * resident {
        return best;
    }
    let group_size = best.cut.group_size;
    best.time -= best.time / 100 * GAIN_PERCENT;
    for n_shares in (2..=group_size).filter(|&n| group_size.is_multiple_of(n)) {
        let shared = tma_backward_in_shares(problem, device, footprint, n_shares);
        if shared.time < best.time {
            best = shared;
        }
    }
    best
}

/// The same with so many shares, which query heads can be divided into.
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

/// The same where sequences have lengths of their own: from a list, whose tiles are of one head of all sequences. As many heads lie side
/// by side as the L2 cache keeps of the longest sequence: few tiles of the same head then run at a time, and follow one another
/// closely. All heads at once, or half as many, are 3 to 10 % slower (H200, nine lengths of 16k tokens).
pub fn tma_backward_in_a_list(
    problem: &Problem,
    cut: &Cut,
    device: &DeviceInfo,
    footprint: &Footprint,
) -> Schedule {
    let schedule = backward(problem, cut, device, footprint);
    let wanted = heads_in_l2(problem, cut).max(schedule.heads_per_group.into());
    Schedule {
        heads_per_group: in_even_groups(schedule.heads.into(), wanted),
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
fn head_bytes(problem: &Problem, cut: &Cut) -> u64 {
    let row_bytes = (2 * problem.dtype().size_bytes() + 4) * problem.head_dim();
    cut.group_size
        .saturating_mul(problem.seqlen_q() as u64)
        .saturating_mul(row_bytes as u64)
        .max(1)
}

/// Whether tiles of all heads lie side by side in a list: under a causal mask, where the L2 cache does not keep a single head. Few
/// tiles of each head run then, of nearly the same length, and one after another closely, so that one in so many steps as there
/// are tiles of a head misses. In groups most do: 72 to 97 % at 48k tokens and more, by the simulator of `tests/tests/schedule`.
///
/// Tiles that meet several heads wait for longer ones at each further head, so there have to be more of them.
fn streams_all_heads(problem: &Problem, cut: &Cut, resident: u32) -> bool {
    let rounds = if cut.group_size == 1 { 7 } else { 12 };
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

/// Of a model of time: one block of queries.
pub const STEP: u64 = 100;
/// Beginning and end of a tile, while nothing is multiplied.
const TILE_EDGES: u64 = 3 * STEP;
/// To add dV and dK of a tile to those of another share.
const SUM: u64 = 150;
/// How much later a share has added to the same sums than the share before, where both end at once.
const SUM_HAND_OVER: u64 = 185;
/// Where q, dO and the accumulator of dQ do not stay in the L2 cache, a step takes so much longer (H200: 15 to 20).
const MISS_PERCENT: u64 = 18;
/// What waits cost where groups of heads do not fill the device well: 10 to 20, by the simulator.
const ILL_GROUPS_PERCENT: u64 = 15;
/// How much stays there: a little more than half shifted of heads of their own pass, which are fast: see [`heads_in_l2`].
const L2_BYTES: u64 = 36 << 20;

/// A tile's time beside its steps.
fn edges(cut: &Cut) -> u64 {
    TILE_EDGES + if cut.n_shares > 1 { SUM } else { 0 }
}

/// How long the last one waits of shares of the same keys that begin and end together.
fn wait_for_sums(cut: &Cut, schedule: &Schedule) -> u64 {
    let kv_heads = (cut.heads_k / cut.n_shares).max(1);
    let together = u64::from(schedule.heads_per_group).div_ceil(kv_heads);
    SUM_HAND_OVER * together.min(cut.n_shares).saturating_sub(1)
}

/// Time until the last tile ends, in shifted order: groups of heads follow one another, and all tiles of a group are resident at
/// once. Never, where they cannot be, or where they would not begin apart.
///
/// In shifted order tiles are spread over all query blocks of their heads. Where these are more than the L2 cache keeps, as they are
/// where several query heads share keys, every step misses it. In a list tiles follow one another closely.
fn time_shifted(problem: &Problem, cut: &Cut, shifted: &Schedule, resident: u32) -> u64 {
    let together = block_order::tiles_per_ring(shifted);
    let steps = cut.q_blocks().saturating_mul(cut.group_size);
    if together > resident || u64::from(together) > steps {
        return u64::MAX;
    }
    let groups = shifted.heads.div_ceil(shifted.heads_per_group);
    let rounds = u64::from(groups) * u64::from(shifted.stride);
    let time = rounds.saturating_mul(steps.saturating_mul(STEP).saturating_add(edges(cut)));
    let bytes = head_bytes(problem, cut).saturating_mul(shifted.heads_per_group.into());
    let misses = if bytes > L2_BYTES { MISS_PERCENT } else { 0 };
    time.saturating_add(time.saturating_mul(misses) / 100)
        .saturating_add(wait_for_sums(cut, shifted))
}

/// The same where they are claimed from a list: blocks are always busy, but for those that begin together. Each of these follows
/// its left neighbour a step behind.
fn time_in_a_list(cut: &Cut, list: &Schedule, resident: u32) -> u64 {
    let steps = cut.q_blocks().saturating_mul(cut.group_size);
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

/// The same under a mask, where tiles differ in length: no less than the longest, and than the share of a block in all. Groups end
/// with short tiles, or begin with long ones, so blocks end at about the same time.
fn time_in_a_band(
    problem: &Problem,
    cut: &Cut,
    list: &Schedule,
    footprint: &Footprint,
    resident: u32,
) -> u64 {
    let band = Band::new(
        problem.seqlen_q() as u32,
        problem.seqlen_k() as u32,
        problem.window_of(problem.seqlen_q() as u32, problem.seqlen_k() as u32),
        problem.bounds(),
    );
    // Tiles of equal lengths keep their distance in further rounds. These do not: some wait each time.
    let edges = edges(cut) + wait_for_sums(cut, list) / 2;
    let (mut all, mut longest) = (0_u64, 0_u64);
    for tile in 0..list.tiles {
        let blocks = block_order::q_blocks(&band, tile, footprint.block_q, footprint.block_k);
        let steps = u64::from(blocks.n()).saturating_mul(cut.group_size);
        if steps > 0 {
            let time = steps.saturating_mul(STEP).saturating_add(edges);
            all = all.saturating_add(time);
            longest = longest.max(time);
        }
    }
    let time = longest.max(all.saturating_mul(cut.heads_k).div_ceil(resident.into()));
    let missed = if streams_all_heads(problem, cut, resident) {
        cut.heads_k * 100 / u64::from(resident)
    } else {
        let bytes = head_bytes(problem, cut).saturating_mul(list.heads_per_group.into());
        bytes.saturating_sub(L2_BYTES) / (bytes / 100).max(1)
    };
    // Groups that neither fill the device nearly once, nor several times, wait for each other.
    let of_group = u64::from(list.heads_per_group) * u64::from(list.tiles);
    let resident = u64::from(resident);
    let ill = of_group < 2 * resident
        && list.heads_per_group < list.heads
        && !(7 * resident..=8 * resident + resident / 2).contains(&(8 * of_group));
    let waits = if ill { ILL_GROUPS_PERCENT } else { 0 };
    let percent = missed * MISS_PERCENT / 100 + waits;
    time.saturating_add(time.saturating_mul(percent) / 100)
}

/// Blocks that the device holds at once.
pub fn resident_blocks(device: &DeviceInfo, footprint: &Footprint) -> u32 {
    device.n_sms.saturating_mul(footprint.blocks_per_sm).max(1)
}

//! Every block of dQ is met by every tile that it sees, once, in ranks without a gap; tiles in shifted order keep out of each
//! other's way; and whoever waits may add in the end.

use std::collections::HashMap;

use ferroflash_kernels::attention::mask::Bounds;
use ferroflash_kernels::params::{FASTEST, ORDERED, SHIFTED, Schedule, Shape, Window};
use ferroflash_lab::timeline::backward::{Ending, Launch, Times, run};
use proptest::prelude::*;
use proptest::sample::select;

/// Sequences up to so long, of a few heads, in a list, or in shifted order of all tiles or of every second one, in groups of any number
/// of heads, with any number of blocks that can be.
fn launches(max_seqlen: u32, order: u32) -> impl Strategy<Value = Launch> {
    // Distances to the left and to the right.
    let side = move || prop_oneof![1 => Just(None), 1 => Just(Some(0)), 2 => (0..max_seqlen).prop_map(Some)];
    let sides = match order {
        SHIFTED => Just((None, None)).boxed(),
        _ => (side(), side()).boxed(),
    };
    (
        (1..=max_seqlen, 1..=max_seqlen, any::<bool>()),
        (1u32..3, 1u32..4, 1u32..4, (1u32..4, 0u32..3)),
        sides,
        (select(vec![64u32, 80, 128]), select(vec![64u32, 128])),
        (1u32..20, 0u32..20, select(vec![1u32, 2]), 0..=max_seqlen),
    )
        .prop_map(
            move |(
                (q, k, equal),
                (batch, kv_heads, group_size, (n_head_splits, n_larger_head_splits)),
                (left, right),
                (block_q, block_k),
                rest,
            )| {
                let (resident, of_group, stride, prefix) = rest;
                let seqlen_q = if equal { k } else { q };
                let tiles = k.div_ceil(block_k);
                let heads_k = kv_heads * n_head_splits;
                // Shifted are even shares only.
                let n_larger_head_splits = match order {
                    SHIFTED => 0,
                    _ => n_larger_head_splits % n_head_splits,
                };
                let shape = Shape {
                    batch,
                    heads_q: heads_k * group_size + kv_heads * n_larger_head_splits,
                    heads_k,
                    group_size,
                    seqlen_q,
                    seqlen_k: k,
                    head_dim: 64,
                    head_dim_v: 64,
                };
                let heads = batch * heads_k;
                let steps = seqlen_q.div_ceil(block_q) * group_size;
                let heads_per_group = 1 + of_group % heads;
                // Shifted of every second tile are of one size.
                let stride = match order {
                    SHIFTED if tiles % 2 == 0 => stride,
                    _ => 1,
                };
                let together = tiles / stride;
                let shifted = order == SHIFTED && together <= steps;
                let grid = match shifted {
                    true => together * heads_per_group,
                    false => resident.min(tiles * heads),
                };
                Launch {
                    shape,
                    window: Window::new(seqlen_q, k, left.unwrap_or(0), right.unwrap_or(0))
                        .with_prefix(prefix),
                    bounds: Bounds {
                        left: left.is_some(),
                        right: right.is_some(),
                        prefix: right.is_some() && left.is_none(),
                    },
                    schedule: Schedule {
                        tiles,
                        heads_per_group,
                        heads,
                        order: if shifted { SHIFTED } else { ORDERED },
                        stride: if shifted { stride } else { 1 },
                    },
                    n_head_splits,
                    n_larger_head_splits,
                    block_q,
                    block_k,
                    grid,
                    resident: grid,
                }
            },
        )
}

/// Lists and shifted.
fn any_launches(max_seqlen: u32) -> impl Strategy<Value = Launch> {
    prop_oneof![launches(max_seqlen, ORDERED), shifted(max_seqlen)]
}

fn shifted(max_seqlen: u32) -> impl Strategy<Value = Launch> {
    launches(max_seqlen, SHIFTED).prop_filter("fewer steps than tiles", |launch| {
        launch.schedule.order == SHIFTED
    })
}

/// The tiles of keys that some query of a block sees, by asking every pair of a query and a tile's first and last key that it may
/// see.
fn tiles_of_block(launch: &Launch, block: u32) -> Vec<u32> {
    let band = launch.band();
    let first = block * launch.block_q;
    let queries = first..(first + launch.block_q).min(launch.shape.seqlen_q);
    let meets = |tile: &u32| {
        let keys = tile * launch.block_k..(tile + 1) * launch.block_k;
        queries
            .clone()
            .any(|query| keys.clone().any(|key| band.keep(query, key)))
    };
    (0..launch.schedule.tiles).filter(meets).collect()
}

/// A step takes anything from nothing to a while.
fn delays(seed: u64) -> impl FnMut(u32) -> u64 {
    let mut state = seed;
    move |_| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        match (state >> 60) % 4 {
            0 => state >> 58,
            _ => 0,
        }
    }
}

const TIMES: Times = Times {
    begin: 3,
    step: 1,
    end: 1,
    hand_over: 1,
    sum: 1,
};

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_tile_meets_every_block_that_sees_it_once_and_ranks_have_no_gap(launch in any_launches(600)) {
        let mut ranks_of: HashMap<(u32, u32), Vec<(u32, u32)>> = HashMap::new();
        let mut tiles = HashMap::new();
        for way in launch.ways() {
            for step in &way.steps {
                let block = (launch.query_heads(way.tile.head).first + step.head, step.block);
                ranks_of.entry(block).or_default().push((step.rank, way.tile.k_block));
                let met = tiles.insert((way.tile.k_block, block), ());
                prop_assert!(met.is_none(), "tile {} meets {block:?} twice", way.tile.k_block);
            }
        }
        let Shape { batch, heads_q, seqlen_q, .. } = launch.shape;
        for head in 0..batch * heads_q {
            for block in 0..seqlen_q.div_ceil(launch.block_q) {
                let ranks_of = ranks_of.remove(&(head, block)).unwrap_or_default();
                let (mut ranks, mut tiles): (Vec<u32>, Vec<u32>) = ranks_of.into_iter().unzip();
                ranks.sort_unstable();
                tiles.sort_unstable();
                prop_assert!(ranks.iter().copied().eq(0..tiles.len() as u32), "{ranks:?}");
                let expected = tiles_of_block(&launch, block);
                prop_assert_eq!(tiles, expected, "block {} of head {}", block, head);
            }
        }
        prop_assert!(ranks_of.is_empty(), "blocks that do not exist: {ranks_of:?}");
    }

    #[test]
    fn tiles_of_a_shifted_order_never_ask_for_one_block_in_one_step(launch in shifted(4000)) {
        let mut asked = HashMap::new();
        for way in launch.ways() {
            let order = way.tile.k_block % launch.schedule.stride;
            for (at, step) in way.steps.iter().enumerate() {
                let place = (way.tile.head, order, at, step.head, step.block);
                let other = asked.insert(place, way.tile.k_block);
                prop_assert_eq!(other, None, "and tile {}, in step {}", way.tile.k_block, at);
            }
        }
    }

    /// However many blocks there are, and whoever is late.
    #[test]
    fn every_launch_ends(launch in any_launches(1500), seed in any::<u64>()) {
        let ways = launch.ways();
        let ending = run(&launch, &ways, TIMES, delays(seed));
        prop_assert!(matches!(ending, Ending::Done(_)), "{ending:?}");
    }

    /// Shares of the same keys are claimed in their order, and together meet every query head once: a tile waits, for dV and dK, for
    /// one that was claimed earlier.
    #[test]
    fn shares_are_claimed_in_their_order(launch in any_launches(600)) {
        let mut claimed: HashMap<(u32, u32), u32> = HashMap::new();
        for way in launch.ways() {
            let (kv_head, share) = (way.tile.head / launch.n_head_splits, way.tile.head % launch.n_head_splits);
            let before = claimed.entry((kv_head, way.tile.k_block)).or_default();
            prop_assert_eq!(*before, share);
            *before += 1;
        }
        prop_assert!(claimed.values().all(|&n| n == launch.n_head_splits));
    }

    /// Nobody waits in a shifted order whose tiles all begin together.
    #[test]
    fn the_shifted_order_costs_no_time(launch in shifted(4000)) {
        let Schedule { tiles, heads, .. } = launch.schedule;
        let grid = tiles * heads;
        let with = |order| {
            let schedule = Schedule { heads_per_group: heads, order, stride: 1, ..launch.schedule };
            let launch = Launch { schedule, grid, resident: grid, n_head_splits: 1, ..launch };
            run(&launch, &launch.ways(), TIMES, |_| 0)
        };
        let steps = launch.shape.seqlen_q.div_ceil(launch.block_q) * launch.shape.group_size;
        prop_assume!(tiles <= steps);
        prop_assert_eq!(with(SHIFTED), with(FASTEST));
    }
}

fn full(seqlen_q: u32, seqlen_k: u32, heads: u32) -> Shape {
    Shape {
        batch: 1,
        heads_q: heads,
        heads_k: heads,
        group_size: 1,
        seqlen_q,
        seqlen_k,
        head_dim: 64,
        head_dim_v: 64,
    }
}

/// What the planner and the driver have to rule out: a shifted order with a tile that is not resident.
#[test]
fn a_shifted_order_whose_tiles_are_not_all_resident_is_stuck() {
    let launch = Launch {
        shape: full(512, 512, 2),
        window: Window::default(),
        bounds: Bounds {
            left: false,
            right: false,
            prefix: false,
        },
        schedule: Schedule {
            tiles: 4,
            heads_per_group: 1,
            heads: 2,
            order: SHIFTED,
            stride: 1,
        },
        n_head_splits: 1,
        n_larger_head_splits: 0,
        block_q: 64,
        block_k: 128,
        grid: 4,
        resident: 4,
    };
    let ways = launch.ways();
    assert_eq!(
        run(&launch, &ways, TIMES, |_| 0),
        Ending::Done(2 * (3 + 8 + 1))
    );
    let crowded = Launch {
        resident: 3,
        ..launch
    };
    assert_eq!(run(&crowded, &ways, TIMES, |_| 0), Ending::Stuck(3));
}

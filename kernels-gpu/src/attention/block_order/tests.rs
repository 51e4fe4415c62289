//! Orders of blocks: all tiles of small launches, step by step.

use std::collections::HashMap;

use super::*;
use crate::attention::mask::{Bounds, Work};
use crate::attention::schedule;
use crate::params::{ORDERED, Window};

const BLOCK_Q: u32 = 3;
const BLOCK_K: u32 = 4;

/// A head's tiles of keys, in their order of blocks of queries.
struct Launch {
    band: Band,
    schedule: Schedule,
    group_size: u32,
}

/// A tile adds to a block of dQ of a query head.
struct Step {
    head: u32,
    block: u32,
    rank: u32,
}

impl Launch {
    /// By distances to the left and to the right, and the prefix.
    fn new(seqlen_q: u32, seqlen_k: u32, (left, right, prefix): Sides, group_size: u32) -> Launch {
        let bounds = Bounds {
            left: left.is_some(),
            right: right.is_some(),
            prefix: prefix > 0,
        };
        let window = Window::new(seqlen_q, seqlen_k, left.unwrap_or(0), right.unwrap_or(0));
        let window = window.with_prefix(prefix);
        let schedule = Schedule {
            tiles: seqlen_k.div_ceil(BLOCK_K),
            heads_per_group: 1,
            heads: 1,
            order: ORDERED,
            stride: 1,
        };
        Launch {
            band: Band::new(seqlen_q, seqlen_k, window, bounds),
            schedule,
            group_size,
        }
    }

    /// Without a mask, in shifted order.
    fn shifted(q_blocks: u32, tiles: u32, group_size: u32, stride: u32) -> Launch {
        let launch = Launch::new(
            q_blocks * BLOCK_Q,
            tiles * BLOCK_K,
            (None, None, 0),
            group_size,
        );
        Launch {
            schedule: Schedule {
                order: SHIFTED,
                stride,
                ..launch.schedule
            },
            ..launch
        }
    }

    fn work(&self) -> Work {
        self.band.bounds().work()
    }

    fn blocks(&self, tile: u32) -> Blocks {
        q_blocks(&self.band, tile, BLOCK_Q, BLOCK_K)
    }

    /// Each tile as the schedule has them, and its steps.
    fn orders(&self) -> Vec<(BackwardTile, Vec<Step>)> {
        let tiles = (0..self.schedule.tiles)
            .map(|tile_idx| schedule::backward(&self.schedule, self.work(), tile_idx));
        let steps = |tile: BackwardTile| {
            let blocks = self.blocks(tile.k_block);
            let mut order =
                BlockOrder::begin(self.band, tile, blocks, &self.schedule, self.group_size);
            let mut steps = Vec::new();
            for _ in 0..order.steps() {
                steps.push(Step {
                    head: order.head,
                    block: order.block,
                    rank: order.rank(BLOCK_Q, BLOCK_K),
                });
                order.advance();
            }
            (tile, steps)
        };
        tiles.map(steps).collect()
    }

    /// Whether a query of the block sees a key of the tile.
    fn meets(&self, tile: u32, block: u32) -> bool {
        let keys = tile * BLOCK_K..(tile + 1) * BLOCK_K;
        let queries = block * BLOCK_Q..((block + 1) * BLOCK_Q).min(self.band.seqlen_q());
        queries
            .into_iter()
            .any(|query| keys.clone().any(|key| self.band.keep(query, key)))
    }
}

/// How far queries see to the left and to the right, `None` without an end, and the prefix.
type Sides = (Option<u32>, Option<u32>, u32);

const SIDES: [Sides; 9] = [
    (None, None, 0),
    (None, Some(0), 0),
    (None, Some(5), 0),
    (Some(0), None, 0),
    (Some(6), None, 0),
    (Some(6), Some(0), 0),
    (Some(2), Some(7), 0),
    (None, Some(0), 3),
    (None, Some(0), 9),
];

fn lists() -> impl Iterator<Item = Launch> {
    let seqlens = (1..20).flat_map(|q| (1..20).map(move |k| (q, k)));
    let sided = seqlens.flat_map(|(q, k)| SIDES.map(|sides| (q, k, sides)));
    sided.flat_map(|(q, k, sides)| [1, 3].map(|group| Launch::new(q, k, sides, group)))
}

/// Shifted orders that can be: not more tiles than steps.
fn shifted() -> impl Iterator<Item = Launch> {
    let sizes = (1..9).flat_map(|blocks| (1..13).map(move |tiles| (blocks, tiles)));
    let grouped = sizes.flat_map(|(blocks, tiles)| [1, 2, 3].map(|group| (blocks, tiles, group)));
    let strided = grouped.flat_map(|sizes| [1, 2].map(|stride| (sizes, stride)));
    strided
        .filter(|((blocks, tiles, group), stride)| {
            tiles % stride == 0 && tiles / stride <= blocks * group
        })
        .map(|((blocks, tiles, group), stride)| Launch::shifted(blocks, tiles, group, stride))
}

/// Every block of every query head, once.
#[test]
fn a_tile_visits_each_block_that_it_meets_once() {
    for launch in lists().chain(shifted()) {
        let blocks = launch.band.seqlen_q().div_ceil(BLOCK_Q);
        for (tile, steps) in launch.orders() {
            let mut visited: Vec<_> = steps.iter().map(|step| (step.head, step.block)).collect();
            visited.sort_unstable();
            let meets = |block: &u32| launch.meets(tile.k_block, *block);
            let of_head = |head| (0..blocks).filter(meets).map(move |block| (head, block));
            let expected: Vec<_> = (0..launch.group_size).flat_map(of_head).collect();
            assert_eq!(visited, expected, "{tile:?} {:?}", launch.band);
        }
    }
}

/// Tiles that are claimed before add before.
#[test]
fn ranks_in_a_list_count_the_tiles_claimed_before() {
    for launch in lists() {
        let mut before: HashMap<(u32, u32), u32> = HashMap::new();
        for (tile, steps) in launch.orders() {
            for Step { head, block, rank } in steps {
                let seen = before.entry((head, block)).or_default();
                assert_eq!(rank, *seen, "{tile:?} {block} {:?}", launch.band);
                *seen += 1;
            }
        }
    }
}

/// Of the tiles that share a shifted order, each begins the same distance before its left neighbour.
#[test]
fn a_shifted_order_begins_at_equal_distances() {
    for launch in shifted() {
        let together = tiles_per_ring(&launch.schedule);
        assert_eq!(together * launch.schedule.stride, launch.schedule.tiles);
        for (tile, steps) in launch.orders() {
            let blocks = launch.blocks(tile.k_block).end;
            let n_steps = blocks * launch.group_size;
            let before = tile.k_block / launch.schedule.stride * (n_steps / together);
            let first = steps[0].head * blocks + steps[0].block;
            assert_eq!(first, (n_steps - before) % n_steps, "{tile:?}");
        }
    }
}

/// Which shifted order, after how many steps, and the rank.
type Visit = (u32, usize, u32);

/// Where tiles of a shifted order begin together, no two are at a block at a time, and who comes first adds first; tiles of the
/// shifted order before have added.
#[test]
fn ranks_of_a_shifted_order_are_by_time() {
    for launch in shifted() {
        let mut visits: HashMap<(u32, u32), Vec<Visit>> = HashMap::new();
        for (tile, steps) in launch.orders() {
            let ring = tile.k_block % launch.schedule.stride;
            for (time, step) in steps.into_iter().enumerate() {
                let of_block = visits.entry((step.head, step.block)).or_default();
                of_block.push((ring, time, step.rank));
            }
        }
        for of_block in visits.values_mut() {
            of_block.sort_unstable();
            let at_once = |pair: &[Visit]| (pair[0].0, pair[0].1) == (pair[1].0, pair[1].1);
            assert!(!of_block.windows(2).any(at_once), "{:?}", launch.schedule);
            let ranks = of_block.iter().map(|visit| visit.2);
            assert!(ranks.eq(0..launch.schedule.tiles), "{:?}", launch.schedule);
        }
    }
}

#[test]
fn tiles_of_a_shifted_order_have_a_block_of_threads_each() {
    for (stride, expected) in [(1, 18), (2, 9)] {
        let schedule = Schedule {
            tiles: 6,
            heads_per_group: 3,
            heads: 7,
            order: SHIFTED,
            stride,
        };
        assert_eq!(shifted_blocks(&schedule), expected);
    }
}

//! The order of the tiles that blocks work on, as pure functions that the host's tests check.
//!
//! The forward pass takes one tile of queries at a time. Heads are taken in groups whose keys and values fit the L2 cache. In a group all heads'
//! tiles with the same index are consecutive, and the longest tiles come first, so that the last blocks to
//! run are short.
//!
//! The backward pass claims tiles of keys from a counter. In the deterministic order a tile adds to a block of dQ only after
//! the tiles before it in that block's order. The order is chosen such that a tile waits only for tiles that were claimed
//! earlier (no deadlock, for any number of running blocks) and mostly for none:
//!
//! - full: key tiles ascending, all from the last query block down; a tile follows its left neighbour at a step's
//!   distance;
//! - causal, or a window: groups of heads alternate between *up* and *down*. Up means key tiles descending, each from its first
//!   query block up: a tile comes to block `i` after every tile to its right has. Down means key tiles ascending, each
//!   from its last query block down. In one of the two all tiles can start together, shortest first; in the other all can end
//!   together, longest first. The last group is of the second kind: a block that has finished a short tile takes a long one.

use super::divide;
use super::mask::Work;
use crate::params::Schedule;

/// One tile of the forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardTile {
    /// The tile of queries.
    pub q_block: u32,
    /// The (batch, head): `batch_idx · heads_q + head_idx`.
    pub head: u32,
}

/// The order in which a tile of keys visits the query blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From its first block to the last; under a causal mask, tiles add to a block in descending order.
    Up,
    /// From the last block to its first; tiles add to a block in ascending order.
    Down,
}

/// One tile of the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackwardTile {
    /// The tile of keys.
    pub k_block: u32,
    /// The (batch, KV head): `batch_idx · heads_k + head_idx`. Splits count as KV heads: see
    /// [`crate::params::BackwardParams::n_head_splits`].
    pub head: u32,
    /// The order in which it visits query blocks.
    pub direction: Direction,
}

/// A place in the grouped order: `step` counts tiles of one head, `head` all heads, `group` the groups.
struct Position {
    step: u32,
    head: u32,
    group: u32,
}

#[inline(always)]
fn place(schedule: &Schedule, idx: u32) -> Position {
    let per_group = schedule.heads_per_group * schedule.tiles;
    let group = divide(idx, per_group);
    let first_head = group * schedule.heads_per_group;
    let left = schedule.heads - first_head;
    let heads = if left < schedule.heads_per_group {
        left
    } else {
        schedule.heads_per_group
    };
    let within = idx - group * per_group;
    let step = divide(within, heads);
    Position {
        step,
        head: first_head + (within - step * heads),
        group,
    }
}

/// The tile of the `idx`-th block of the forward pass.
#[inline(always)]
pub fn forward(schedule: &Schedule, work: Work, idx: u32) -> ForwardTile {
    let place = place(schedule, idx);
    let tile = match work {
        Work::Even | Work::Shrinking => place.step,
        Work::Growing => schedule.tiles - 1 - place.step,
    };
    ForwardTile {
        q_block: tile,
        head: place.head,
    }
}

/// The tile that is taken as the `step`-th: if every second one is taken first, 0, 2, 4, …, then 1, 3, 5, …
#[inline(always)]
fn strided(schedule: &Schedule, step: u32) -> u32 {
    let even = schedule.tiles.div_ceil(2);
    if schedule.stride != 2 {
        step
    } else if step < even {
        2 * step
    } else {
        2 * (step - even) + 1
    }
}

/// The tile with this tile_idx in the backward pass.
#[inline(always)]
pub fn backward(schedule: &Schedule, work: Work, tile_idx: u32) -> BackwardTile {
    let place = place(schedule, tile_idx);
    let last_group = divide(schedule.heads - 1, schedule.heads_per_group);
    let tile = strided(schedule, place.step);
    let odd = (last_group - place.group) % 2 == 1;
    let up = match work {
        Work::Even => false,
        Work::Growing => odd,
        Work::Shrinking => !odd,
    };
    if up {
        BackwardTile {
            k_block: schedule.tiles - 1 - tile,
            head: place.head,
            direction: Direction::Up,
        }
    } else {
        BackwardTile {
            k_block: tile,
            head: place.head,
            direction: Direction::Down,
        }
    }
}

/// The same if each KV head counts `n_head_splits` times: first come all heads' first splits, then all second ones. So a tile starts as late as
/// possible after the one that it waits for, which has the same keys and the previous split.
#[inline(always)]
pub fn backward_head_splits(
    schedule: &Schedule,
    work: Work,
    tile_idx: u32,
    n_head_splits: u32,
) -> BackwardTile {
    let tile = backward(schedule, work, tile_idx);
    let kv_heads = divide(schedule.heads, n_head_splits);
    let split = divide(tile.head, kv_heads);
    BackwardTile {
        head: (tile.head - split * kv_heads) * n_head_splits + split,
        ..tile
    }
}

/// Adjacent query heads, which a tile of keys visits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryHeads {
    /// The first head.
    pub first: u32,
    /// How many.
    pub n: u32,
}

/// Head splits: how the query heads of a KV head are divided among tiles. They differ by at most one head: larger ones come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadSplits {
    /// How many.
    pub n: u32,
    /// How many of them have one head more than the others; fewer than all.
    pub n_larger: u32,
    /// Query heads of the others; at least 1.
    pub heads: u32,
}

impl HeadSplits {
    /// The query heads of the split `head`: splits of all KV heads are counted, as in [`BackwardTile::head`].
    #[inline(always)]
    pub fn query_heads(&self, head: u32) -> QueryHeads {
        let kv_head = divide(head, self.n);
        let split = head - kv_head * self.n;
        let before = if split < self.n_larger {
            split
        } else {
            self.n_larger
        };
        QueryHeads {
            first: head * self.heads + kv_head * self.n_larger + before,
            n: self.heads + (split < self.n_larger) as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn splits_follow_one_another_and_differ_by_one_head_at_most() {
        for (n, heads) in (1..9).flat_map(|n| (1..5).map(move |heads| (n, heads))) {
            for n_larger in 0..n {
                let splits = HeadSplits { n, n_larger, heads };
                let group_size = n * heads + n_larger;
                let mut next = 0;
                for head in 0..3 * n {
                    let QueryHeads { first, n: of_split } = splits.query_heads(head);
                    assert_eq!(first, next, "{splits:?}");
                    assert!(of_split == heads || of_split == heads + 1, "{splits:?}");
                    next += of_split;
                    if (head + 1) % n == 0 {
                        assert_eq!(next, (head + 1) / n * group_size, "{splits:?}");
                    }
                }
            }
        }
    }

    const WORKS: [Work; 3] = [Work::Even, Work::Growing, Work::Shrinking];

    fn schedules() -> impl Iterator<Item = Schedule> {
        (1..7).flat_map(|tiles| {
            (1..8).flat_map(move |heads| {
                (1..=heads).map(move |heads_per_group| Schedule {
                    tiles,
                    heads_per_group,
                    heads,
                    order: 0,
                    stride: 1,
                })
            })
        })
    }

    #[test]
    fn every_tile_once() {
        for (schedule, work) in schedules().flat_map(|s| WORKS.map(|w| (s, w))) {
            let n = schedule.tiles * schedule.heads;
            let expected: HashSet<_> = (0..schedule.tiles)
                .flat_map(|t| (0..schedule.heads).map(move |h| (t, h)))
                .collect();
            let forward: HashSet<_> = (0..n)
                .map(|i| forward(&schedule, work, i))
                .map(|t| (t.q_block, t.head))
                .collect();
            let backward: HashSet<_> = (0..n)
                .map(|i| backward(&schedule, work, i))
                .map(|t| (t.k_block, t.head))
                .collect();
            assert_eq!(forward, expected);
            assert_eq!(backward, expected);
        }
    }

    /// A tile waits for tiles of its head that come before it in the order of its direction: these must be claimed earlier, that is,
    /// have lower numbers.
    #[test]
    fn tiles_wait_only_for_tiles_claimed_earlier() {
        for (schedule, work) in schedules().flat_map(|s| WORKS.map(|w| (s, w))) {
            let mut seen: Vec<BackwardTile> = Vec::new();
            for tile_idx in 0..schedule.tiles * schedule.heads {
                let tile = backward(&schedule, work, tile_idx);
                let before = seen.iter().filter(|t| t.head == tile.head);
                match tile.direction {
                    Direction::Down => {
                        assert_eq!(before.map(|t| t.k_block).max(), tile.k_block.checked_sub(1))
                    }
                    Direction::Up => {
                        let expected = Some(tile.k_block + 1).filter(|&t| t < schedule.tiles);
                        assert_eq!(before.map(|t| t.k_block).min(), expected);
                    }
                }
                seen.push(tile);
            }
        }
    }

    #[test]
    fn every_second_tile_comes_first_where_the_stride_is_two() {
        for tiles in 1..9 {
            let schedule = Schedule {
                tiles,
                heads_per_group: 1,
                heads: 1,
                order: 0,
                stride: 2,
            };
            let taken = (0..tiles).map(|idx| backward(&schedule, Work::Even, idx).k_block);
            let expected = (0..tiles).step_by(2).chain((1..tiles).step_by(2));
            assert!(taken.eq(expected), "{tiles}");
        }
    }

    /// The last group's tiles become shorter, and groups before it take turns.
    #[test]
    fn groups_alternate_and_the_last_one_ends_with_short_tiles() {
        for schedule in schedules() {
            let n_groups = schedule.heads.div_ceil(schedule.heads_per_group);
            for idx in 0..schedule.tiles * schedule.heads {
                let direction = |work| backward(&schedule, work, idx).direction;
                let head = backward(&schedule, Work::Even, idx).head;
                let from_last = n_groups - 1 - head / schedule.heads_per_group;
                let (growing, shrinking) = match from_last % 2 {
                    0 => (Direction::Down, Direction::Up),
                    _ => (Direction::Up, Direction::Down),
                };
                assert_eq!(direction(Work::Even), Direction::Down);
                assert_eq!(direction(Work::Growing), growing, "{schedule:?}");
                assert_eq!(direction(Work::Shrinking), shrinking, "{schedule:?}");
            }
        }
    }

    /// Of the heads of a group, those of the first splits come first.
    #[test]
    fn first_shares_come_first() {
        for (kv_heads, n_head_splits) in (1..5).flat_map(|heads| (1..5).map(move |n| (heads, n))) {
            let heads = kv_heads * n_head_splits;
            let schedule = Schedule {
                tiles: 3,
                heads_per_group: heads,
                heads,
                order: 0,
                stride: 1,
            };
            let expected = (0..n_head_splits)
                .flat_map(|split| (0..kv_heads).map(move |head| head * n_head_splits + split));
            let taken = |idx| backward_head_splits(&schedule, Work::Even, idx, n_head_splits);
            assert!((0..heads).map(|idx| taken(idx).head).eq(expected));
            assert!((0..3 * heads).all(|idx| taken(idx).k_block == idx / heads));
        }
    }
}

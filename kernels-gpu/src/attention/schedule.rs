//! Which tile a block works on: the order of the tiles, as pure functions that the host's tests check.
//!
//! The forward pass takes one tile per block. Heads are taken in groups whose keys and values fit the L2 cache; in a
//! group all heads' tiles of one row of the grid lie side by side, and under a causal mask the longest come first,
//! so that the last blocks to run are short.
//!
//! The backward pass draws tiles of keys from a tile_idx. In the deterministic order a tile adds to a block of dQ only
//! when the tiles before it in that block's order have, so the order is chosen such that a tile waits only for
//! tiles with lower tickets (no deadlock, however few blocks run) and, mostly, for none:
//!
//! - full: key tiles ascending, all from the last query block down; a tile follows its left neighbour at a step's
//!   distance;
//! - causal, groups that walk *up* from the diagonal: shortest tile first. All can start together, since each adds
//!   to its first block at once, and comes to block `i` after every tile to its right has;
//! - causal, groups that walk *down* to the diagonal: longest tile first. All can end together.
//!
//! Groups alternate between the two, the last one goes down: a block that has finished a short upward tile takes a
//! long downward one.

use super::divide;
use super::mask::Work;
use crate::params::Schedule;

/// One tile of the forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardTile {
    /// Which tile of queries.
    pub tile: u32,
    /// Which (batch, head): `batch_idx · heads_q + head_idx`.
    pub head: u32,
}

/// The way a tile of keys walks through the query blocks.
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
    /// Which tile of keys.
    pub tile: u32,
    /// Which (batch, KV head): `batch_idx · heads_k + head_idx`.
    pub head: u32,
    /// Which way it walks.
    pub direction: Direction,
}

/// A place in the grouped order: `step` counts tiles of one head, `head` all heads, `group` the groups.
struct Place {
    step: u32,
    head: u32,
    group: u32,
}

#[inline(always)]
fn place(schedule: &Schedule, idx: u32) -> Place {
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
    Place {
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
        Work::Even => place.step,
        Work::Growing => schedule.tiles - 1 - place.step,
    };
    ForwardTile {
        tile,
        head: place.head,
    }
}

/// The tile that is taken as the `step`-th: where every second one is taken first, 0, 2, 4, …, then 1, 3, 5, …
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
    match work {
        Work::Growing if (last_group - place.group) % 2 == 1 => BackwardTile {
            tile: schedule.tiles - 1 - tile,
            head: place.head,
            direction: Direction::Up,
        },
        _ => BackwardTile {
            tile,
            head: place.head,
            direction: Direction::Down,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const WORKS: [Work; 2] = [Work::Even, Work::Growing];

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
                .map(|t| (t.tile, t.head))
                .collect();
            let backward: HashSet<_> = (0..n)
                .map(|i| backward(&schedule, work, i))
                .map(|t| (t.tile, t.head))
                .collect();
            assert_eq!(forward, expected);
            assert_eq!(backward, expected);
        }
    }

    /// A tile waits for tiles of its head that come before it in the order of its direction: these must have lower
    /// tickets.
    #[test]
    fn tiles_wait_for_lower_tickets_only() {
        for (schedule, work) in schedules().flat_map(|s| WORKS.map(|w| (s, w))) {
            let mut seen: Vec<BackwardTile> = Vec::new();
            for tile_idx in 0..schedule.tiles * schedule.heads {
                let tile = backward(&schedule, work, tile_idx);
                let before = seen.iter().filter(|t| t.head == tile.head);
                match tile.direction {
                    Direction::Down => {
                        assert_eq!(before.map(|t| t.tile).max(), tile.tile.checked_sub(1))
                    }
                    Direction::Up => {
                        let expected = Some(tile.tile + 1).filter(|&t| t < schedule.tiles);
                        assert_eq!(before.map(|t| t.tile).min(), expected);
                    }
                }
                seen.push(tile);
            }
        }
    }
}

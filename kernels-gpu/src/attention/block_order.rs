//! The order in which a tile of keys visits the query blocks, in flash3's backward pass, and its rank among the tiles that add to each of them.
//!
//! A tile visits query blocks of all query heads that share its keys. In the deterministic order tiles add to a block of dQ one
//! after the other; a tile that comes too early waits. So the orders are chosen such that tiles which run at the same time are at
//! different blocks:
//!
//! - *up* and *down*, if a band has an end: see [`Direction`] in [`super::schedule`];
//! - *shifted*, without a mask: the tiles of a head begin at equal distances, the first at block 0, each further one that much
//!   before its left neighbour, and all go up, from the last block on to block 0. Each follows its left neighbour at
//!   the distance, and none waits, if all begin at once.
//!
//! The tile that comes to a block first adds first: the ranks follow from the orders.
//!
//! If a block has more than half as many queries as a tile has keys, neighbours in shifted order would follow each other at the
//! distance of one step, which is shorter than the dQ semaphore's latency. Then every second tile of a head is taken first, and then the others, in
//! a separate shifted order.

use super::divide;
use super::mask::{Band, Blocks, Rows};
use super::schedule::{BackwardTile, Direction};
use crate::params::{SHIFTED, Schedule};

/// The state of a tile in its order.
#[derive(Clone, Copy, Debug)]
pub struct BlockOrder {
    band: Band,
    tile: BackwardTile,
    blocks: Blocks,
    group_size: u32,
    /// In shifted order: how many blocks a tile begins before its left neighbour.
    distance: u32,
    tiles: u32,
    stride: u32,
    /// The query head among those that share the keys.
    pub head: u32,
    /// The query block.
    pub block: u32,
}

/// With [`SHIFTED`]: how many tiles of a head share a shifted order.
#[inline(always)]
pub const fn tiles_per_ring(schedule: &Schedule) -> u32 {
    if schedule.stride == 2 {
        schedule.tiles / 2
    } else {
        schedule.tiles
    }
}

/// With [`SHIFTED`]: how many blocks of threads, the first ones of the grid, have tiles.
#[inline(always)]
pub const fn shifted_blocks(schedule: &Schedule) -> u32 {
    schedule.heads_per_group * tiles_per_ring(schedule)
}

/// The query blocks that a tile of `block_k` keys visits.
#[inline(always)]
pub fn q_blocks(band: &Band, tile: u32, block_q: u32, block_k: u32) -> Blocks {
    let keys = Rows {
        first: tile * block_k,
        len: block_k,
    };
    band.q_blocks(keys, block_q)
}

impl BlockOrder {
    /// The tile before its first step. Blocks are those of [`q_blocks`].
    #[inline(always)]
    pub fn begin(
        band: Band,
        tile: BackwardTile,
        blocks: Blocks,
        schedule: &Schedule,
        group_size: u32,
    ) -> Self {
        let mut order = BlockOrder {
            band,
            tile,
            blocks,
            group_size,
            distance: 0,
            tiles: schedule.tiles,
            stride: schedule.stride,
            head: 0,
            block: match tile.direction {
                Direction::Up => blocks.first,
                // Without blocks there is no first step; a block mask has steps of its own.
                Direction::Down => blocks.end.wrapping_sub(1),
            },
        };
        if schedule.order == SHIFTED {
            let (place, together) = order.place_in_ring();
            order.distance = divide(blocks.end * group_size, together);
            order.tile.direction = Direction::Up;
            let before = place * order.distance;
            let first = if before == 0 {
                0
            } else {
                blocks.end * group_size - before
            };
            order.head = divide(first, blocks.end);
            order.block = first - order.head * blocks.end;
        }
        order
    }

    /// The number of steps.
    #[inline(always)]
    pub fn steps(&self) -> u32 {
        self.blocks.n() * self.group_size
    }

    /// Goes on to the next step.
    #[inline(always)]
    pub fn advance(&mut self) {
        let Blocks { first, end, .. } = self.blocks;
        let (last, next, begin) = match self.tile.direction {
            Direction::Up => (end - 1, self.block.wrapping_add(1), first),
            Direction::Down => (first, self.block.wrapping_sub(1), end - 1),
        };
        if self.block == last {
            self.block = begin;
            // Only a shifted order comes to its first head again.
            self.head = if self.head + 1 == self.group_size {
                0
            } else {
                self.head + 1
            };
        } else {
            self.block = next;
        }
    }

    /// The index of the tile among those that share its shifted order, and their number.
    #[inline(always)]
    fn place_in_ring(&self) -> (u32, u32) {
        if self.stride == 2 {
            (self.tile.k_block / 2, self.tiles / 2)
        } else {
            (self.tile.k_block, self.tiles)
        }
    }

    /// How many tiles add to this step's block of dQ before this one.
    #[inline(always)]
    pub fn rank(&self, block_q: u32, block_k: u32) -> u32 {
        if self.distance > 0 {
            return self.shifted_rank();
        }
        let (first, tile) = (self.block * block_q, self.tile.k_block);
        match self.tile.direction {
            Direction::Down if !self.band.bounds().left => tile,
            direction => {
                let queries = Rows::of_sequence(first, block_q, self.band.seqlen_q());
                let tiles = self.band.kv_blocks(queries, block_k);
                match direction {
                    Direction::Down => tile - tiles.first,
                    Direction::Up => tiles.end - 1 - tile,
                }
            }
        }
    }

    #[inline(always)]
    fn shifted_rank(&self) -> u32 {
        let (place, together) = self.place_in_ring();
        let left = self.blocks.end * self.group_size - (self.head * self.blocks.end + self.block);
        // Tiles from this one on began at the block, or before it without having passed block 0.
        let wrapped = divide(left + self.distance - 1, self.distance);
        let rank = if place >= wrapped {
            place - wrapped
        } else if wrapped < together {
            place + together - wrapped
        } else {
            place
        };
        // The tiles of the shifted order before have all added.
        rank + (self.tile.k_block - place * if self.stride == 2 { 2 } else { 1 }) * together
    }
}

#[cfg(test)]
mod tests;

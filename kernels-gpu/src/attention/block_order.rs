//! The way of a tile of keys through the query blocks, in flash3's backward pass, and its turns to add to them.
//!
//! A tile meets query blocks of all query heads that share its keys. In the deterministic order every block of dQ is added
//! to by one tile after the other; a tile that comes before its turn has to wait. So the ways are chosen such that tiles
//! which run at the same time ask for different blocks:
//!
//! - *up* and *down*, under a causal mask: as [`super::schedule`] says of [`Direction`];
//! - in a *circle*, without a mask: the tiles of a head begin at equal distances, the first at block 0, each further one that
//!   much before its left neighbour, and all walk up, from the last block on to block 0. Each follows its left neighbour at
//!   the distance, and none waits, if all begin at once.
//!
//! Who comes to a block first, adds first: the order follows from the ways alone.
//!
//! Where a block has more than half as many queries as a tile has keys, neighbours in a circle would follow each other at the distance of one
//! step, which is too little for the news that it is the next one's turn. There every second tile of a head is taken first,
//! and then the others, in a circle of their own.

use super::divide;
use super::mask::{Mask, QBlocks, Rows};
use super::schedule::{BackwardTile, Direction};
use crate::params::{SHIFTED, Schedule, Shape};

/// Where a tile is on its way.
#[derive(Clone, Copy, Debug)]
pub struct BlockOrder<M> {
    mask: M,
    tile: BackwardTile,
    blocks: QBlocks,
    group_size: u32,
    /// In a circle: how many blocks a tile begins before its left neighbour.
    distance: u32,
    tiles: u32,
    stride: u32,
    /// Which query head of those that share the keys.
    pub head: u32,
    /// Which query block.
    pub block: u32,
}

/// With [`SHIFTED`]: how many tiles of a head walk in one circle.
#[inline(always)]
pub const fn tiles_per_ring(schedule: &Schedule) -> u32 {
    if schedule.stride == 2 {
        schedule.tiles / 2
    } else {
        schedule.tiles
    }
}

/// With [`SHIFTED`]: how many blocks of threads walk at once, the first ones of the grid. Others have no tile.
#[inline(always)]
pub const fn shifted_blocks(schedule: &Schedule) -> u32 {
    schedule.heads_per_group * tiles_per_ring(schedule)
}

/// The query blocks that a tile of `block_k` keys meets. At least one: where the sequence has none, a block of padding.
#[inline(always)]
pub fn q_blocks<M: Mask>(
    mask: &M,
    tile: u32,
    shape: &Shape,
    block_q: u32,
    block_k: u32,
) -> QBlocks {
    let keys = Rows {
        first: tile * block_k,
        len: block_k,
    };
    let blocks = mask.q_blocks(keys, shape, block_q);
    QBlocks {
        end: if blocks.end == 0 { 1 } else { blocks.end },
        ..blocks
    }
}

impl<M: Mask> BlockOrder<M> {
    /// The tile before its first step. Blocks are those of [`q_blocks`].
    #[inline(always)]
    pub fn begin(
        mask: M,
        tile: BackwardTile,
        blocks: QBlocks,
        schedule: &Schedule,
        group_size: u32,
    ) -> Self {
        let mut walk = BlockOrder {
            mask,
            tile,
            blocks,
            group_size,
            distance: 0,
            tiles: schedule.tiles,
            stride: schedule.stride,
            head: 0,
            block: match tile.direction {
                Direction::Up => blocks.first,
                Direction::Down => blocks.end - 1,
            },
        };
        if schedule.order == SHIFTED {
            let (place, together) = walk.place_in_ring();
            walk.distance = divide(blocks.end * group_size, together);
            walk.tile.direction = Direction::Up;
            let before = place * walk.distance;
            let first = if before == 0 {
                0
            } else {
                blocks.end * group_size - before
            };
            walk.head = divide(first, blocks.end);
            walk.block = first - walk.head * blocks.end;
        }
        walk
    }

    /// How many steps the way has.
    #[inline(always)]
    pub fn steps(&self) -> u32 {
        (self.blocks.end - self.blocks.first) * self.group_size
    }

    /// Goes on to the next step.
    #[inline(always)]
    pub fn advance(&mut self) {
        let QBlocks { first, end, .. } = self.blocks;
        let (last, next, begin) = match self.tile.direction {
            Direction::Up => (end - 1, self.block.wrapping_add(1), first),
            Direction::Down => (first, self.block.wrapping_sub(1), end - 1),
        };
        if self.block == last {
            self.block = begin;
            // Only circles come to their first head again.
            self.head = if self.head + 1 == self.group_size {
                0
            } else {
                self.head + 1
            };
        } else {
            self.block = next;
        }
    }

    /// Which one the tile is of those that walk in one circle, and how many these are.
    #[inline(always)]
    fn place_in_ring(&self) -> (u32, u32) {
        if self.stride == 2 {
            (self.tile.tile / 2, self.tiles / 2)
        } else {
            (self.tile.tile, self.tiles)
        }
    }

    /// How many tiles add to this step's block of dQ before this one.
    #[inline(always)]
    pub fn turn(&self, shape: &Shape, block_q: u32, block_k: u32) -> u32 {
        if self.distance > 0 {
            return self.shifted_rank();
        }
        match self.tile.direction {
            Direction::Down => self.tile.tile,
            Direction::Up => {
                let first = self.block * block_q;
                let tiles = if first < shape.seqlen_q {
                    let queries = Rows::of_sequence(first, block_q, shape.seqlen_q);
                    self.mask.kv_blocks(queries, block_k).end
                } else {
                    // Padding, where the sequence has no query.
                    self.tiles
                };
                tiles - 1 - self.tile.tile
            }
        }
    }

    #[inline(always)]
    fn shifted_rank(&self) -> u32 {
        let (place, together) = self.place_in_ring();
        let left = self.blocks.end * self.group_size - (self.head * self.blocks.end + self.block);
        // Tiles from this one on began at the block, or before it without having passed block 0.
        let wrapped = divide(left + self.distance - 1, self.distance);
        let turn = if place >= wrapped {
            place - wrapped
        } else if wrapped < together {
            place + together - wrapped
        } else {
            place
        };
        // Those of the circle before have all added.
        turn + (self.tile.tile - place * if self.stride == 2 { 2 } else { 1 }) * together
    }
}

//! The blocks that a block mask leaves of each tile: listed on the device, where the map lies, before the other kernels of a pass.
//!
//! A warp makes the list of a tile: of queries in the forward pass, of keys in the backward pass. There a list also says how many
//! tiles of keys add to a block of dQ before the tile, which follows from the map's row; so another launch counts these first,
//! a warp for each query block.

use crate::attention::block_mask::{SparseBlock, is_listed, listed_of_column};
use crate::attention::divide;
use crate::attention::mask::{Band, Blocks, Rows};
use crate::attention::schedule::Direction;
use crate::config;
use crate::kernels::bounds;
use crate::params::{
    BLOCK_MULTIPLE, BlockListParams, BlockListPhase, BlockLists, PARTIAL_BLOCK, Shape,
};
use crate::ptx::{global, shuffle, special};

/// Warps of a block of threads.
const WARPS: u32 = config::block_list().threads / 32;

/// A warp's list, or a warp's ranks.
///
/// # Safety
/// The launch is as [`config::block_list`] says, with a warp for each list, or for each query block; the map and the workspace are as
/// [`BlockListParams`] says.
#[inline(always)]
pub unsafe fn block_list(p: &BlockListParams) {
    let warp = special::block_idx_x() * WARPS + special::thread_idx_x() / 32;
    let ranks = p.phase == const { BlockListPhase::Ranks as u32 };
    let per_map = if ranks {
        p.lists.entries
    } else {
        p.lists.tiles
    };
    let map = divide(warp, per_map);
    if map >= p.n_maps {
        return;
    }
    let idx = warp - map * per_map;
    // SAFETY: the caller's contract.
    unsafe {
        if ranks {
            write_ranks(p, map, idx);
        } else {
            write_list(p, map, idx);
        }
    }
}

/// The map's byte of one of its blocks.
#[inline(always)]
unsafe fn state(p: &BlockListParams, map: u32, row: u32, column: u32) -> u8 {
    let row = u64::from(map) * u64::from(p.map.q_blocks) + u64::from(row);
    let at = row * u64::from(p.map.k_blocks) + u64::from(column);
    // SAFETY: the caller's contract.
    unsafe { global::ld_global_u8(p.map.map + at) }
}

/// The blocks of keys that the band leaves a block of queries.
#[inline(always)]
fn kv_blocks(p: &BlockListParams, q_block: u32) -> Blocks {
    let band = Band::new(p.shape.seqlen_q, p.shape.seqlen_k, p.window, bounds());
    let queries = Rows::of_sequence(q_block * p.block_q, p.block_q, p.shape.seqlen_q);
    // One of these, so that nothing is divided by what might be 0.
    let block_k = match p.block_k {
        BLOCK_MULTIPLE => BLOCK_MULTIPLE,
        64 => 64,
        32 => 32,
        _ => 16,
    };
    band.kv_blocks(queries, block_k)
}

/// The list of a tile.
#[inline(always)]
unsafe fn write_list(p: &BlockListParams, map: u32, tile: u32) {
    let lane = special::lane_idx();
    let list = p.lists.of_map(map, tile);
    let forward = p.phase == const { BlockListPhase::Forward as u32 };
    let (rows_of_row, rows_of_column) = (p.map.block_q, p.map.block_k);
    let mut n = 0;
    let mut first = 0;
    // SAFETY: the caller's contract; all lanes of the warp come here.
    unsafe {
        while first < p.lists.entries {
            let block = first + lane;
            let mut listed = SparseBlock {
                block,
                ..SparseBlock::default()
            };
            let mut takes_part = false;
            if block < p.lists.entries {
                let (q_block, k_block) = if forward {
                    (tile, block)
                } else {
                    (block, tile)
                };
                let row = divide(q_block * p.block_q, rows_of_row);
                let column = divide(k_block * p.block_k, rows_of_column);
                let state = state(p, map, row, column);
                let band = kv_blocks(p, q_block);
                takes_part = is_listed(state, band, k_block);
                listed.is_full = state > PARTIAL_BLOCK;
                if !forward {
                    let per_column = divide(rows_of_column, p.block_k);
                    listed.rank = global::ld_global_u32(p.lists.rank_of_map(map, block, column))
                        + listed_of_column(state, band, column, per_column, tile);
                }
            }
            let up_to_own = inclusive_sum(takes_part as u32);
            if takes_part {
                let at = list.place(n + up_to_own - 1);
                global::st_global_x2(at, listed.words());
            }
            n += shuffle::shuffle_idx_u32(up_to_own, 31);
            first += 32;
        }
        if lane == 0 {
            global::st_global_x2(list.address, [n, 0]);
        }
    }
}

/// How many tiles of keys add to a query block, before each column of the map and in all.
#[inline(always)]
unsafe fn write_ranks(p: &BlockListParams, map: u32, q_block: u32) {
    let lane = special::lane_idx();
    let columns = p.lists.columns;
    let per_column = divide(p.map.block_k, p.block_k);
    let row = divide(q_block * p.block_q, p.map.block_q);
    let band = kv_blocks(p, q_block);
    let (mut before, mut first) = (0, 0);
    // SAFETY: the caller's contract; all lanes of the warp come here.
    unsafe {
        while first <= columns {
            let column = first + lane;
            let own = if column < columns {
                let state = state(p, map, row, column);
                listed_of_column(state, band, column, per_column, p.lists.tiles)
            } else {
                0
            };
            let up_to_own = inclusive_sum(own);
            if column <= columns {
                let at = p.lists.rank_of_map(map, q_block, column);
                global::st_global_u32(at, before + up_to_own - own);
            }
            before += shuffle::shuffle_idx_u32(up_to_own, 31);
            first += 32;
        }
    }
}

/// The sum over the warp's lanes up to this one.
#[inline(always)]
unsafe fn inclusive_sum(own: u32) -> u32 {
    let lane = special::lane_idx();
    let (mut sum, mut distance) = (own, 1);
    while distance < 32 {
        // SAFETY: all lanes of the warp come here.
        let other = unsafe { shuffle::shuffle_idx_u32(sum, lane.wrapping_sub(distance) % 32) };
        if lane >= distance {
            sum += other;
        }
        distance *= 2;
    }
    sum
}

/// A list in the workspace.
#[derive(Clone, Copy)]
pub(crate) struct List {
    address: u64,
}

impl List {
    /// The address of the `idx`-th place.
    #[inline(always)]
    fn place(self, idx: u32) -> u64 {
        self.address + u64::from(idx + 1) * u64::from(SparseBlock::N_BYTES)
    }

    /// How many blocks it has.
    ///
    /// # Safety
    /// The list has been made.
    #[inline(always)]
    pub(crate) unsafe fn len(self) -> u32 {
        // SAFETY: the caller's contract.
        unsafe { global::ld_global_u32(self.address) }
    }

    /// The `idx`-th block.
    ///
    /// # Safety
    /// The list has been made, and has the block.
    #[inline(always)]
    pub(crate) unsafe fn block(self, idx: u32) -> SparseBlock {
        // SAFETY: the caller's contract.
        SparseBlock::from_words(unsafe { global::ld_global_x2(self.place(idx)) })
    }
}

impl BlockLists {
    /// The map of a head.
    #[inline(always)]
    fn map(&self, batch_idx: u32, head_idx: u32) -> u32 {
        batch_idx * self.batch_stride + head_idx * self.head_stride
    }

    #[inline(always)]
    fn of_map(&self, map: u32, tile: u32) -> List {
        let idx = u64::from(map) * u64::from(self.tiles) + u64::from(tile);
        let places = u64::from(self.entries) + 1;
        List {
            address: self.lists + idx * places * u64::from(SparseBlock::N_BYTES),
        }
    }

    #[inline(always)]
    fn rank_of_map(&self, map: u32, q_block: u32, column: u32) -> u64 {
        let row = u64::from(map) * u64::from(self.entries) + u64::from(q_block);
        self.ranks + (row * (u64::from(self.columns) + 1) + u64::from(column)) * 4
    }

    /// The list of a tile of a query head.
    #[inline(always)]
    pub(crate) fn list(&self, batch_idx: u32, head_idx: u32, tile: u32) -> List {
        self.of_map(self.map(batch_idx, head_idx), tile)
    }

    /// How many blocks the lists of a tile have, of all query heads that share a KV head.
    ///
    /// # Safety
    /// The lists have been made.
    #[inline(always)]
    pub(crate) unsafe fn len_of_group(
        &self,
        shape: &Shape,
        batch_idx: u32,
        kv_head_idx: u32,
        tile: u32,
    ) -> u32 {
        let (mut n, mut in_group) = (0, 0);
        while in_group < shape.group_size {
            let head_idx = kv_head_idx * shape.group_size + in_group;
            // SAFETY: the caller's contract.
            n += unsafe { self.list(batch_idx, head_idx, tile).len() };
            in_group += 1;
        }
        n
    }

    /// How many tiles of keys add to a listed query block of a head before a tile, in the backward pass: those before it, or those behind it
    /// where tiles add in descending order.
    ///
    /// # Safety
    /// The ranks have been made.
    #[inline(always)]
    pub(crate) unsafe fn rank(
        &self,
        batch_idx: u32,
        head_idx: u32,
        listed: SparseBlock,
        direction: Direction,
    ) -> u32 {
        match direction {
            Direction::Down => listed.rank,
            // SAFETY: the caller's contract.
            Direction::Up => unsafe {
                self.n_tiles(batch_idx, head_idx, listed.block) - 1 - listed.rank
            },
        }
    }

    /// How many tiles of keys add to a query block of a head, in the backward pass.
    ///
    /// # Safety
    /// The ranks have been made.
    #[inline(always)]
    pub(crate) unsafe fn n_tiles(&self, batch_idx: u32, head_idx: u32, q_block: u32) -> u32 {
        let map = self.map(batch_idx, head_idx);
        // SAFETY: the caller's contract.
        unsafe { global::ld_global_u32(self.rank_of_map(map, q_block, self.columns)) }
    }
}

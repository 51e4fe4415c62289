//! What one tile of keys works with: where it lies in shared memory, its order of query blocks, and the copies of
//! what each step reads.

use super::Tiles;
use crate::attention::divide;
use crate::attention::mask::{Band, Blocks, Rows};
use crate::attention::schedule::{BackwardTile, Direction};
use crate::config;
use crate::params::BackwardParams;
use crate::ptx::{cp_async, special};
use crate::tile::copy::{self, BoundsChecked, Team};
use crate::tile::global::{GlobalRows, row_of_head};
use crate::tile::shared::SharedTile;

/// Where things lie in shared memory.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    pub(super) k: SharedTile,
    pub(super) v: SharedTile,
    /// Stage 0 of Q; the next stage follows.
    pub(super) q: SharedTile,
    pub(super) d_o: SharedTile,
    /// P, then dS, of an even step, `[keys][queries]`; of an odd one behind it.
    pub(super) d_s: SharedTile,
    /// Stage 0 of L and of Δ; stage 1 follows.
    pub(super) lse: u32,
    pub(super) delta: u32,
    /// The tile claimed by thread 0, for all.
    pub(super) tile_slot: u32,
}

impl Layout {
    /// The places of one block of threads.
    #[inline(always)]
    pub(super) fn new<T: Tiles>() -> Self {
        let config = const { T::FOOTPRINT };
        let row_bytes = T::HEAD_DIM * 2;
        let (q_bytes, k_bytes) = (config.block_q * row_bytes, config.block_k * row_bytes);
        let k = special::shared_base();
        let v = k + k_bytes;
        let q = v + k_bytes;
        let d_o = q + 2 * q_bytes;
        let d_s = d_o + 2 * q_bytes;
        let lse = d_s + 2 * config.block_k * config::d_s_row_bytes(config.block_q);
        let tile = |base| SharedTile { base, row_bytes };
        Layout {
            k: tile(k),
            v: tile(v),
            q: tile(q),
            d_o: tile(d_o),
            d_s: SharedTile {
                base: d_s,
                row_bytes: config::d_s_row_bytes(config.block_q),
            },
            lse,
            delta: lse + 2 * config.block_q * 4,
            tile_slot: lse + 4 * config.block_q * 4,
        }
    }

    /// The place of step `i` in a ring of two.
    #[inline(always)]
    pub(super) fn stage(tile: SharedTile, rows: u32, i: u32) -> SharedTile {
        SharedTile {
            base: tile.base + i % 2 * rows * tile.row_bytes,
            ..tile
        }
    }
}

/// One query block of one query head, as a step visits it.
#[derive(Clone, Copy)]
pub(super) struct Step {
    /// Which (batch, query head).
    pub(super) head: u32,
    pub(super) head_idx: u32,
    /// Which query block.
    pub(super) block: u32,
}

/// What one tile of keys works with.
pub(super) struct Tile {
    pub(super) band: Band,
    pub(super) keys: Rows,
    pub(super) blocks: Blocks,
    pub(super) tile: BackwardTile,
    pub(super) batch_idx: u32,
    pub(super) kv_head_idx: u32,
    pub(super) shared: Layout,
    pub(super) thread: u32,
    /// The warp's number in its role.
    pub(super) warp: u32,
    /// Query blocks of a head.
    pub(super) q_blocks: u32,
    /// Steps: query blocks of all heads of the group.
    pub(super) steps: u32,
}

/// The query block of step `i`: heads of the group one after the other, blocks in the tile's direction.
#[inline(always)]
pub(super) fn step_at(p: &BackwardParams, t: &Tile, i: u32) -> Step {
    let blocks = t.blocks.n();
    // Without groups, no division by a number known at run time only.
    let in_group = if p.shape.group_size == 1 {
        0
    } else {
        divide(i, blocks)
    };
    let visited = i - in_group * blocks;
    let head_idx = t.kv_head_idx * p.shape.group_size + in_group;
    let block = match t.tile.direction {
        Direction::Up => t.blocks.first + visited,
        Direction::Down => t.blocks.end - 1 - visited,
    };
    Step {
        head: t.batch_idx * p.shape.heads_q + head_idx,
        head_idx,
        block,
    }
}

/// Begins the copy of Q of step `i`; gradient warps do.
///
/// # Safety
/// Nobody reads the stage that is filled.
#[inline(always)]
pub(super) unsafe fn load_q<T: Tiles>(p: &BackwardParams, t: &Tile, i: u32) {
    let block_q = const { T::FOOTPRINT.block_q };
    let step = step_at(p, t, i);
    let rows = GlobalRows::new(&p.q, t.batch_idx, step.head_idx, p.shape.seqlen_q);
    let tile = Layout::stage(t.shared.q, block_q, i);
    // SAFETY: the caller's contract.
    unsafe {
        copy::load::<BoundsChecked>(tile, rows, step.block * block_q, block_q, role_team::<T>(t))
    };
}

/// Begins the copies of dO, L and Δ of step `i`; score warps do.
///
/// # Safety
/// Nobody reads the stage that is filled.
#[inline(always)]
pub(super) unsafe fn load_d_o<T: Tiles>(p: &BackwardParams, t: &Tile, i: u32) {
    let block_q = const { T::FOOTPRINT.block_q };
    let step = step_at(p, t, i);
    let (first, team) = (step.block * block_q, role_team::<T>(t));
    let rows = GlobalRows::new(&p.d_o, t.batch_idx, step.head_idx, p.shape.seqlen_q);
    let tile = Layout::stage(t.shared.d_o, block_q, i);
    let chunks = block_q / 4;
    // SAFETY: the caller's contract; L and Δ are padded to whole blocks.
    unsafe {
        copy::load::<BoundsChecked>(tile, rows, first, block_q, team);
        if team.thread < 2 * chunks {
            let (source, target) = if team.thread < chunks {
                (p.lse_log2, t.shared.lse)
            } else {
                (p.delta, t.shared.delta)
            };
            let chunk = team.thread % chunks;
            let from = row_of_head(source, step.head, p.padded_q, first + chunk * 4);
            cp_async::cp_async_cg_16(target + i % 2 * block_q * 4 + chunk * 16, from, 16);
        }
    }
}

/// The threads of this thread's role.
#[inline(always)]
fn role_team<T: Tiles>(t: &Tile) -> Team {
    Team {
        thread: t.thread % (T::ROLE_WARPS * 32),
        threads: T::ROLE_WARPS * 32,
    }
}

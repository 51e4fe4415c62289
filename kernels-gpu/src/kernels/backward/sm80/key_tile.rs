//! The state of one tile of keys: its layout in shared memory, its order of query blocks, and the copies for each step.

use super::Tiles;
use crate::attention::block_mask::SparseBlock;
use crate::attention::divide;
use crate::attention::lengths::ListedTile;
use crate::attention::mask::{Blocks, Rows};
use crate::attention::schedule::{BackwardTile, Direction};
use crate::config;
use crate::kernels::common::sequence::Sequence;
use crate::kernels::varlen::{read_listed_shared, write_listed_shared};
use crate::params::BackwardParams;
use crate::ptx::{cp_async, spec, special};
use crate::tile::copy::{self, BoundsChecked, Team};
use crate::tile::global::row_of_head;
use crate::tile::products::Products;
use crate::tile::shared::SharedTile;

/// Where things lie in shared memory.
#[derive(Clone, Copy)]
pub struct Layout {
    pub k: SharedTile,
    pub v: SharedTile,
    /// Stage 0 of Q; the next stage follows.
    pub q: SharedTile,
    pub d_o: SharedTile,
    /// P, then dS, of an even step, `[keys][queries]`; of an odd one after it.
    pub d_s: SharedTile,
    /// Stage 0 of L and of Δ; stage 1 follows.
    pub lse: u32,
    pub delta: u32,
    /// The tile claimed by thread 0, for all.
    pub tile_slot: u32,
    /// Where sequences have different lengths: the list's entry of the tile. Read where it is wanted: no register need hold it.
    listed: u32,
}

impl Layout {
    /// The places of one block of threads.
    #[inline(always)]
    pub fn new<E: Products, T: Tiles>() -> Self {
        let config = const { T::CONFIG };
        let row_bytes = T::HEAD_DIM * E::BYTES;
        let d_s_row_bytes = config::d_s_row_bytes(E::BYTES, config.block_q);
        let (q_bytes, k_bytes) = (config.block_q * row_bytes, config.block_k * row_bytes);
        let k = special::shared_base();
        let v = k + k_bytes;
        let q = v + k_bytes;
        let d_o = q + 2 * q_bytes;
        let d_s = d_o + 2 * q_bytes;
        let lse = d_s + 2 * config.block_k * d_s_row_bytes;
        let tile = |base| SharedTile { base, row_bytes };
        Layout {
            k: tile(k),
            v: tile(v),
            q: tile(q),
            d_o: tile(d_o),
            d_s: SharedTile {
                base: d_s,
                row_bytes: d_s_row_bytes,
            },
            lse,
            delta: lse + 2 * config.block_q * 4,
            tile_slot: lse + 4 * config.block_q * 4,
            listed: lse + 4 * config.block_q * 4 + 16,
        }
    }

    /// Writes the list's entry of the tile.
    ///
    /// # Safety
    /// Nothing reads the last tile's any more; a barrier follows.
    #[inline(always)]
    pub unsafe fn write_listed(self, listed: ListedTile) {
        // SAFETY: the caller's contract.
        unsafe { write_listed_shared(self.listed, listed) };
    }

    /// The list's entry of the tile.
    ///
    /// # Safety
    /// It has been written, and a barrier stood between.
    #[inline(always)]
    pub unsafe fn read_listed(self) -> ListedTile {
        // SAFETY: the caller's contract.
        unsafe { read_listed_shared(self.listed) }
    }

    /// The place of step `i` in a ring of two.
    #[inline(always)]
    pub fn stage(tile: SharedTile, rows: u32, i: u32) -> SharedTile {
        SharedTile {
            base: tile.base + i % 2 * rows * tile.row_bytes,
            ..tile
        }
    }
}

/// One query block of one query head, as a step visits it.
#[derive(Clone, Copy)]
pub struct Step {
    /// Which (batch, query head).
    pub head: u32,
    pub head_idx: u32,
    /// Which query block.
    pub block: u32,
    /// Under a block mask: the list's entry of it.
    pub listed: SparseBlock,
}

/// The state of one tile of keys.
pub struct Tile {
    pub keys: Rows,
    pub blocks: Blocks,
    pub tile: BackwardTile,
    pub batch_idx: u32,
    pub kv_head_idx: u32,
    pub shared: Layout,
    pub thread: u32,
    /// The warp's number in its role.
    pub warp: u32,
    /// Query blocks of a head in the workspace.
    pub q_blocks: u32,
    /// Steps: query blocks of all heads of the group.
    pub steps: u32,
}

/// The sequence of a tile of this batch entry.
///
/// # Safety
/// If sequences have different lengths, the list's entry lies in shared memory, with a barrier behind it, as long as the sequence is asked.
#[inline(always)]
pub unsafe fn sequence_of(
    p: &BackwardParams,
    shared: Layout,
    batch_idx: u32,
) -> Sequence<'_, impl Fn() -> ListedTile> {
    Sequence {
        shape: &p.shape,
        list: &p.list,
        window: p.window,
        batch_idx,
        // SAFETY: the caller's contract.
        listed: move || unsafe { shared.read_listed() },
    }
}

impl Tile {
    /// Its sequence.
    ///
    /// # Safety
    /// As [`sequence_of`].
    #[inline(always)]
    pub unsafe fn sequence<'p>(
        &self,
        p: &'p BackwardParams,
    ) -> Sequence<'p, impl Fn() -> ListedTile + use<'p>> {
        // SAFETY: the caller's contract.
        unsafe { sequence_of(p, self.shared, self.batch_idx) }
    }
}

/// Step `i` under a block mask: heads of the group one after the other, each one's list in the tile's direction.
///
/// # Safety
/// The lists have been made, and have the step.
#[inline(always)]
unsafe fn sparse_step_at(p: &BackwardParams, t: &Tile, i: u32) -> Step {
    let (mut left, mut in_group) = (i, 0);
    // SAFETY: the caller's contract.
    unsafe {
        loop {
            let head_idx = t.kv_head_idx * p.shape.group_size + in_group;
            let list = p.blocks.list(t.batch_idx, head_idx, t.tile.k_block);
            let n = list.len();
            if left < n {
                let listed = list.block(match t.tile.direction {
                    Direction::Up => left,
                    Direction::Down => n - 1 - left,
                });
                return Step {
                    head: t.batch_idx * p.shape.heads_q + head_idx,
                    head_idx,
                    block: listed.block,
                    listed,
                };
            }
            left -= n;
            in_group += 1;
        }
    }
}

/// The query block of step `i`: heads of the group one after the other, blocks in the tile's direction.
#[inline(always)]
pub fn step_at(p: &BackwardParams, t: &Tile, i: u32) -> Step {
    if spec::block_mask() {
        // SAFETY: the tile has the step.
        return unsafe { sparse_step_at(p, t, i) };
    }
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
        listed: SparseBlock::default(),
    }
}

/// Begins the copy of Q of step `i`; gradient warps do.
///
/// # Safety
/// Nothing reads the stage that is filled.
#[inline(always)]
pub unsafe fn load_q<E: Products, T: Tiles>(p: &BackwardParams, t: &Tile, i: u32) {
    let block_q = const { T::CONFIG.block_q };
    let step = step_at(p, t, i);
    let tile = Layout::stage(t.shared.q, block_q, i);
    // SAFETY: the caller's contract.
    unsafe {
        let rows = t.sequence(p).rows_q::<E>(&p.q, step.head_idx);
        let rows = rows.with_chunks(p.shape.head_dim / E::PER_CHUNK);
        copy::load::<BoundsChecked>(tile, rows, step.block * block_q, block_q, role_team::<T>(t))
    };
}

/// Begins the copies of dO, L and Δ of step `i`; score warps do.
///
/// # Safety
/// Nothing reads the stage that is filled.
#[inline(always)]
pub unsafe fn load_d_o<E: Products, T: Tiles>(p: &BackwardParams, t: &Tile, i: u32) {
    let block_q = const { T::CONFIG.block_q };
    let step = step_at(p, t, i);
    let (first, team) = (step.block * block_q, role_team::<T>(t));
    let tile = Layout::stage(t.shared.d_o, block_q, i);
    let chunks = block_q / 4;
    // SAFETY: the caller's contract; L and Δ are padded to whole blocks.
    unsafe {
        let rows = t.sequence(p).rows_q::<E>(&p.d_o, step.head_idx);
        let rows = rows.with_chunks(p.shape.head_dim_v / E::PER_CHUNK);
        copy::load::<BoundsChecked>(tile, rows, first, block_q, team);
        if team.thread < 2 * chunks {
            let (source, target) = if team.thread < chunks {
                (p.lse_log2, t.shared.lse)
            } else {
                (p.delta, t.shared.delta)
            };
            let chunk = team.thread % chunks;
            let padded_first = t.sequence(p).q_blocks_before() * block_q + first;
            let from = row_of_head(source, step.head, p.padded_q, padded_first + chunk * 4);
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

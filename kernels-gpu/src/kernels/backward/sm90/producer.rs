//! The loader: draws tiles of keys, brings K and V, and keeps the rings of Q and dO full; then, rows of dQ to be rounded.

use super::layout::{Layout, WorkTile};
use super::{Tiles, d_q};
use crate::attention::batch_and_head;
use crate::attention::block_order::{self, BlockOrder};
use crate::attention::mask::Mask;
use crate::attention::schedule::{self, BackwardTile, Direction};
use crate::config::TMA_BACKWARD_STAGES as STAGES;
use crate::params::{BOX_COLUMNS, BackwardParams, MAX_TMA_ROWS, SHIFTED, TensorMap};
use crate::ptx::{atomic, mbarrier, special, tma};
use crate::tile::global::row_of_head;
use crate::tile::ring::Ring;
use crate::tile::warpgroup::BoxedTile;

/// The loader and its place in the rings of Q and dO.
struct Producer<'a> {
    p: &'a BackwardParams,
    maps: u64,
    layout: Layout,
    /// Steps of all tiles so far.
    step: u32,
}

/// The whole of the loader's work.
///
/// # Safety
/// One thread of the block does it; the barriers have been made.
#[inline(always)]
pub(super) unsafe fn produce<T: Tiles, M: Mask>(p: &BackwardParams, maps: u64, layout: Layout) {
    let config = T::FOOTPRINT;
    let mask = M::new(&p.shape);
    let tiles = p.schedule.tiles * p.schedule.heads;
    let mut loader = Producer {
        p,
        maps,
        layout,
        step: 0,
    };
    let shifted = block_order::shifted_blocks(&p.schedule);
    let mut n = 0;
    // SAFETY: stages and slots are filled when they are empty; each tile is drawn once.
    unsafe {
        loop {
            // Drawn when the last tile's last copies have been begun, not before: tiles begin in the order of their tickets.
            let tile_idx = if p.schedule.order != SHIFTED {
                atomic::atom_add_u32(p.tile_counters, 1)
            } else if special::block_idx_x() < shifted {
                special::block_idx_x() + n * shifted
            } else {
                tiles
            };
            if tile_idx >= tiles {
                break;
            }
            let tile = schedule::backward(&p.schedule, M::WORK, tile_idx);
            let blocks =
                block_order::q_blocks(&mask, tile.tile, &p.shape, config.block_q, config.block_k);
            let walk = BlockOrder::begin(mask, tile, blocks, &p.schedule, p.shape.group_size);
            let work = WorkTile {
                tile,
                steps: walk.steps(),
            };
            announce(layout, n, work);
            loader.load_tile::<T, M>(n, work, walk);
            n += 1;
        }
        n = d_q::hand_out::<T, M>(p, layout, n);
        let tile = BackwardTile {
            tile: 0,
            head: 0,
            direction: Direction::Down,
        };
        announce(layout, n, WorkTile { tile, steps: 0 });
    }
}

/// Tells the others of the `n`-th work.
///
/// # Safety
/// The loader does it.
#[inline(always)]
pub(super) unsafe fn announce(layout: Layout, n: u32, work: WorkTile) {
    let slot = Ring::at(STAGES, n);
    // SAFETY: the slot is empty when it is written.
    unsafe {
        layout.work_ring.await_empty(slot);
        layout.write_work(slot.stage, work);
        mbarrier::mbarrier_arrive_if(layout.work_ring.full(slot.stage), 1);
    }
}

impl Producer<'_> {
    /// K and V of the `n`-th tile, and Q and dO of each of its steps.
    #[inline(always)]
    unsafe fn load_tile<T: Tiles, M: Mask>(
        &mut self,
        n: u32,
        work: WorkTile,
        mut walk: BlockOrder<M>,
    ) {
        let config = T::FOOTPRINT;
        let (p, layout) = (self.p, self.layout);
        let (batch_idx, kv_head_idx) = batch_and_head(work.tile.head, p.shape.heads_k);
        let keys = [0, work.tile.tile * config.block_k, kv_head_idx, batch_idx];
        let once = Ring::at(1, n);
        let rows_bytes = const { BoxedTile::n_bytes(config_block_q::<T>(), T::HEAD_DIM) };
        // Of lse, and of Δ.
        let n_bytes = const { config_block_q::<T>() * 4 };
        let mut left = work.steps;
        // SAFETY: as `load`.
        unsafe {
            while left > 0 {
                let at = Ring::at(STAGES, self.step);
                let head_idx = kv_head_idx * p.shape.group_size + walk.head;
                let first = walk.block * config.block_q;
                let statistics =
                    row_of_head(0, batch_idx * p.shape.heads_q + head_idx, p.padded_q, first);
                // Behind the end there is no memory, and no lse: see `delta`.
                let row = if p.shape.seqlen_q == 0 {
                    MAX_TMA_ROWS
                } else {
                    first
                };
                let queries = [0, row, head_idx, batch_idx];

                let is_first = left == work.steps;
                let load_keys = || {
                    if is_first {
                        layout.k_ring.await_empty(once);
                        fill::<T>(self.map(1), layout.k::<T>(), keys, layout.k_ring.full(0));
                    }
                };
                let load_values = || {
                    if is_first {
                        layout.v_ring.await_empty(once);
                        fill::<T>(self.map(2), layout.v::<T>(), keys, layout.v_ring.full(0));
                    }
                };
                let load_q = || {
                    layout.q_ring.await_empty(at);
                    layout.write_first_query(at.stage, first);
                    let full = layout.q_ring.full(at.stage);
                    mbarrier::mbarrier_arrive_expect_tx(full, rows_bytes + 2 * n_bytes);
                    load_boxes::<T>(self.map(0), layout.q::<T>(at.stage), queries, full);
                    let (lse, delta) = (layout.lse::<T>(at.stage), layout.delta::<T>(at.stage));
                    tma::bulk_load(lse, p.lse_log2 + statistics, n_bytes, full);
                    tma::bulk_load(delta, p.delta + statistics, n_bytes, full);
                };
                let load_d_o = || {
                    layout.d_o_ring.await_empty(at);
                    let full = layout.d_o_ring.full(at.stage);
                    mbarrier::mbarrier_arrive_expect_tx(full, rows_bytes);
                    load_boxes::<T>(self.map(3), layout.d_o::<T>(at.stage), queries, full);
                };
                // In the order in which places become free. In wide tiles it is faster to ask first for what is wanted first.
                if T::SPLIT {
                    load_d_o();
                    load_q();
                    load_keys();
                    load_values();
                } else if T::OUT_THROUGH_V {
                    load_keys();
                    load_q();
                    load_values();
                    load_d_o();
                } else {
                    load_values();
                    load_d_o();
                    load_q();
                    load_keys();
                }

                walk.advance();
                self.step += 1;
                left -= 1;
            }
        }
    }

    /// The address of the tensor map of q, k, v or dO.
    #[inline(always)]
    fn map(&self, idx: u64) -> u64 {
        self.maps + idx * size_of::<TensorMap>() as u64
    }
}

/// Rows of a query block.
const fn config_block_q<T: Tiles>() -> u32 {
    T::FOOTPRINT.block_q
}

/// Fills a tile that is its barrier's only one.
#[inline(always)]
unsafe fn fill<T: Tiles>(map: u64, tile: BoxedTile, at: [u32; 4], full: u32) {
    // SAFETY: the caller's contract: the tile is empty.
    unsafe {
        mbarrier::mbarrier_arrive_expect_tx(full, BoxedTile::n_bytes(tile.rows, T::HEAD_DIM));
        load_boxes::<T>(map, tile, at, full);
    }
}

/// Begins the copies of a tile's boxes.
#[inline(always)]
unsafe fn load_boxes<T: Tiles>(map: u64, tile: BoxedTile, at: [u32; 4], full: u32) {
    for part in 0..T::HEAD_DIM.div_ceil(BOX_COLUMNS) {
        let at = [part * BOX_COLUMNS, at[1], at[2], at[3]];
        // SAFETY: the caller's contract.
        unsafe { tma::tma_load(tile.part(part).base, map, at, full) };
    }
}

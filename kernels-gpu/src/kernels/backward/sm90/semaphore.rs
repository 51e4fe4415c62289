//! The semaphore warps: each waits until the tile may add to a step's block of dQ, sends what consumers have left of it (or lets
//! them add), and lets the next tile pass.
//!
//! To poll the semaphore, and to make sure that everybody sees what was added before the next tile is let pass, takes longer
//! than a step. So two helper threads (even and odd steps) do it, and consumers never stall on a global-memory read.

use super::Tiles;
use super::layout::{DqSlot, Layout};
use super::steps::Steps;
use super::sums;
use super::work::{WorkTile, query_heads};
use crate::attention::batch_and_head;
use crate::attention::block_order::{self, BlockOrder};
use crate::attention::lengths::ListedTile;
use crate::attention::mask::Band;
use crate::config::TMA_BACKWARD_STAGES as STAGES;
use crate::kernels::band;
use crate::kernels::lengths::band_of_sequence;
use crate::params::{BackwardParams, FASTEST, ORDERED, Schedule};
use crate::ptx::{atomic, mbarrier, spec, tma};
use crate::tile::ring::Ring;

/// The whole of a semaphore warp's work: every step that is `mine`, counted modulo [`STAGES`].
///
/// # Safety
/// One thread of the block does it for each stage; the barriers have been made.
#[inline(always)]
pub(super) unsafe fn serve<T: Tiles>(p: &BackwardParams, layout: Layout, mine: u32) {
    let band = band(&p.shape, p.window);
    let (mut n, mut step) = (0, 0);
    // SAFETY: slots are read when they are full.
    unsafe {
        loop {
            let slot = Ring::at(STAGES, n);
            layout.work_ring.await_full(slot);
            let work = layout.read_work(slot.stage);
            if work.is_end() {
                return;
            }
            let (band, q_blocks_before) = if spec::lengths() {
                let ListedTile {
                    seqlen_q,
                    seqlen_k,
                    q_blocks_before,
                    ..
                } = layout.read_listed(slot.stage);
                (
                    band_of_sequence(seqlen_q, seqlen_k, p.window),
                    q_blocks_before,
                )
            } else {
                (band, 0)
            };
            mbarrier::mbarrier_arrive_if(layout.work_ring.empty(slot.stage), 1);
            n += 1;
            if !work.is_conversion() {
                serve_tile::<T>(
                    p,
                    layout,
                    mine,
                    band,
                    q_blocks_before,
                    work.tile(),
                    &mut step,
                );
            }
        }
    }
}

/// The steps of one tile; `step` counts those of all tiles.
#[inline(always)]
unsafe fn serve_tile<T: Tiles>(
    p: &BackwardParams,
    layout: Layout,
    mine: u32,
    band: Band,
    q_blocks_before: u32,
    work: WorkTile,
    step: &mut u32,
) {
    let config = T::FOOTPRINT;
    let q_blocks = p.padded_q as u32 / config.block_q;
    let (batch_idx, kv_head_idx) = batch_and_head(work.tile.head, p.shape.heads_k);
    let heads = query_heads(p, kv_head_idx);
    let head = batch_idx * p.shape.heads_q + heads.first;
    let first_block = head * q_blocks + q_blocks_before;
    let blocks = block_order::q_blocks(&band, work.tile.k_block, config.block_q, config.block_k);
    let schedule = Schedule {
        // Shifted tiles are never of sequences with lengths of their own.
        order: if spec::lengths() {
            ORDERED
        } else {
            p.schedule.order
        },
        ..p.schedule
    };
    let order = BlockOrder::begin(band, work.tile, blocks, &schedule, heads.n);
    let mut left = work.steps;
    // SAFETY: slots are written when they are empty. Tiles that are waited for run: they were claimed earlier, or are in the
    // same shifted order, whose tiles all run at once.
    unsafe {
        let mut steps = Steps::<T>::begin(p, work.tile, order);
        while left > 0 {
            let at = Ring::at(STAGES, *step);
            if at.stage == mine {
                let block = first_block + steps.head() * q_blocks + steps.block();
                let semaphore = p.dq_semaphore + u64::from(block) * 4;
                let ordered = p.schedule.order != FASTEST;
                let rank = if ordered {
                    steps.rank(config.block_q, config.block_k)
                } else {
                    1
                };
                if ordered && rank > 0 {
                    while atomic::ld_acquire_u32(semaphore) != rank {}
                }
                let first = (rank == 0) as u32;
                let slot = DqSlot { block, first };
                if T::SPLIT {
                    layout.write_dq_slot(mine, slot);
                    mbarrier::mbarrier_arrive_if(layout.dq_slot_ring.full(mine), 1);
                    // All have added when the slot is empty again.
                    mbarrier::mbarrier_wait(layout.dq_slot_ring.empty(mine), at.parity);
                } else {
                    tma::fence_proxy_async_global();
                    sums::send_pieces::<T>(p, layout, at, slot);
                }
                // Counted in any order: who converts dQ waits for the last.
                atomic::red_release_add_u32(semaphore, 1);
            }
            steps.advance();
            *step += 1;
            left -= 1;
        }
    }
}

//! A turn keeper: waits until it is the tile's turn to add to a step's block of dQ, sends off what consumers have left of it
//! or says that they may add, and passes the turn on.
//!
//! To ask whose turn it is, and to see to it that everybody sees what was added before the next one is told, takes longer
//! than a step. So there are two keepers, for even and for odd steps, and consumers never wait for memory.

use super::Tiles;
use super::layout::{DqSlot, Layout, ROUND};
use super::sums;
use crate::attention::batch_and_head;
use crate::attention::block_order::{self, BlockOrder};
use crate::attention::mask::Mask;
use crate::config::TMA_BACKWARD_STAGES as STAGES;
use crate::params::{BackwardParams, FASTEST};
use crate::ptx::{atomic, mbarrier, tma};
use crate::tile::ring::Ring;

/// The whole of a keeper's work: every step that is `mine`, counted modulo [`STAGES`].
///
/// # Safety
/// One thread of the block does it for each stage; the barriers have been made.
#[inline(always)]
pub(super) unsafe fn keep<T: Tiles, M: Mask>(p: &BackwardParams, layout: Layout, mine: u32) {
    let config = T::FOOTPRINT;
    let mask = M::new(&p.shape);
    let q_blocks = p.padded_q as u32 / config.block_q;
    let (mut n, mut step) = (0, 0);
    // SAFETY: slots are read when they are full, written when they are empty. Tiles that are waited for run: they have lower
    // tickets, or are of the same circle.
    unsafe {
        loop {
            let slot = Ring::at(STAGES, n);
            layout.work_ring.await_full(slot);
            let work = layout.read_work(slot.stage);
            if work.steps == 0 {
                return;
            }
            mbarrier::mbarrier_arrive_if(layout.work_ring.empty(slot.stage), 1);
            n += 1;
            if work.steps == ROUND {
                continue;
            }

            let (batch_idx, kv_head_idx) = batch_and_head(work.tile.head, p.shape.heads_k);
            let head = batch_idx * p.shape.heads_q + kv_head_idx * p.shape.group_size;
            let blocks = block_order::q_blocks(
                &mask,
                work.tile.tile,
                &p.shape,
                config.block_q,
                config.block_k,
            );
            let mut walk =
                BlockOrder::begin(mask, work.tile, blocks, &p.schedule, p.shape.group_size);
            let mut left = work.steps;
            while left > 0 {
                let at = Ring::at(STAGES, step);
                if at.stage == mine {
                    let block = (head + walk.head) * q_blocks + walk.block;
                    let counter = p.dq_semaphore + u64::from(block) * 4;
                    let ordered = p.schedule.order != FASTEST;
                    let turn = if ordered {
                        walk.turn(&p.shape, config.block_q, config.block_k)
                    } else {
                        1
                    };
                    if ordered && turn > 0 {
                        while atomic::ld_acquire_u32(counter) != turn {}
                    }
                    let first = (turn == 0) as u32;
                    let turn = DqSlot { block, first };
                    if T::SPLIT {
                        layout.write_dq_slot(mine, turn);
                        mbarrier::mbarrier_arrive_if(layout.dq_slot_ring.full(mine), 1);
                        // All have added when the slot is empty again.
                        mbarrier::mbarrier_wait(layout.dq_slot_ring.empty(mine), at.parity);
                    } else {
                        tma::fence_proxy_async_global();
                        sums::send_pieces::<T>(p, layout, at, turn);
                    }
                    // Counted in any order: who rounds dQ waits for the last.
                    atomic::red_release_add_u32(counter, 1);
                }
                walk.advance();
                step += 1;
                left -= 1;
            }
        }
    }
}

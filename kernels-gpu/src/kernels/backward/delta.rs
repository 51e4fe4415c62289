//! Before the backward pass proper: Δ = rowsum(dO ∘ O) − dL, lse to base 2, and what the main kernel wants cleared.
//!
//! dL is the gradient of lse, 0 where the caller gives none: dS = P ∘ (dP − rowsum(dO ∘ O) + dL), so that it costs this
//! one subtraction.
//!
//! One block of threads takes one query block of one head. Rows behind the sequence's end and rows that see no key get
//! lse = +∞ and Δ = 0: their P is exp2(−∞) = 0, and the main kernel needs no test for them.

use super::{Blocks, interleaved};
use crate::attention::{batch_and_head, divide};
use crate::config;
use crate::params::{BackwardParams, FASTEST};
use crate::ptx::{global, shuffle, special};
use crate::tile::element::Element;
use crate::tile::global::{GlobalRows, row_of_head};

/// Threads of a block.
const THREADS: u32 = config::DELTA_THREADS;

/// One query block: see the module's documentation.
///
/// # Safety
/// The launch is as the row's footprint says; tensors are as [`BackwardParams`] says, of at most `T::HEAD_DIM` columns.
#[inline(always)]
pub unsafe fn delta<E: Element, T: Blocks>(p: &BackwardParams) {
    let block_q = const { T::FOOTPRINT.block_q };
    let thread = special::thread_idx_x();
    let block_idx = special::block_idx_x();
    let q_blocks = p.padded_q as u32 / block_q;
    // SAFETY: the workspace is as the plan laid it out; this block alone writes its rows.
    unsafe {
        if block_idx == 0 && thread == 0 {
            global::st_global_x2(p.tile_counters, [0; 2]);
        }
        clear_shares(p, block_idx * THREADS + thread);
        let head = divide(block_idx, q_blocks);
        if head >= p.shape.batch * p.shape.heads_q {
            return;
        }
        if thread == 0 {
            global::st_global_u32(p.dq_semaphore + u64::from(block_idx) * 4, 0);
        }
        if p.schedule.order == FASTEST {
            clear_accumulator::<T>(p, block_idx, thread);
        }
        rows::<E, T>(p, head, (block_idx - head * q_blocks) * block_q, thread);
    }
}

/// Δ and lse of the block's rows: as many lanes share a row as it has chunks, or the next power of two.
#[inline(always)]
unsafe fn rows<E: Element, T: Blocks>(p: &BackwardParams, head: u32, first: u32, thread: u32) {
    let block_q = const { T::FOOTPRINT.block_q };
    let (batch_idx, head_idx) = batch_and_head(head, p.shape.heads_q);
    let o = GlobalRows::new(&p.o, batch_idx, head_idx, p.shape.seqlen_q);
    let d_o = GlobalRows::new(&p.d_o, batch_idx, head_idx, p.shape.seqlen_q);
    let lanes = const { (T::HEAD_DIM / 8).next_power_of_two() };
    let rows_at_once = THREADS / lanes;
    for i in 0..block_q.div_ceil(rows_at_once) {
        let in_block = i * rows_at_once + thread / lanes;
        let row = first + in_block;
        let (inside, chunk) = (row < p.shape.seqlen_q, thread % lanes);
        let has_chunk = chunk < p.shape.head_dim / 8;
        let mut sum = 0.0;
        // SAFETY: rows inside the sequence exist; all lanes of a warp reach the shuffles.
        unsafe {
            if inside && has_chunk {
                let (o, d_o) = (
                    global::ld_global_x4(o.chunk(row, chunk)),
                    global::ld_global_x4(d_o.chunk(row, chunk)),
                );
                for i in 0..4 {
                    let (o, d_o) = (E::unpack(o[i]), E::unpack(d_o[i]));
                    sum += o[0] * d_o[0] + o[1] * d_o[1];
                }
            }
            let mut distance = lanes / 2;
            while distance > 0 {
                sum += shuffle::shuffle_bfly_f32(sum, distance);
                distance /= 2;
            }
            if chunk == 0 && in_block < block_q {
                let lse = if inside {
                    global::ld_global_f32(row_of_head(
                        p.lse,
                        head,
                        u64::from(p.shape.seqlen_q),
                        row,
                    ))
                } else {
                    f32::NEG_INFINITY
                };
                let (lse_log2, d_lse) = if lse == f32::NEG_INFINITY {
                    (f32::INFINITY, 0.0)
                } else {
                    (lse * core::f32::consts::LOG2_E, d_lse(p, head, row))
                };
                let place = if T::INTERLEAVED {
                    interleaved(row)
                } else {
                    row
                };
                global::st_global_f32(row_of_head(p.lse_log2, head, p.padded_q, place), lse_log2);
                global::st_global_f32(row_of_head(p.delta, head, p.padded_q, place), sum - d_lse);
            }
        }
    }
}

/// The gradient of a row's lse.
#[inline(always)]
unsafe fn d_lse(p: &BackwardParams, head: u32, row: u32) -> f32 {
    if p.d_lse == 0 {
        return 0.0;
    }
    let seqlen_q = u64::from(p.shape.seqlen_q);
    // SAFETY: the row lies inside the sequence, and the caller has given the gradients of all of them.
    unsafe { global::ld_global_f32(row_of_head(p.d_lse, head, seqlen_q, row)) }
}

/// Zeroes the semaphores of dV and dK, where there are several shares. Blocks may be fewer than tiles.
#[inline(always)]
unsafe fn clear_shares(p: &BackwardParams, mut i: u32) {
    if p.n_shares <= 1 {
        return;
    }
    let tiles = divide(p.schedule.heads, p.n_shares) * p.schedule.tiles;
    while i < tiles * config::TMA_BACKWARD_SUM_WARPS {
        // SAFETY: the workspace has so many semaphores for every tile.
        unsafe { global::st_global_u32(p.dkv_semaphore + u64::from(i) * 4, 0) };
        i += special::grid_dim_x() * THREADS;
    }
}

/// Zeroes the block's part of the dQ accumulator, for the order in which every tile adds.
#[inline(always)]
unsafe fn clear_accumulator<T: Blocks>(p: &BackwardParams, block: u32, thread: u32) {
    let bytes = const { T::FOOTPRINT.block_q * T::ACCUM_COLUMNS * 4 };
    let base = p.d_q_accum + u64::from(block) * u64::from(bytes);
    for i in 0..bytes / (THREADS * 16) {
        // SAFETY: the accumulator has as many blocks as the grid.
        unsafe { global::st_global_x4(base + u64::from((i * THREADS + thread) * 16), [0; 4]) };
    }
}

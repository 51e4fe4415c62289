//! The first kernel of the backward pass: Δ = rowsum(dO ∘ O) − dL, lse to base 2, and clearing for the main kernel.
//!
//! dL is the gradient of lse, 0 where the caller gives none: dS = P ∘ (dP − rowsum(dO ∘ O) + dL), so that it costs this
//! one subtraction.
//!
//! One block of threads takes one query block of one head. Rows beyond the sequence's end and rows whose lse is −∞, which see no key, get
//! lse = +∞ and Δ = 0: their P is exp2(−∞) = 0, and the main kernel needs no test for them.

use super::{Blocks, interleaved};
use crate::attention::lengths::ListedTile;
use crate::attention::{batch_and_head, divide};
use crate::config;
use crate::kernels::merge::partial::lse_log2;
use crate::kernels::varlen;
use crate::params::{BackwardParams, FASTEST};
use crate::ptx::{global, shuffle, spec, special};
use crate::tile::global::{GlobalRows, row_of_head};
use crate::tile::products::{Products, rows};

/// Threads of a block.
const THREADS: u32 = config::PREPROCESS_THREADS;

/// One query block: see the module's documentation.
///
/// # Safety
/// The launch is as the variant's tile config says; tensors are as [`BackwardParams`] says, of at most `T::HEAD_DIM` columns.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub unsafe fn preprocess<E: Products, T: Blocks>(p: &BackwardParams) {
    let block_q = const { T::CONFIG.block_q };
    let thread = special::thread_idx_x();
    let block_idx = special::block_idx_x();
    let q_blocks = p.padded_q as u32 / block_q;
    // SAFETY: the workspace is as the plan laid it out; this block alone writes its rows.
    unsafe {
        if block_idx == 0 && thread == 0 {
            global::st_global_x2(p.tile_counters, [0; 2]);
        }
        clear_head_splits::<T>(p, block_idx * THREADS + thread);
        let head = divide(block_idx, q_blocks);
        let block = block_idx - head * q_blocks;
        let tile = if spec::lengths() {
            if head >= p.shape.heads_q || block >= varlen::n_listed(p.list.q_blocks) {
                return;
            }
            varlen::listed(p.list.q_blocks, block)
        } else {
            if head >= p.shape.batch * p.shape.heads_q {
                return;
            }
            ListedTile::default()
        };
        let semaphores = const { T::CONFIG.cluster };
        if thread < semaphores {
            let idx = u64::from(block_idx * semaphores + thread);
            global::st_global_u32(p.dq_semaphore + idx * 4, 0);
        }
        if p.schedule.order == FASTEST {
            clear_accumulator::<T>(p, block_idx, thread);
        }
        let rows = if spec::lengths() {
            let batch_idx = p.list.batch_q(tile.sequence);
            Rows {
                o: rows::<E>(&p.o, batch_idx, head, 0).from_row(tile.q_first, tile.seqlen_q),
                d_o: rows::<E>(&p.d_o, batch_idx, head, 0).from_row(tile.q_first, tile.seqlen_q),
                // The same row of all heads of the batch entry.
                head_of_lse: batch_idx * p.shape.heads_q + head,
                rows_of_lse: p.list.rows_q,
                first_of_lse: tile.q_first,
                head,
                padded_first: tile.q_blocks_before * block_q,
                first: tile.block * block_q,
            }
        } else {
            let (batch_idx, head_idx) = batch_and_head(head, p.shape.heads_q);
            Rows {
                o: rows::<E>(&p.o, batch_idx, head_idx, p.shape.seqlen_q),
                d_o: rows::<E>(&p.d_o, batch_idx, head_idx, p.shape.seqlen_q),
                head_of_lse: head,
                rows_of_lse: p.shape.seqlen_q,
                first_of_lse: 0,
                head,
                padded_first: 0,
                first: block * block_q,
            }
        };
        work_out::<E, T>(p, &rows, thread);
    }
}

/// A block's rows, and where all that belongs to them lies.
struct Rows {
    /// Rows of o of the sequence.
    o: GlobalRows,
    /// Rows of dO of the sequence.
    d_o: GlobalRows,
    /// The head as arrays of the caller's count it.
    head_of_lse: u32,
    /// Rows of such an array's head.
    rows_of_lse: u32,
    /// The sequence's first row of these.
    first_of_lse: u32,
    /// The head as arrays of the workspace count it.
    head: u32,
    /// The sequence's first row of these.
    padded_first: u32,
    /// The block's first row in the sequence.
    first: u32,
}

impl Rows {
    /// The place of a row in an array of the caller's.
    fn in_lse(&self, array: u64, row: u32) -> u64 {
        let rows = u64::from(self.rows_of_lse);
        row_of_head(array, self.head_of_lse, rows, self.first_of_lse + row)
    }

    /// The place of a row in an array of the workspace.
    fn in_workspace(&self, p: &BackwardParams, array: u64, row: u32) -> u64 {
        row_of_head(array, self.head, p.padded_q, self.padded_first + row)
    }
}

/// Δ and lse of the block's rows: as many lanes share a row as it has chunks, or the next power of two.
#[inline(always)]
unsafe fn work_out<E: Products, T: Blocks>(p: &BackwardParams, rows: &Rows, thread: u32) {
    let block_q = const { T::CONFIG.block_q };
    let &Rows { o, d_o, first, .. } = rows;
    let lanes = const { (T::HEAD_DIM / E::PER_CHUNK).next_power_of_two() };
    let rows_at_once = THREADS / lanes;
    for i in 0..block_q.div_ceil(rows_at_once) {
        let in_block = i * rows_at_once + thread / lanes;
        let row = first + in_block;
        let (inside, chunk) = (row < o.len, thread % lanes);
        let has_chunk = chunk < p.shape.head_dim_v / E::PER_CHUNK;
        let mut sum = 0.0;
        // SAFETY: rows inside the sequence exist; all lanes of a warp reach the shuffles.
        unsafe {
            if inside && has_chunk {
                let (o, d_o) = (
                    global::ld_global_x4(o.chunk(row, chunk)),
                    global::ld_global_x4(d_o.chunk(row, chunk)),
                );
                sum = E::dot(o, d_o);
            }
            let mut distance = lanes / 2;
            while distance > 0 {
                sum += shuffle::shuffle_bfly_f32(sum, distance);
                distance /= 2;
            }
            if chunk == 0 && in_block < block_q {
                let lse = if inside {
                    global::ld_global_f32(rows.in_lse(p.lse, row))
                } else {
                    f32::NEG_INFINITY
                };
                let d_lse = if lse == f32::NEG_INFINITY {
                    0.0
                } else {
                    d_lse(p, rows, row)
                };
                let place = if T::INTERLEAVED {
                    interleaved(row)
                } else {
                    row
                };
                global::st_global_f32(rows.in_workspace(p, p.lse_log2, place), lse_log2(lse));
                global::st_global_f32(rows.in_workspace(p, p.delta, place), sum - d_lse);
            }
        }
    }
}

/// The gradient of a row's lse.
#[inline(always)]
unsafe fn d_lse(p: &BackwardParams, rows: &Rows, row: u32) -> f32 {
    if p.d_lse == 0 {
        return 0.0;
    }
    // SAFETY: the row lies inside the sequence, and the caller has given the gradients of all of them.
    unsafe { global::ld_global_f32(rows.in_lse(p.d_lse, row)) }
}

/// Zeroes the semaphores of dV and dK, where there are several head splits. Blocks may be fewer than tiles.
#[inline(always)]
unsafe fn clear_head_splits<T: Blocks>(p: &BackwardParams, mut i: u32) {
    if p.n_head_splits <= 1 {
        return;
    }
    let tiles = divide(p.schedule.heads, p.n_head_splits) * p.schedule.tiles;
    let of_tile = const { T::CONFIG.cluster * config::TMA_BACKWARD_SUM_WARPS };
    while i < tiles * of_tile {
        // SAFETY: the workspace has so many semaphores for every tile.
        unsafe { global::st_global_u32(p.dkv_semaphore + u64::from(i) * 4, 0) };
        i += special::grid_dim_x() * THREADS;
    }
}

/// Zeroes the block's part of the dQ accumulator, for the order in which every tile adds.
#[inline(always)]
unsafe fn clear_accumulator<T: Blocks>(p: &BackwardParams, block: u32, thread: u32) {
    let bytes = const { T::CONFIG.block_q * T::ACCUM_COLUMNS * 4 };
    let base = p.d_q_accum + u64::from(block) * u64::from(bytes);
    for i in 0..bytes / (THREADS * 16) {
        // SAFETY: the accumulator has as many blocks as the grid.
        unsafe { global::st_global_x4(base + u64::from((i * THREADS + thread) * 16), [0; 4]) };
    }
}

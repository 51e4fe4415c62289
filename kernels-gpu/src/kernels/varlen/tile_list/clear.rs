//! Rows of results that no sequence has: o and the gradients are 0 there, lse is −∞. Of sequences that are not in order, that is all rows.

use super::{ROWS, WARP_ROWS, rows};
use crate::attention::divide;
use crate::attention::mask::Rows;
use crate::kernels::backward::clear::{clear_row, is_seen};
use crate::kernels::varlen::band_of_sequence;
use crate::params::{Shape, TileListParams};
use crate::ptx::{global, shuffle, special};
use crate::tile::global::row_of_head;

/// Clears results of the block's rows that no sequence has or, of k and v, that no query sees.
#[inline(always)]
pub(super) unsafe fn clear(p: &TileListParams, block_idx: u32, in_order: bool) {
    let (rows_q, rows_k) = (p.lengths.rows_q, p.lengths.rows_k);
    let (columns, columns_v) = (p.shape.head_dim, p.shape.head_dim_v);
    // A packed tensor is one batch entry.
    let batch_q = if p.lengths.cu_seqlens_q == 0 {
        p.shape.batch
    } else {
        1
    };
    let q_blocks = rows_q.div_ceil(ROWS);
    let of_keys = block_idx >= q_blocks * batch_q;
    let (block_idx, rows, blocks) = if of_keys {
        let blocks = rows_k.div_ceil(ROWS);
        (block_idx - q_blocks * batch_q, rows_k, blocks)
    } else {
        (block_idx, rows_q, q_blocks)
    };
    let batch_idx = divide(block_idx, blocks);
    let warp = special::thread_idx_x() / 32;
    let first = (block_idx - batch_idx * blocks) * ROWS + warp * WARP_ROWS;
    // Each lane looks at a row, and the warp then clears one after the other.
    let row = first + special::lane_idx() % WARP_ROWS;
    // SAFETY: rows exist where they are read or written; all lanes of a warp reach the shuffles.
    unsafe {
        let unused = row < rows && !(in_order && is_used(p, of_keys, batch_idx, row));
        for i in 0..WARP_ROWS {
            if shuffle::shuffle_idx_u32(unused as u32, i) == 1 {
                let row = first + i;
                if of_keys {
                    clear_row(&p.d_k, columns, batch_idx, p.shape.heads_k, row);
                    clear_row(&p.d_v, columns_v, batch_idx, p.shape.heads_k, row);
                } else {
                    clear_row(&p.o, columns_v, batch_idx, p.shape.heads_q, row);
                    clear_row(&p.d_q, columns, batch_idx, p.shape.heads_q, row);
                    clear_lse(p.lse, &p.shape, rows, batch_idx, row);
                }
            }
        }
    }
}

/// lse of a row of all heads ← −∞, by a warp; nothing where there is none. A head has `rows` of them.
///
/// # Safety
/// As [`clear_row`].
#[inline(always)]
unsafe fn clear_lse(lse: u64, shape: &Shape, rows: u32, batch_idx: u32, row: u32) {
    let mut head_idx = special::lane_idx();
    while lse != 0 && head_idx < shape.heads_q {
        let head = batch_idx * shape.heads_q + head_idx;
        let address = row_of_head(lse, head, u64::from(rows), row);
        // SAFETY: the caller's contract.
        unsafe { global::st_global_f32(address, f32::NEG_INFINITY) };
        head_idx += 32;
    }
}

/// Whether a row takes part: of q, if a sequence has it; of k, if one has it and some query sees it.
#[inline(always)]
unsafe fn is_used(p: &TileListParams, of_keys: bool, batch_idx: u32, row: u32) -> bool {
    let cu_seqlens = if of_keys {
        p.lengths.cu_seqlens_k
    } else {
        p.lengths.cu_seqlens_q
    };
    // SAFETY: the sequence exists.
    unsafe {
        let sequence = if cu_seqlens == 0 {
            batch_idx
        } else {
            last_beginning_at(cu_seqlens, p.shape.batch, row)
        };
        let [q, k] = rows(p, sequence);
        let Rows { first, len } = if of_keys { k } else { q };
        if row < first || row - first >= len {
            return false;
        }
        let band = band_of_sequence(q.len, k.len, p.window);
        !of_keys || is_seen(&band, row - first)
    }
}

/// The last sequence that begins at this row or before it.
#[inline(always)]
unsafe fn last_beginning_at(cu_seqlens: u64, batch: u32, row: u32) -> u32 {
    let (mut low, mut high) = (0, batch);
    while low + 1 < high {
        let middle = (low + high) / 2;
        // SAFETY: the caller's contract.
        let begin = unsafe { global::ld_global_u32(cu_seqlens + u64::from(middle) * 4) };
        if begin as i32 <= row as i32 {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

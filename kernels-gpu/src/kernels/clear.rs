//! Results of rows that no other kernel writes: o and the gradients are 0 there, lse is −∞.
//!
//! A query that sees no key and a key that no query sees take no part. The kernels of a pass write such rows where they lie in
//! a tile that they visit; tiles that nothing sees are never visited, and this kernel, launched before the others where there
//! may be such tiles, writes their rows. A warp takes one row of all heads.

use super::band;
use crate::attention::divide;
use crate::attention::mask::Band;
use crate::config;
use crate::params::{ClearParams, Shape, TensorView};
use crate::ptx::{global, special};
use crate::tile::global::{GlobalRows, row_of_head};

/// Rows of a block of threads.
const ROWS: u32 = config::clear().block_q;
/// Warps of a block of threads.
const WARPS: u32 = config::clear().threads / 32;

/// A block's rows: blocks for q and o come first, then those for k and v.
///
/// # Safety
/// The launch is as [`config::clear`] says, with a block for every `ROWS` rows of q and of k of every batch entry; tensors are as
/// [`ClearParams`] says.
#[inline(always)]
pub unsafe fn clear(p: &ClearParams) {
    let shape = &p.shape;
    let band = band(shape, p.window);
    let (q_blocks, k_blocks) = (shape.seqlen_q.div_ceil(ROWS), shape.seqlen_k.div_ceil(ROWS));
    let idx = special::block_idx_x();
    let of_keys = idx >= q_blocks * shape.batch;
    let (idx, blocks) = if of_keys {
        (idx - q_blocks * shape.batch, k_blocks)
    } else {
        (idx, q_blocks)
    };
    let batch_idx = divide(idx, blocks);
    let first = (idx - batch_idx * blocks) * ROWS + special::thread_idx_x() / 32;
    for i in 0..ROWS / WARPS {
        let row = first + i * WARPS;
        // SAFETY: this function's contract: the rows exist.
        unsafe {
            if of_keys {
                if row < shape.seqlen_k && !is_seen(&band, row) {
                    clear_row(&p.d_k, shape, batch_idx, shape.heads_k, row);
                    clear_row(&p.d_v, shape, batch_idx, shape.heads_k, row);
                }
            } else if row < shape.seqlen_q && sees_none(&band, row) {
                clear_row(&p.o, shape, batch_idx, shape.heads_q, row);
                clear_row(&p.d_q, shape, batch_idx, shape.heads_q, row);
                clear_lse(p.lse, shape, shape.seqlen_q, batch_idx, row);
            }
        }
    }
}

/// Whether some query sees the key.
#[inline(always)]
pub(super) fn is_seen(band: &Band, k_idx: u32) -> bool {
    band.first_query(k_idx) < band.end_query(k_idx)
}

/// Whether the query sees no key.
#[inline(always)]
fn sees_none(band: &Band, q_idx: u32) -> bool {
    band.end_key(q_idx) <= band.first_key(q_idx)
}

/// A row of all heads ← 0, by a warp; nothing where there is no tensor.
///
/// # Safety
/// The tensor has the row; all lanes of a warp come here.
#[inline(always)]
pub(super) unsafe fn clear_row(
    tensor: &TensorView,
    shape: &Shape,
    batch_idx: u32,
    heads: u32,
    row: u32,
) {
    if tensor.base == 0 {
        return;
    }
    let chunks = shape.head_dim / 8;
    let mut idx = special::lane_idx();
    while idx < heads * chunks {
        let head_idx = divide(idx, chunks);
        let rows = GlobalRows::new(tensor, batch_idx, head_idx, row + 1);
        // SAFETY: the caller's contract.
        unsafe { global::st_global_x4(rows.chunk(row, idx - head_idx * chunks), [0; 4]) };
        idx += 32;
    }
}

/// lse of a row of all heads ← −∞, by a warp; nothing where there is none. A head has `rows` of them.
///
/// # Safety
/// As [`clear_row`].
#[inline(always)]
pub(super) unsafe fn clear_lse(lse: u64, shape: &Shape, rows: u32, batch_idx: u32, row: u32) {
    let mut head_idx = special::lane_idx();
    while lse != 0 && head_idx < shape.heads_q {
        let head = batch_idx * shape.heads_q + head_idx;
        let address = row_of_head(lse, head, u64::from(rows), row);
        // SAFETY: the caller's contract.
        unsafe { global::st_global_f32(address, f32::NEG_INFINITY) };
        head_idx += 32;
    }
}

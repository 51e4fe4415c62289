//! dK and dV of keys that no query sees: they are 0.
//!
//! The main kernel of a backward pass writes such rows where they lie in a tile that it visits. Tiles that no query sees are never
//! visited; where there may be some, this kernel runs before the others and writes their rows. A warp takes one row of all heads.
//! Queries that see no key need no such kernel: o, lse and dQ are written by tiles of queries, and all of these are visited.

use super::band;
use crate::attention::divide;
use crate::attention::mask::Band;
use crate::config;
use crate::params::{ClearParams, Shape, TensorView};
use crate::ptx::{global, special};
use crate::tile::global::GlobalRows;

/// Rows of a block of threads.
const ROWS: u32 = config::clear().block_k;
/// Warps of a block of threads.
const WARPS: u32 = config::clear().threads / 32;

/// A block's rows of dK and dV.
///
/// # Safety
/// The launch is as [`config::clear`] says, with a block for every `ROWS` rows of k of every batch entry; tensors are as
/// [`ClearParams`] says.
#[inline(always)]
pub unsafe fn clear(p: &ClearParams) {
    let shape = &p.shape;
    let band = band(shape, p.window);
    let blocks = shape.seqlen_k.div_ceil(ROWS);
    let idx = special::block_idx_x();
    let batch_idx = divide(idx, blocks);
    let first = (idx - batch_idx * blocks) * ROWS + special::thread_idx_x() / 32;
    for i in 0..ROWS / WARPS {
        let row = first + i * WARPS;
        if row < shape.seqlen_k && !is_seen(&band, row) {
            // SAFETY: this function's contract: the rows exist.
            unsafe {
                clear_row(&p.d_k, shape, batch_idx, shape.heads_k, row);
                clear_row(&p.d_v, shape, batch_idx, shape.heads_k, row);
            }
        }
    }
}

/// Whether some query sees the key.
#[inline(always)]
pub(super) fn is_seen(band: &Band, k_idx: u32) -> bool {
    band.first_query(k_idx) < band.end_query(k_idx)
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

//! dK and dV of keys that no query sees: they are 0.
//!
//! The main kernel of a backward pass writes such rows where they lie in a tile that it visits. Tiles that no query sees are never
//! visited; where there may be some, this kernel runs before the others and writes their rows. A warp takes one row of all heads.
//! Queries that see no key need no such kernel: o, lse and dQ are written by tiles of queries, and all of these are visited.

use core::ops::Range;

use super::band;
use crate::attention::divide;
use crate::attention::mask::Band;
use crate::config;
use crate::params::{ClearParams, TensorView};
use crate::ptx::{global, spec, special};
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
        if row >= shape.seqlen_k {
            continue;
        }
        if spec::block_mask() {
            // SAFETY: this function's contract: the rows and the lists exist.
            unsafe { clear_unlisted(p, batch_idx, row) };
        } else if !is_seen(&band, row) {
            // SAFETY: this function's contract: the rows exist.
            unsafe {
                clear_row(&p.d_k, shape.head_dim, batch_idx, shape.heads_k, row);
                clear_row(&p.d_v, shape.head_dim_v, batch_idx, shape.heads_k, row);
            }
        }
    }
}

/// dK and dV of a key ← 0 in the heads whose tile with the key has an empty list.
///
/// # Safety
/// The tensors have the row; the lists have been made; all lanes of a warp come here.
#[inline(always)]
unsafe fn clear_unlisted(p: &ClearParams, batch_idx: u32, row: u32) {
    let shape = &p.shape;
    let tile = divide(row, p.tile_rows);
    let mut head_idx = 0;
    while head_idx < shape.heads_k {
        // SAFETY: the caller's contract.
        unsafe {
            let n = p.blocks.len_of_group(shape, batch_idx, head_idx, tile);
            if n == 0 {
                clear_heads(
                    &p.d_k,
                    shape.head_dim,
                    batch_idx,
                    head_idx..head_idx + 1,
                    row,
                );
                clear_heads(
                    &p.d_v,
                    shape.head_dim_v,
                    batch_idx,
                    head_idx..head_idx + 1,
                    row,
                );
            }
        }
        head_idx += 1;
    }
}

/// Whether some query sees the key.
#[inline(always)]
pub(super) fn is_seen(band: &Band, k_idx: u32) -> bool {
    band.first_query(k_idx) < band.end_query(k_idx)
}

/// A row of so many columns of all heads ← 0, by a warp; nothing where there is no tensor.
///
/// # Safety
/// The tensor has the row; all lanes of a warp come here.
#[inline(always)]
pub(super) unsafe fn clear_row(
    tensor: &TensorView,
    columns: u32,
    batch_idx: u32,
    heads: u32,
    row: u32,
) {
    if tensor.base == 0 {
        return;
    }
    // SAFETY: the caller's contract.
    unsafe { clear_heads(tensor, columns, batch_idx, 0..heads, row) };
}

/// A row of these heads ← 0, by a warp.
///
/// # Safety
/// As [`clear_row`], of a tensor that is there.
#[inline(always)]
unsafe fn clear_heads(
    tensor: &TensorView,
    columns: u32,
    batch_idx: u32,
    heads: Range<u32>,
    row: u32,
) {
    let chunks = columns / 8;
    let mut idx = heads.start * chunks + special::lane_idx();
    while idx < heads.end * chunks {
        let head_idx = divide(idx, chunks);
        let rows = GlobalRows::new(tensor, batch_idx, head_idx, row + 1);
        // SAFETY: the caller's contract.
        unsafe { global::st_global_x4(rows.chunk(row, idx - head_idx * chunks), [0; 4]) };
        idx += 32;
    }
}

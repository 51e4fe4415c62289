//! dK and dV of keys that no query sees: they are 0.
//!
//! The main kernel of a backward pass writes such rows where they lie in a tile that it visits. Tiles that no query sees are never
//! visited; where there may be some, this kernel runs before the others and writes their rows. A warp takes one row of all heads.
//! Queries that see no key need no such kernel: o, lse and dQ are written by tiles of queries, and all of these are visited.

use core::ops::Range;

use crate::attention::divide;
use crate::attention::mask::Band;
use crate::config;
use crate::kernels::band;
use crate::params::{ClearParams, TensorView};
use crate::ptx::{global, shuffle, spec, special};
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
    if spec::block_mask() {
        // SAFETY: this function's contract: the lists exist.
        unsafe { clear_unseen(p, batch_idx, first) };
        return;
    }
    for i in 0..ROWS / WARPS {
        let row = first + i * WARPS;
        if row < shape.seqlen_k && !is_seen(&band, row) {
            // SAFETY: this function's contract: the rows exist.
            unsafe {
                clear_row(&p.d_k, shape.head_dim, batch_idx, shape.heads_k, row);
                clear_row(&p.d_v, shape.head_dim_v, batch_idx, shape.heads_k, row);
            }
        }
    }
}

/// dK and dV of a warp's keys ← 0, from key `first` on, in the heads whose tile with the key has an empty list. A lane asks for a head.
///
/// # Safety
/// The lists have been made; all lanes of a warp come here.
#[inline(always)]
unsafe fn clear_unseen(p: &ClearParams, batch_idx: u32, first: u32) {
    let shape = &p.shape;
    let mut first_head = 0;
    while first_head < shape.heads_k {
        let own_head = first_head + special::lane_idx();
        let (mut tile, mut unlisted) = (NO_TILE, 0);
        let mut row = first;
        let end = end_of_rows(first, shape.seqlen_k);
        while row < end {
            // SAFETY: the caller's contract.
            unsafe {
                let of_row = divide(row, p.tile_rows);
                if of_row != tile {
                    tile = of_row;
                    let is_unlisted = own_head < shape.heads_k
                        && p.blocks.len_of_group(shape, batch_idx, own_head, tile) == 0;
                    unlisted = shuffle::vote_ballot(is_unlisted);
                }
                let mut left = unlisted;
                while left > 0 {
                    let head = first_head + left.trailing_zeros();
                    let heads = head..head + 1;
                    clear_heads(&p.d_k, shape.head_dim, batch_idx, heads.clone(), row);
                    clear_heads(&p.d_v, shape.head_dim_v, batch_idx, heads, row);
                    left &= left - 1;
                }
            }
            row += WARPS;
        }
        first_head += 32;
    }
}

/// No tile has this number.
const NO_TILE: u32 = u32::MAX;

/// One past the last row of a warp whose first one this is.
#[inline(always)]
fn end_of_rows(first: u32, seqlen_k: u32) -> u32 {
    let end = first - first % ROWS + ROWS;
    if end < seqlen_k { end } else { seqlen_k }
}

/// Whether some query sees the key.
#[inline(always)]
pub(crate) fn is_seen(band: &Band, k_idx: u32) -> bool {
    band.first_query(k_idx) < band.end_query(k_idx)
}

/// A row of this many columns of all heads ← 0, by a warp; does nothing without a tensor.
///
/// # Safety
/// The tensor has the row; all lanes of a warp come here.
#[inline(always)]
pub(crate) unsafe fn clear_row(
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

//! q, k and v out of 8 bits: `x · descale`, rounded to the element type, side by side in the workspace.
//!
//! The backward pass of a problem in 8 bits begins with it, and goes on as that of the rounded tensors. A thread takes 16 elements, and its neighbours the
//! adjacent ones; a block takes some rows of one sequence, all heads of it.

use crate::attention::divide;
use crate::attention::mask::Rows;
use crate::config;
use crate::kernels::varlen::packed_rows;
use crate::params::{DequantizeParams, SCALE_ROWS, ScaleStrides, TensorView};
use crate::ptx::convert::f32_of_e4m3;
use crate::ptx::{global, special};
use crate::tile::products::Products;

const THREADS: u32 = config::dequantize().threads;
/// Rows of a block.
const ROWS: u32 = config::dequantize().block_q;
/// Elements that a thread takes at a time: 16 bytes of them.
const AT_ONCE: u32 = 16;

/// One of the three tensors.
struct Side<'a> {
    codes: &'a TensorView,
    values: u64,
    descales: u64,
    strides: ScaleStrides,
    cu_seqlens: u64,
    leftpad: u64,
    /// Rows of a batch entry, or of all sequences together.
    rows: u32,
    /// The most rows of a sequence.
    seqlen: u32,
    heads: u32,
    /// Heads that share a scale.
    group_size: u32,
    columns: u32,
}

/// A block's rows of one of the tensors.
///
/// # Safety
/// The launch is as [`config::dequantize`] says, with a block for every `ROWS` rows of every sequence of q, then of k, then of v; tensors are as
/// [`DequantizeParams`] says.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub unsafe fn dequantize<E: Products>(p: &DequantizeParams) {
    let of_keys = |codes, values, descales, columns| Side {
        codes,
        values,
        descales,
        strides: p.descales.strides_k,
        cu_seqlens: p.cu_seqlens_k,
        leftpad: p.leftpad_k,
        rows: p.rows_k,
        seqlen: p.seqlen_k,
        heads: p.heads_k,
        group_size: 1,
        columns,
    };
    let of_q = p.batch * p.seqlen_q.div_ceil(ROWS);
    let of_k = p.batch * p.seqlen_k.div_ceil(ROWS);
    let block = special::block_idx_x();
    // SAFETY: this function's contract.
    unsafe {
        if block < of_q {
            let side = Side {
                codes: &p.q,
                values: p.q_values,
                descales: p.descales.q,
                strides: p.descales.strides_q,
                cu_seqlens: p.cu_seqlens_q,
                leftpad: 0,
                rows: p.rows_q,
                seqlen: p.seqlen_q,
                heads: p.heads_q,
                group_size: p.group_size,
                columns: p.head_dim,
            };
            dequantize_rows::<E>(side, block);
        } else if block < of_q + of_k {
            let side = of_keys(&p.k, p.k_values, p.descales.k, p.head_dim);
            dequantize_rows::<E>(side, block - of_q);
        } else {
            let side = of_keys(&p.v, p.v_values, p.descales.v, p.head_dim_v);
            dequantize_rows::<E>(side, block - of_q - of_k);
        }
    }
}

/// The `block`-th rows of a tensor.
///
/// # Safety
/// As [`dequantize`].
#[inline(always)]
unsafe fn dequantize_rows<E: Products>(side: Side<'_>, block: u32) {
    let blocks = side.seqlen.div_ceil(ROWS);
    let sequence = divide(block, blocks);
    let first = (block - sequence * blocks) * ROWS;
    let (batch_idx, Rows { first: begin, len }) = match side.cu_seqlens {
        0 => (
            sequence,
            Rows {
                first: 0,
                len: side.rows,
            },
        ),
        // SAFETY: the caller's contract: the sequence exists.
        cu_seqlens => (0, unsafe { packed_rows(cu_seqlens, side.rows, sequence) }),
    };
    let before = match side.leftpad {
        0 => 0,
        // SAFETY: the caller's contract: the sequence exists.
        leftpad => unsafe { global::ld_global_u32(leftpad + u64::from(sequence) * 4) },
    };
    let pieces = side.columns / AT_ONCE;
    let per_row = side.heads * pieces;
    let mut idx = special::thread_idx_x();
    while idx < ROWS * per_row {
        let in_block = divide(idx, per_row);
        let in_row = idx - in_block * per_row;
        let head_idx = divide(in_row, pieces);
        let column = (in_row - head_idx * pieces) * AT_ONCE;
        if first + in_block < len {
            let row = begin + first + in_block;
            let of_head = side
                .strides
                .first(sequence, divide(head_idx, side.group_size));
            let position = (first + in_block).saturating_sub(before);
            let of_block = position / SCALE_ROWS * side.strides.block;
            let place = (u64::from(batch_idx) * u64::from(side.rows) + u64::from(row))
                * u64::from(side.heads)
                + u64::from(head_idx);
            let place = place * u64::from(side.columns) + u64::from(column);
            // SAFETY: the caller's contract: row, head and columns exist, and the scale.
            unsafe {
                let scale =
                    global::ld_global_f32(side.descales + u64::from(of_head + of_block) * 4);
                let codes = address(side.codes, batch_idx, row, head_idx) + u64::from(column);
                let codes = global::ld_global_x4(codes);
                store::<E>(side.values + place * u64::from(E::BYTES), codes, scale);
            }
        }
        idx += THREADS;
    }
}

/// The address of a row of a head, of elements of one byte.
#[inline(always)]
fn address(tensor: &TensorView, batch_idx: u32, row: u32, head_idx: u32) -> u64 {
    let offset = i64::from(batch_idx) * tensor.batch_stride
        + i64::from(row) * tensor.row_stride
        + i64::from(head_idx) * tensor.head_stride;
    tensor.base.wrapping_add_signed(offset)
}

/// Writes what 16 elements stand for.
///
/// # Safety
/// There is room for them.
#[inline(always)]
unsafe fn store<E: Products>(to: u64, codes: [u32; 4], scale: f32) {
    let per_chunk = E::PER_CHUNK as usize;
    for n in 0..AT_ONCE as usize / per_chunk {
        let mut chunk = E::unpack_chunk([0; 4]);
        for i in 0..per_chunk {
            let at = n * per_chunk + i;
            chunk[i] = f32_of_e4m3(codes[at / 4] >> (8 * (at % 4))) * scale;
        }
        // SAFETY: the caller's contract.
        unsafe { global::st_global_x4(to + n as u64 * 16, E::pack_chunk(chunk)) };
    }
}

//! Tensors as Hopper's copy engine sees them: what a tensor map can describe, and what it cannot.

use ferroflash_kernels::params::TensorMap;

use super::Reason;
use crate::arguments::Argument;
use crate::tensor::Description;

/// Strides are shorter than this many bytes: `cuTensorMapEncodeTiled`.
const STRIDE_LIMIT: u64 = 1 << 40;

/// A stride for a dimension with a single entry, which is never used: one that is always allowed.
const ANY_STRIDE: u64 = 16;

/// Whether a tensor map can describe the tensor. Its alignment and its sizes have been looked at: see
/// [`super::eligible()`].
pub fn describable(argument: Argument, tensor: &Description) -> Result<(), Reason> {
    let layout = &tensor.layout;
    if layout.shape().contains(&0) {
        return Ok(());
    }
    let steps = [
        (layout.seqlen, layout.row_stride),
        (layout.heads, layout.head_stride),
        (layout.batch, layout.batch_stride),
    ];
    for (n, elems) in steps.into_iter().filter(|&(n, _)| n > 1) {
        let n_bytes = (elems as u64).saturating_mul(tensor.dtype.size_bytes() as u64);
        if n_bytes == 0 {
            return Err(Reason::RepeatedEntries {
                argument,
                n: n as u64,
            });
        }
        if n_bytes >= STRIDE_LIMIT {
            return Err(Reason::StrideTooLong {
                argument,
                n_bytes,
                limit: STRIDE_LIMIT,
            });
        }
    }
    Ok(())
}

/// A map of which only the boxes are known: `rows` rows of each of `heads` heads.
pub fn boxes(rows: u32, heads: u32) -> TensorMap {
    TensorMap {
        box_rows: rows.into(),
        box_heads: heads.into(),
        element_bytes: 2,
        ..TensorMap::default()
    }
}

/// The tensor in boxes of `box_rows` rows of each of `box_heads` heads; its address is filled in at launch. A dimension
/// without entries is given one, since a map must have it, and then no stride matters: kernels copy such a tensor only from beyond its last row,
/// where there are zeros.
pub fn tensor_map(tensor: &Description, box_rows: u64, box_heads: u64) -> TensorMap {
    let layout = &tensor.layout;
    let empty = layout.shape().contains(&0);
    let stride = |n: usize, elems: usize| match n {
        0 | 1 => ANY_STRIDE,
        _ if empty => ANY_STRIDE,
        _ => (elems as u64).saturating_mul(tensor.dtype.size_bytes() as u64),
    };
    let sizes = [layout.head_dim, layout.seqlen, layout.heads, layout.batch];
    TensorMap {
        base: 0,
        sizes: sizes.map(|n| n.max(1) as u64),
        strides: [
            stride(layout.seqlen, layout.row_stride),
            stride(layout.heads, layout.head_stride),
            stride(layout.batch, layout.batch_stride),
        ],
        box_rows,
        box_heads,
        element_bytes: tensor.dtype.size_bytes() as u64,
        reserved: [0; 5],
    }
}

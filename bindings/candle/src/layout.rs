//! Candle's layouts as ferroflash's: shape and strides, of `[batch, seqlen, heads, head_dim]` or `[total, heads, head_dim]`.

use candle_core::op::BackpropOp;
use candle_core::{Device, Layout, Result, Shape, Storage, Tensor};

/// The layout from its first element on; packed rows are one batch entry. The last dimension is contiguous, which
/// [`crate::request`] has checked.
pub(crate) fn layout(layout: &Layout) -> ferroflash::Layout {
    let last_four = |values: &[usize], missing| {
        [4, 3, 2, 1].map(|from_end| {
            let index = values.len().checked_sub(from_end);
            index.map_or(missing, |index| values[index])
        })
    };
    let [strides @ .., _] = last_four(layout.stride(), 0);
    ferroflash::Layout::strided(last_four(layout.dims(), 1), strides)
}

/// A tensor of these dimensions over the output of a pass.
pub(crate) fn tensor(storage: Storage, shape: impl Into<Shape>) -> Tensor {
    Tensor::from_storage(storage, shape, BackpropOp::none(), false)
}

/// GPU kernels read 16 bytes at a time.
const ALIGNMENT_BYTES: usize = 16;

/// The tensor as GPU kernels read it: a copy if its rows do not begin at multiples of 16 bytes, as in a narrowed tensor. On the CPU it is the tensor itself.
pub(crate) fn aligned(tensor: &Tensor) -> Result<Tensor> {
    if matches!(tensor.device(), Device::Cpu) {
        return Ok(tensor.clone());
    }
    let (size, layout) = (tensor.dtype().size_in_bytes(), tensor.layout());
    let is_multiple = |n_elems: usize| (n_elems * size).is_multiple_of(ALIGNMENT_BYTES);
    let mut steps = layout.dims().iter().zip(layout.stride()).rev().skip(1);
    let reads_well = is_multiple(layout.start_offset())
        && steps.all(|(&n, &stride)| n < 2 || is_multiple(stride));
    match reads_well {
        true => Ok(tensor.clone()),
        false => tensor.force_contiguous(),
    }
}

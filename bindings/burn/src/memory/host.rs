//! Host memory: all cores of the processor compute.

use std::sync::{Arc, LazyLock};

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{Bytes, DType, Shape, TensorData};
use ferroflash::arguments::Argument;
use ferroflash::{Device, Layout};

use super::{Lent, Memory, Place};
use crate::check;
use crate::error::Error;

/// A backend whose tensors are in host memory.
pub(crate) trait Host: Backend {
    /// The types that q, k and v may have.
    const DTYPES: &'static [DType];

    /// The address of the first element, and the strides in elements.
    fn at(argument: Argument, tensor: &FloatTensor<Self>) -> Result<(u64, Vec<isize>), Error>;

    /// A contiguous copy, unless the tensor is contiguous.
    fn gathered(tensor: &FloatTensor<Self>) -> Option<FloatTensor<Self>>;
}

/// The processor.
static CPU: LazyLock<Arc<Place>> = LazyLock::new(|| {
    Arc::new(Place {
        device: Device::cpu(),
        queue: None,
    })
});

impl<B: Host> Memory for B {
    const DTYPES: &'static [DType] = <B as Host>::DTYPES;
    /// The copy, if one was made.
    type Hold<'a> = Option<FloatTensor<B>>;
    type Room = (Bytes, Shape, DType);

    fn place(_inputs: [&FloatTensor<B>; 3]) -> Result<Arc<Place>, Error> {
        Ok(Arc::clone(&CPU))
    }

    fn read<'a>(
        argument: Argument,
        tensor: &'a FloatTensor<B>,
    ) -> Result<(Lent<'a, B>, Layout), Error> {
        let shape = check::shape(argument, tensor)?;
        let (address, strides) = B::at(argument, tensor)?;
        match layout(shape, &strides) {
            Some(layout) => Ok(((address, None), layout)),
            None => Ok((B::read_gapless(argument, tensor)?, Layout::bhsd(shape)?)),
        }
    }

    fn read_gapless<'a>(
        argument: Argument,
        tensor: &'a FloatTensor<B>,
    ) -> Result<Lent<'a, B>, Error> {
        let copy = B::gathered(tensor);
        let (address, _) = B::at(argument, copy.as_ref().unwrap_or(tensor))?;
        Ok((address, copy))
    }

    fn room(_beside: &FloatTensor<B>, shape: Shape, dtype: DType) -> (Bytes, Shape, DType) {
        TensorData::full_dtype(shape, 0.0, dtype).into_parts()
    }

    fn write<'a>(
        _argument: Argument,
        (bytes, ..): &'a mut (Bytes, Shape, DType),
    ) -> Result<Lent<'a, B>, Error> {
        Ok((bytes.as_mut_ptr().expose_provenance() as u64, None))
    }

    fn tensor(
        beside: &FloatTensor<B>,
        (bytes, shape, dtype): (Bytes, Shape, DType),
    ) -> FloatTensor<B> {
        // Burn takes the bytes over without a copy.
        let data = TensorData::from_bytes(bytes, shape, dtype);
        B::float_from_data(data, &beside.device())
    }

    fn wait(_hold: &Option<FloatTensor<B>>) -> Result<(), Error> {
        Ok(())
    }
}

/// The layout of a tensor with these strides, if ferroflash can read it: if the last dimension is contiguous, and no stride is negative. Strides of
/// dimensions with at most one entry are ignored and become 0.
fn layout([batch, heads, seqlen, head_dim]: [usize; 4], strides: &[isize]) -> Option<Layout> {
    let sizes = [batch, heads, seqlen, head_dim];
    let is_empty = sizes.contains(&0);
    let mut steps = [0; 4];
    for ((step, &size), &stride) in steps.iter_mut().zip(&sizes).zip(strides) {
        if size > 1 && !is_empty {
            *step = usize::try_from(stride).ok()?;
        }
    }
    let [batch_stride, head_stride, row_stride, last] = steps;
    let is_readable = last == 1 || head_dim <= 1 || is_empty;
    let shape = [batch, seqlen, heads, head_dim];
    is_readable.then_some(Layout::strided(
        shape,
        [batch_stride, row_stride, head_stride],
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readable_strides_are_read_in_place() {
        // [1, 2, 3, 4] out of rows of 8, and one head for all.
        let rows = layout([1, 2, 3, 4], &[-7, 24, 8, 1]).unwrap();
        assert_eq!((rows.batch_stride, rows.row_stride), (0, 8));
        let shared = layout([1, 2, 3, 4], &[0, 0, 4, 1]).unwrap();
        assert_eq!((shared.head_stride, shared.row_stride), (0, 4));
    }

    #[test]
    fn other_strides_are_copied() {
        let transposed = layout([1, 2, 4, 3], &[24, 12, 1, 4]);
        let flipped = layout([1, 2, 3, 4], &[24, 12, -4, 1]);
        assert_eq!((transposed, flipped), (None, None));
    }

    #[test]
    fn empty_tensors() {
        let empty = layout([2, 0, 3, 4], &[0, 12, 4, 7]).unwrap();
        assert_eq!((empty.heads, empty.row_stride), (0, 0));
    }
}

//! Tensors that expressions of scores read.

use std::fmt;

use ferroflash_expression::MAX_RANK;

use super::{DeviceSlice, Location, Memory, Vector};
use crate::dtype::{HostData, ScalarType, of_any_type};

/// A tensor that an expression of scores reads, on the host or on a device: f32, f16, bf16 or i32, of 1 to 4 dimensions, as the expression says.
/// The call checks that the shape and the strides stay inside the memory.
///
/// ```
/// use ferroflash::ReadTensor;
///
/// let bias = [0f32; 6];
/// let contiguous = ReadTensor::new(&bias, [2, 3]);
/// // The same two rows for each of 8 heads.
/// let repeated = ReadTensor::new(&bias, [8, 2, 3]).strides([0, 3, 1]);
/// assert_eq!((contiguous.rank(), repeated.rank()), (2, 3));
/// ```
#[derive(Clone, Copy)]
pub struct ReadTensor<'a> {
    data: Vector<'a>,
    shape: Dims<usize>,
    strides: Option<Dims<i64>>,
}

/// One number for each dimension.
#[derive(Clone, Copy)]
struct Dims<T> {
    values: [T; MAX_RANK],
    /// How many were given. More than fit are not stored: no expression reads such a tensor.
    rank: usize,
}

impl<T: Copy + Default> Dims<T> {
    fn new(given: &[T]) -> Dims<T> {
        let mut values = [T::default(); MAX_RANK];
        for (value, given) in values.iter_mut().zip(given) {
            *value = *given;
        }
        let rank = given.len();
        Dims { values, rank }
    }

    fn get(&self) -> &[T] {
        &self.values[..self.rank.min(MAX_RANK)]
    }
}

impl<'a> ReadTensor<'a> {
    /// A contiguous tensor of this shape: the last index moves to the next element. `data` is a slice, an array or a `Vec` on the host, or a [`DeviceSlice`].
    pub fn new(data: impl Into<Vector<'a>>, shape: impl AsRef<[usize]>) -> ReadTensor<'a> {
        ReadTensor {
            data: data.into(),
            shape: Dims::new(shape.as_ref()),
            strides: None,
        }
    }

    /// The same with these strides, in elements, one for each dimension: 0 repeats an element. None may be negative.
    #[must_use]
    pub fn strides(self, strides: impl AsRef<[i64]>) -> ReadTensor<'a> {
        ReadTensor {
            strides: Some(Dims::new(strides.as_ref())),
            ..self
        }
    }

    /// How many dimensions it has.
    pub fn rank(&self) -> usize {
        self.shape.rank
    }

    /// How many elements each dimension has; of more than four dimensions, the first four.
    pub fn shape(&self) -> &[usize] {
        self.shape.get()
    }

    /// Type of its elements.
    pub fn dtype(&self) -> ScalarType {
        self.data.memory().scalar()
    }

    /// The memory in which it is.
    pub fn location(&self) -> Location {
        self.data.memory().location()
    }

    /// Its memory.
    pub(crate) fn data(&self) -> &Vector<'a> {
        &self.data
    }

    /// How many strides were given, if any were.
    pub(crate) fn n_strides(&self) -> Option<usize> {
        Some(self.strides?.rank)
    }

    /// Stride of a dimension, in elements. Those of a contiguous tensor saturate.
    pub(crate) fn stride(&self, dim: usize) -> i64 {
        match self.strides {
            Some(strides) => strides.values.get(dim).copied().unwrap_or(0),
            None => {
                let behind = self.shape().iter().skip(dim + 1);
                behind.fold(1, |product: i64, &n| {
                    product.saturating_mul(i64::try_from(n).unwrap_or(i64::MAX))
                })
            }
        }
    }

    /// Its memory, limited to this many elements.
    pub(crate) fn first(&self, n_elems: u64) -> Vector<'a> {
        fn head<T>(data: &[T], n_elems: u64) -> &[T] {
            let n_elems = usize::try_from(n_elems).unwrap_or(usize::MAX);
            &data[..n_elems.min(data.len())]
        }
        match *self.data.memory() {
            Memory::Host(data) => of_any_type!(HostData, data, data => head(data, n_elems).into()),
            Memory::Device(slice) => DeviceSlice::new(
                slice.address(),
                n_elems.min(slice.n_elems()),
                slice.dtype(),
                slice.ordinal(),
                slice.allocation(),
            )
            .into(),
        }
    }
}

impl fmt::Debug for ReadTensor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadTensor")
            .field("data", &self.data)
            .field("shape", &self.shape())
            .field("strides", &self.strides.as_ref().map(Dims::get))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_are_contiguous_unless_given() {
        let data = vec![0i32; 24];
        let tensor = ReadTensor::new(&data, [2, 3, 4]);
        let strides = |tensor: ReadTensor| [0, 1, 2].map(|dim| tensor.stride(dim));
        assert_eq!(strides(tensor), [12, 4, 1]);
        assert_eq!(strides(tensor.strides([0, 1, 3])), [0, 1, 3]);
        assert_eq!(tensor.first(7).describe().n_elems, 7);
        let huge = ReadTensor::new(&data, [1, usize::MAX, usize::MAX]);
        assert_eq!(strides(huge), [i64::MAX, i64::MAX, 1]);
        assert_eq!(ReadTensor::new(&data, [1, 2, 3, 4, 5]).rank(), 5);
    }
}

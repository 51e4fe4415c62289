//! Vectors: statistics of rows, their gradient, lengths of sequences, maps of block masks, seed and offset of dropout.

use std::fmt;

use super::{DeviceSlice, DeviceSliceMut, Location, Memory, MemoryMut};
use crate::dtype::{Scalar, ScalarType};

/// Contiguous numbers, to read: f32 statistics, i32 lengths, the u8 map of a block mask or the u64 state of dropout, on the host or on a device.
/// `(&lse).into()` makes one from a slice, an array or a `Vec`.
///
/// [`Append`](crate::Append) has an example.
#[derive(Clone, Copy)]
pub struct Vector<'a> {
    memory: Memory<'a>,
}

/// [`Vector`], to write.
pub struct VectorMut<'a> {
    memory: MemoryMut<'a>,
}

impl<'a> Vector<'a> {
    /// From host memory.
    pub fn of<T: Scalar>(data: &'a [T]) -> Vector<'a> {
        Vector::over(Memory::Host(T::wrap(data)))
    }

    /// From device memory.
    pub fn device(slice: DeviceSlice<'a>) -> Vector<'a> {
        Vector::over(Memory::Device(slice))
    }

    /// From any memory.
    pub(crate) fn over(memory: Memory<'a>) -> Vector<'a> {
        Vector { memory }
    }

    /// The slice; `None` if it has another type or is on a device.
    pub fn host<T: Scalar>(&self) -> Option<&'a [T]> {
        self.memory.host()
    }

    /// All but the memory.
    pub fn describe(&self) -> VectorDescription {
        VectorDescription {
            n_elems: self.memory.n_elems(),
            dtype: self.memory.scalar(),
            location: self.memory.location(),
            address: self.memory.address(),
        }
    }

    pub(crate) fn memory(&self) -> &Memory<'a> {
        &self.memory
    }
}

impl<'a> VectorMut<'a> {
    /// From host memory.
    pub fn of<T: Scalar>(data: &'a mut [T]) -> VectorMut<'a> {
        VectorMut::over(MemoryMut::Host(T::wrap_mut(data)))
    }

    /// From device memory.
    pub fn device(slice: DeviceSliceMut<'a>) -> VectorMut<'a> {
        VectorMut::over(MemoryMut::Device(slice))
    }

    /// From any memory.
    pub(crate) fn over(memory: MemoryMut<'a>) -> VectorMut<'a> {
        VectorMut { memory }
    }

    /// The slice; `None` if it has another type or is on a device.
    pub fn host<T: Scalar>(&mut self) -> Option<&mut [T]> {
        self.memory.host()
    }

    /// All but the memory.
    pub fn describe(&self) -> VectorDescription {
        VectorDescription {
            n_elems: self.memory.n_elems(),
            dtype: self.memory.scalar(),
            location: self.memory.location(),
            address: self.memory.address(),
        }
    }

    /// The same vector for a shorter lifetime.
    pub(crate) fn reborrow(&mut self) -> VectorMut<'_> {
        VectorMut {
            memory: self.memory.reborrow(),
        }
    }

    pub(crate) fn memory(&self) -> &MemoryMut<'a> {
        &self.memory
    }

    pub(crate) fn memory_mut(&mut self) -> &mut MemoryMut<'a> {
        &mut self.memory
    }
}

/// A vector without its memory.
///
/// [`Vector`] gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VectorDescription {
    /// The number of elements.
    pub n_elems: u64,
    /// Their type.
    pub dtype: ScalarType,
    /// The memory in which they are.
    pub location: Location,
    /// Address of the first element.
    pub address: u64,
}

impl VectorDescription {
    /// A vector of this many elements, without an address: for plans made before the memory exists.
    pub fn unplaced(
        n_elems: u64,
        dtype: impl Into<ScalarType>,
        location: Location,
    ) -> VectorDescription {
        VectorDescription {
            n_elems,
            dtype: dtype.into(),
            location,
            address: 0,
        }
    }

    /// The same vector as it will be in another memory: aligned.
    pub fn moved_to(self, location: Location) -> VectorDescription {
        VectorDescription {
            location,
            address: 0,
            ..self
        }
    }
}

impl<'a, T: Scalar> From<&'a [T]> for Vector<'a> {
    fn from(data: &'a [T]) -> Vector<'a> {
        Vector::of(data)
    }
}

impl<'a, T: Scalar> From<&'a Vec<T>> for Vector<'a> {
    fn from(data: &'a Vec<T>) -> Vector<'a> {
        Vector::of(data)
    }
}

impl<'a, T: Scalar, const N: usize> From<&'a [T; N]> for Vector<'a> {
    fn from(data: &'a [T; N]) -> Vector<'a> {
        Vector::of(data)
    }
}

impl<'a> From<DeviceSlice<'a>> for Vector<'a> {
    fn from(slice: DeviceSlice<'a>) -> Vector<'a> {
        Vector::device(slice)
    }
}

impl<'a, T: Scalar> From<&'a mut [T]> for VectorMut<'a> {
    fn from(data: &'a mut [T]) -> VectorMut<'a> {
        VectorMut::of(data)
    }
}

impl<'a, T: Scalar> From<&'a mut Vec<T>> for VectorMut<'a> {
    fn from(data: &'a mut Vec<T>) -> VectorMut<'a> {
        VectorMut::of(data)
    }
}

impl<'a, T: Scalar, const N: usize> From<&'a mut [T; N]> for VectorMut<'a> {
    fn from(data: &'a mut [T; N]) -> VectorMut<'a> {
        VectorMut::of(data)
    }
}

impl<'a> From<DeviceSliceMut<'a>> for VectorMut<'a> {
    fn from(slice: DeviceSliceMut<'a>) -> VectorMut<'a> {
        VectorMut::device(slice)
    }
}

impl fmt::Debug for Vector<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Vector({:?})", self.describe())
    }
}

impl fmt::Debug for VectorMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VectorMut({:?})", self.describe())
    }
}

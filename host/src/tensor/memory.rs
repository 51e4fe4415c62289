//! The memory under tensors and vectors.

use super::{Allocation, DeviceSlice, DeviceSliceMut, Location};
use crate::dtype::{HostData, HostDataMut, Scalar, ScalarType};

/// Memory to read.
#[derive(Clone, Copy)]
pub(crate) enum Memory<'a> {
    Host(HostData<'a>),
    Device(DeviceSlice<'a>),
}

/// Memory to write.
pub(crate) enum MemoryMut<'a> {
    Host(HostDataMut<'a>),
    Device(DeviceSliceMut<'a>),
}

impl<'a> Memory<'a> {
    pub(crate) fn scalar(&self) -> ScalarType {
        match self {
            Memory::Host(data) => data.scalar(),
            Memory::Device(slice) => slice.dtype(),
        }
    }

    pub(crate) fn location(&self) -> Location {
        match self {
            Memory::Host(_) => Location::Host,
            Memory::Device(slice) => Location::Cuda(slice.ordinal()),
        }
    }

    pub(crate) fn address(&self) -> u64 {
        match self {
            Memory::Host(data) => data.address(),
            Memory::Device(slice) => slice.address(),
        }
    }

    pub(crate) fn n_elems(&self) -> u64 {
        match self {
            Memory::Host(data) => data.len() as u64,
            Memory::Device(slice) => slice.n_elems(),
        }
    }

    /// Its owner, if it is device memory of this library.
    pub(crate) fn allocation(&self) -> Option<&dyn Allocation> {
        match self {
            Memory::Host(_) => None,
            Memory::Device(slice) => slice.allocation(),
        }
    }

    /// The slice; `None` if it has another type or is on a device.
    pub(crate) fn host<T: Scalar>(&self) -> Option<&'a [T]> {
        match self {
            Memory::Host(data) => T::unwrap(data),
            Memory::Device(_) => None,
        }
    }
}

impl MemoryMut<'_> {
    pub(crate) fn scalar(&self) -> ScalarType {
        match self {
            MemoryMut::Host(data) => data.scalar(),
            MemoryMut::Device(slice) => slice.dtype(),
        }
    }

    pub(crate) fn location(&self) -> Location {
        match self {
            MemoryMut::Host(_) => Location::Host,
            MemoryMut::Device(slice) => Location::Cuda(slice.ordinal()),
        }
    }

    pub(crate) fn address(&self) -> u64 {
        match self {
            MemoryMut::Host(data) => data.address(),
            MemoryMut::Device(slice) => slice.address(),
        }
    }

    pub(crate) fn n_elems(&self) -> u64 {
        match self {
            MemoryMut::Host(data) => data.len() as u64,
            MemoryMut::Device(slice) => slice.n_elems(),
        }
    }

    /// Its owner, if it is device memory of this library.
    pub(crate) fn allocation(&self) -> Option<&dyn Allocation> {
        match self {
            MemoryMut::Host(_) => None,
            MemoryMut::Device(slice) => slice.allocation(),
        }
    }

    /// The slice; `None` if it has another type or is on a device.
    pub(crate) fn host<T: Scalar>(&mut self) -> Option<&mut [T]> {
        match self {
            MemoryMut::Host(data) => T::unwrap_mut(data),
            MemoryMut::Device(_) => None,
        }
    }

    /// The same memory for a shorter lifetime.
    pub(crate) fn reborrow(&mut self) -> MemoryMut<'_> {
        match self {
            MemoryMut::Host(data) => MemoryMut::Host(data.reborrow()),
            MemoryMut::Device(slice) => MemoryMut::Device(slice.reborrow()),
        }
    }
}

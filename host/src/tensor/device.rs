//! Memory of a device: an address with a length, an element type and a lifetime.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::dtype::ScalarType;

/// Shared ownership of something.
pub(crate) type Share = Arc<dyn Any + Send + Sync>;

/// Device memory that may be kept alive beyond a borrow: a captured graph keeps the memory that its work uses.
pub(crate) trait Allocation: fmt::Debug + Send + Sync {
    /// Keeps the memory allocated.
    fn share(&self) -> Share;
}

/// Device memory to read, borrowed for `'a`. Made by the buffers of [`crate::backend::cuda`].
#[derive(Clone, Copy, Debug)]
pub struct DeviceSlice<'a> {
    address: u64,
    n_elems: u64,
    dtype: ScalarType,
    ordinal: u32,
    /// `None` for memory of another library.
    allocation: Option<&'a dyn Allocation>,
}

/// Device memory to write, borrowed exclusively for `'a`. Made by the buffers of [`crate::backend::cuda`].
#[derive(Debug)]
pub struct DeviceSliceMut<'a> {
    slice: DeviceSlice<'a>,
    borrow: PhantomData<&'a mut ()>,
}

impl<'a> DeviceSlice<'a> {
    /// The caller's types guarantee that the memory lives and is not written for `'a`.
    pub(crate) fn new(
        address: u64,
        n_elems: u64,
        dtype: ScalarType,
        ordinal: u32,
        allocation: Option<&'a dyn Allocation>,
    ) -> DeviceSlice<'a> {
        DeviceSlice {
            address,
            n_elems,
            dtype,
            ordinal,
            allocation,
        }
    }

    /// Address of the first element.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Number of elements.
    pub fn n_elems(&self) -> u64 {
        self.n_elems
    }

    /// Type of the elements.
    pub fn dtype(&self) -> ScalarType {
        self.dtype
    }

    /// Ordinal of the CUDA device.
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// The elements after the first `n_elems`; empty if there are none.
    pub fn skip(&self, n_elems: u64) -> DeviceSlice<'a> {
        let skipped = n_elems.min(self.n_elems);
        DeviceSlice {
            address: self.address + skipped * self.dtype.size_bytes() as u64,
            n_elems: self.n_elems - skipped,
            ..*self
        }
    }

    pub(crate) fn allocation(&self) -> Option<&'a dyn Allocation> {
        self.allocation
    }
}

impl<'a> DeviceSliceMut<'a> {
    /// The caller's types guarantee that the memory lives and is not used elsewhere for `'a`.
    pub(crate) fn new(
        address: u64,
        n_elems: u64,
        dtype: ScalarType,
        ordinal: u32,
        allocation: Option<&'a dyn Allocation>,
    ) -> DeviceSliceMut<'a> {
        DeviceSliceMut {
            slice: DeviceSlice::new(address, n_elems, dtype, ordinal, allocation),
            borrow: PhantomData,
        }
    }

    /// Address of the first element.
    pub fn address(&self) -> u64 {
        self.slice.address
    }

    /// Number of elements.
    pub fn n_elems(&self) -> u64 {
        self.slice.n_elems
    }

    /// Type of the elements.
    pub fn dtype(&self) -> ScalarType {
        self.slice.dtype
    }

    /// Ordinal of the CUDA device.
    pub fn ordinal(&self) -> u32 {
        self.slice.ordinal
    }

    /// The elements after the first `n_elems`; empty if there are none.
    pub fn skip(self, n_elems: u64) -> DeviceSliceMut<'a> {
        DeviceSliceMut {
            slice: self.slice.skip(n_elems),
            ..self
        }
    }

    pub(crate) fn allocation(&self) -> Option<&dyn Allocation> {
        self.slice.allocation
    }

    /// The same memory for a shorter lifetime.
    pub(crate) fn reborrow(&mut self) -> DeviceSliceMut<'_> {
        DeviceSliceMut {
            slice: self.slice,
            borrow: PhantomData,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_skipped_is_not_part_of_a_slice() {
        let slice = DeviceSlice::new(0x1000, 10, ScalarType::I32, 0, None);
        let skipped = |n_elems| {
            let rest = slice.skip(n_elems);
            (rest.address(), rest.n_elems())
        };
        assert_eq!(skipped(0), (0x1000, 10));
        assert_eq!(skipped(3), (0x100c, 7));
        assert_eq!(skipped(10), (0x1028, 0));
        assert_eq!(skipped(u64::MAX), (0x1028, 0));
    }
}

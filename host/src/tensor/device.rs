//! Memory of a device: an address with a length, an element type and a lifetime.

use std::marker::PhantomData;

use crate::dtype::ScalarType;

/// Device memory to read, borrowed for `'a`. Made by the buffers of [`crate::backend::cuda`].
#[derive(Clone, Copy, Debug)]
pub struct DeviceSlice<'a> {
    address: u64,
    n_elems: u64,
    dtype: ScalarType,
    ordinal: u32,
    borrow: PhantomData<&'a ()>,
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
    ) -> DeviceSlice<'a> {
        DeviceSlice {
            address,
            n_elems,
            dtype,
            ordinal,
            borrow: PhantomData,
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

    /// Of which CUDA device.
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }
}

impl<'a> DeviceSliceMut<'a> {
    /// The caller's types guarantee that the memory lives and is not used elsewhere for `'a`.
    pub(crate) fn new(
        address: u64,
        n_elems: u64,
        dtype: ScalarType,
        ordinal: u32,
    ) -> DeviceSliceMut<'a> {
        DeviceSliceMut {
            slice: DeviceSlice::new(address, n_elems, dtype, ordinal),
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

    /// Of which CUDA device.
    pub fn ordinal(&self) -> u32 {
        self.slice.ordinal
    }

    /// The same memory for a shorter while.
    pub(crate) fn reborrow(&mut self) -> DeviceSliceMut<'_> {
        DeviceSliceMut {
            slice: self.slice,
            borrow: PhantomData,
        }
    }
}

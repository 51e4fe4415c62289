//! The row statistics that the forward pass leaves for the backward pass, and their gradient.

use super::{DeviceSlice, DeviceSliceMut, Place};
use crate::dtype::Dtype;

/// `f32 [batch, heads_q, seqlen_q]`, contiguous, to read: the natural logarithm of each row's sum of exponentials, or the
/// gradient of it.
#[derive(Clone, Copy, Debug)]
pub enum Lse<'a> {
    /// On the host.
    Host(&'a [f32]),
    /// On a device.
    Device(DeviceSlice<'a>),
}

/// [`Lse`], to write.
#[derive(Debug)]
pub enum LseMut<'a> {
    /// On the host.
    Host(&'a mut [f32]),
    /// On a device.
    Device(DeviceSliceMut<'a>),
}

impl<'a> Lse<'a> {
    /// The slice, if it lies on the host.
    pub fn host(&self) -> Option<&'a [f32]> {
        match self {
            Lse::Host(data) => Some(data),
            Lse::Device(_) => None,
        }
    }

    /// All but the memory.
    pub fn describe(&self) -> LseDescription {
        match self {
            Lse::Host(data) => LseDescription::host(data),
            Lse::Device(slice) => LseDescription {
                n_elems: slice.n_elems(),
                dtype: slice.dtype(),
                place: Place::Cuda(slice.ordinal()),
                address: slice.address(),
            },
        }
    }
}

impl LseMut<'_> {
    /// The slice, if it lies on the host.
    pub fn host(&mut self) -> Option<&mut [f32]> {
        match self {
            LseMut::Host(data) => Some(data),
            LseMut::Device(_) => None,
        }
    }

    /// All but the memory.
    pub fn describe(&self) -> LseDescription {
        match self {
            LseMut::Host(data) => LseDescription::host(data),
            LseMut::Device(slice) => LseDescription {
                n_elems: slice.n_elems(),
                dtype: slice.dtype(),
                place: Place::Cuda(slice.ordinal()),
                address: slice.address(),
            },
        }
    }
}

/// Row statistics without their memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LseDescription {
    /// Number of rows: batch · heads_q · seqlen_q.
    pub n_elems: u64,
    /// Element type; validation refuses any but f32.
    pub dtype: Dtype,
    /// In whose memory they lie.
    pub place: Place,
    /// Address of the first.
    pub address: u64,
}

impl LseDescription {
    /// Statistics of as many rows that are nowhere yet: for plans made before there is memory.
    pub fn contiguous(n_elems: u64, place: Place) -> LseDescription {
        LseDescription {
            n_elems,
            dtype: Dtype::F32,
            place,
            address: 0,
        }
    }

    /// The same statistics as they will lie in another memory: aligned.
    pub fn moved_to(self, place: Place) -> LseDescription {
        LseDescription {
            place,
            address: 0,
            ..self
        }
    }

    fn host(data: &[f32]) -> LseDescription {
        LseDescription {
            address: data.as_ptr() as u64,
            ..LseDescription::contiguous(data.len() as u64, Place::Host)
        }
    }
}

impl<'a> From<&'a [f32]> for Lse<'a> {
    fn from(data: &'a [f32]) -> Lse<'a> {
        Lse::Host(data)
    }
}

impl<'a> From<&'a mut [f32]> for LseMut<'a> {
    fn from(data: &'a mut [f32]) -> LseMut<'a> {
        LseMut::Host(data)
    }
}

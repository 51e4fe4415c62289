//! The row statistics that the forward pass leaves for the backward pass.

use super::{DeviceSlice, DeviceSliceMut, Place};

/// `f32 [batch, heads_q, seqlen_q]`, contiguous, to read: the natural logarithm of each row's sum of exponentials.
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
    /// In whose memory they lie.
    pub place: Place,
    /// Address of the first.
    pub address: u64,
}

impl LseDescription {
    fn host(data: &[f32]) -> LseDescription {
        LseDescription {
            n_elems: data.len() as u64,
            place: Place::Host,
            address: data.as_ptr() as u64,
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

//! Host memory of one of the element types.

use half::{bf16, f16};

use crate::dtype::Dtype;

/// A shared slice of one of the element types.
#[derive(Clone, Copy)]
pub enum HostData<'a> {
    Bf16(&'a [bf16]),
    F16(&'a [f16]),
    F32(&'a [f32]),
}

/// An exclusive slice of one of the element types.
pub enum HostDataMut<'a> {
    Bf16(&'a mut [bf16]),
    F16(&'a mut [f16]),
    F32(&'a mut [f32]),
}

impl HostData<'_> {
    pub fn dtype(&self) -> Dtype {
        match self {
            HostData::Bf16(_) => Dtype::Bf16,
            HostData::F16(_) => Dtype::F16,
            HostData::F32(_) => Dtype::F32,
        }
    }

    pub fn address(&self) -> u64 {
        match self {
            HostData::Bf16(data) => data.as_ptr() as u64,
            HostData::F16(data) => data.as_ptr() as u64,
            HostData::F32(data) => data.as_ptr() as u64,
        }
    }

    pub fn len(&self) -> usize {
        match self {
            HostData::Bf16(data) => data.len(),
            HostData::F16(data) => data.len(),
            HostData::F32(data) => data.len(),
        }
    }
}

impl HostDataMut<'_> {
    pub fn dtype(&self) -> Dtype {
        match self {
            HostDataMut::Bf16(_) => Dtype::Bf16,
            HostDataMut::F16(_) => Dtype::F16,
            HostDataMut::F32(_) => Dtype::F32,
        }
    }

    pub fn address(&self) -> u64 {
        match self {
            HostDataMut::Bf16(data) => data.as_ptr() as u64,
            HostDataMut::F16(data) => data.as_ptr() as u64,
            HostDataMut::F32(data) => data.as_ptr() as u64,
        }
    }

    /// The address through which the slice may be written.
    pub fn address_mut(&mut self) -> u64 {
        match self {
            HostDataMut::Bf16(data) => data.as_mut_ptr() as u64,
            HostDataMut::F16(data) => data.as_mut_ptr() as u64,
            HostDataMut::F32(data) => data.as_mut_ptr() as u64,
        }
    }

    pub fn len(&self) -> usize {
        match self {
            HostDataMut::Bf16(data) => data.len(),
            HostDataMut::F16(data) => data.len(),
            HostDataMut::F32(data) => data.len(),
        }
    }
}

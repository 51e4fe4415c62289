//! Host memory of one of the types that calls take.

use half::{bf16, f16};

use crate::dtype::{Dtype, ScalarType};

/// A shared slice.
#[derive(Clone, Copy)]
pub enum HostData<'a> {
    Bf16(&'a [bf16]),
    F16(&'a [f16]),
    F32(&'a [f32]),
    I32(&'a [i32]),
}

/// An exclusive slice.
pub enum HostDataMut<'a> {
    Bf16(&'a mut [bf16]),
    F16(&'a mut [f16]),
    F32(&'a mut [f32]),
    I32(&'a mut [i32]),
}

impl HostData<'_> {
    pub fn scalar(&self) -> ScalarType {
        match self {
            HostData::Bf16(_) => Dtype::Bf16.into(),
            HostData::F16(_) => Dtype::F16.into(),
            HostData::F32(_) => ScalarType::F32,
            HostData::I32(_) => ScalarType::I32,
        }
    }

    pub fn address(&self) -> u64 {
        match self {
            HostData::Bf16(data) => data.as_ptr() as u64,
            HostData::F16(data) => data.as_ptr() as u64,
            HostData::F32(data) => data.as_ptr() as u64,
            HostData::I32(data) => data.as_ptr() as u64,
        }
    }

    pub fn len(&self) -> usize {
        match self {
            HostData::Bf16(data) => data.len(),
            HostData::F16(data) => data.len(),
            HostData::F32(data) => data.len(),
            HostData::I32(data) => data.len(),
        }
    }
}

impl HostDataMut<'_> {
    pub fn scalar(&self) -> ScalarType {
        match self {
            HostDataMut::Bf16(_) => Dtype::Bf16.into(),
            HostDataMut::F16(_) => Dtype::F16.into(),
            HostDataMut::F32(_) => ScalarType::F32,
            HostDataMut::I32(_) => ScalarType::I32,
        }
    }

    pub fn address(&self) -> u64 {
        match self {
            HostDataMut::Bf16(data) => data.as_ptr() as u64,
            HostDataMut::F16(data) => data.as_ptr() as u64,
            HostDataMut::F32(data) => data.as_ptr() as u64,
            HostDataMut::I32(data) => data.as_ptr() as u64,
        }
    }

    /// The address through which the slice may be written.
    pub fn address_mut(&mut self) -> u64 {
        match self {
            HostDataMut::Bf16(data) => data.as_mut_ptr() as u64,
            HostDataMut::F16(data) => data.as_mut_ptr() as u64,
            HostDataMut::F32(data) => data.as_mut_ptr() as u64,
            HostDataMut::I32(data) => data.as_mut_ptr() as u64,
        }
    }

    /// The same slice for a shorter while.
    pub fn reborrow(&mut self) -> HostDataMut<'_> {
        match self {
            HostDataMut::Bf16(data) => HostDataMut::Bf16(data),
            HostDataMut::F16(data) => HostDataMut::F16(data),
            HostDataMut::F32(data) => HostDataMut::F32(data),
            HostDataMut::I32(data) => HostDataMut::I32(data),
        }
    }

    pub fn len(&self) -> usize {
        match self {
            HostDataMut::Bf16(data) => data.len(),
            HostDataMut::F16(data) => data.len(),
            HostDataMut::F32(data) => data.len(),
            HostDataMut::I32(data) => data.len(),
        }
    }
}

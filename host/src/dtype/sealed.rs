//! Which types memory of a call may hold: slices of them as enums, and what converts them to f32 and back.

use half::slice::HalfFloatSliceExt;

use super::{Dtype, F8E4M3, ScalarType, bf16, f16};

/// A shared slice of host memory, of one of the types that calls take.
#[derive(Clone, Copy)]
pub enum HostData<'a> {
    Bf16(&'a [bf16]),
    F16(&'a [f16]),
    F32(&'a [f32]),
    E4m3(&'a [F8E4M3]),
    I32(&'a [i32]),
    U8(&'a [u8]),
    U64(&'a [u64]),
}

/// An exclusive slice, likewise.
pub enum HostDataMut<'a> {
    Bf16(&'a mut [bf16]),
    F16(&'a mut [f16]),
    F32(&'a mut [f32]),
    E4m3(&'a mut [F8E4M3]),
    I32(&'a mut [i32]),
    U8(&'a mut [u8]),
    U64(&'a mut [u64]),
}

impl HostData<'_> {
    pub fn scalar(&self) -> ScalarType {
        match self {
            HostData::Bf16(_) => Dtype::Bf16.into(),
            HostData::F16(_) => Dtype::F16.into(),
            HostData::F32(_) => ScalarType::F32,
            HostData::E4m3(_) => ScalarType::E4m3,
            HostData::I32(_) => ScalarType::I32,
            HostData::U8(_) => ScalarType::U8,
            HostData::U64(_) => ScalarType::U64,
        }
    }

    pub fn address(&self) -> u64 {
        match self {
            HostData::Bf16(data) => data.as_ptr() as u64,
            HostData::F16(data) => data.as_ptr() as u64,
            HostData::F32(data) => data.as_ptr() as u64,
            HostData::E4m3(data) => data.as_ptr() as u64,
            HostData::I32(data) => data.as_ptr() as u64,
            HostData::U8(data) => data.as_ptr() as u64,
            HostData::U64(data) => data.as_ptr() as u64,
        }
    }

    pub fn len(&self) -> usize {
        match self {
            HostData::Bf16(data) => data.len(),
            HostData::F16(data) => data.len(),
            HostData::F32(data) => data.len(),
            HostData::E4m3(data) => data.len(),
            HostData::I32(data) => data.len(),
            HostData::U8(data) => data.len(),
            HostData::U64(data) => data.len(),
        }
    }
}

impl HostDataMut<'_> {
    pub fn scalar(&self) -> ScalarType {
        match self {
            HostDataMut::Bf16(_) => Dtype::Bf16.into(),
            HostDataMut::F16(_) => Dtype::F16.into(),
            HostDataMut::F32(_) => ScalarType::F32,
            HostDataMut::E4m3(_) => ScalarType::E4m3,
            HostDataMut::I32(_) => ScalarType::I32,
            HostDataMut::U8(_) => ScalarType::U8,
            HostDataMut::U64(_) => ScalarType::U64,
        }
    }

    pub fn address(&self) -> u64 {
        match self {
            HostDataMut::Bf16(data) => data.as_ptr() as u64,
            HostDataMut::F16(data) => data.as_ptr() as u64,
            HostDataMut::F32(data) => data.as_ptr() as u64,
            HostDataMut::E4m3(data) => data.as_ptr() as u64,
            HostDataMut::I32(data) => data.as_ptr() as u64,
            HostDataMut::U8(data) => data.as_ptr() as u64,
            HostDataMut::U64(data) => data.as_ptr() as u64,
        }
    }

    /// The address through which the slice may be written.
    pub fn address_mut(&mut self) -> u64 {
        match self {
            HostDataMut::Bf16(data) => data.as_mut_ptr() as u64,
            HostDataMut::F16(data) => data.as_mut_ptr() as u64,
            HostDataMut::F32(data) => data.as_mut_ptr() as u64,
            HostDataMut::E4m3(data) => data.as_mut_ptr() as u64,
            HostDataMut::I32(data) => data.as_mut_ptr() as u64,
            HostDataMut::U8(data) => data.as_mut_ptr() as u64,
            HostDataMut::U64(data) => data.as_mut_ptr() as u64,
        }
    }

    /// The same slice for a shorter while.
    pub fn reborrow(&mut self) -> HostDataMut<'_> {
        match self {
            HostDataMut::Bf16(data) => HostDataMut::Bf16(data),
            HostDataMut::F16(data) => HostDataMut::F16(data),
            HostDataMut::F32(data) => HostDataMut::F32(data),
            HostDataMut::E4m3(data) => HostDataMut::E4m3(data),
            HostDataMut::I32(data) => HostDataMut::I32(data),
            HostDataMut::U8(data) => HostDataMut::U8(data),
            HostDataMut::U64(data) => HostDataMut::U64(data),
        }
    }

    pub fn len(&self) -> usize {
        match self {
            HostDataMut::Bf16(data) => data.len(),
            HostDataMut::F16(data) => data.len(),
            HostDataMut::F32(data) => data.len(),
            HostDataMut::E4m3(data) => data.len(),
            HostDataMut::I32(data) => data.len(),
            HostDataMut::U8(data) => data.len(),
            HostDataMut::U64(data) => data.len(),
        }
    }
}

/// Keeps [`super::Scalar`] closed and gives tensors and vectors their way from a slice to an enum and back.
pub trait Sealed: Sized {
    fn wrap(data: &[Self]) -> HostData<'_>;
    fn wrap_mut(data: &mut [Self]) -> HostDataMut<'_>;
    fn unwrap<'a>(data: &HostData<'a>) -> Option<&'a [Self]>;
    fn unwrap_mut<'a>(data: &'a mut HostDataMut<'_>) -> Option<&'a mut [Self]>;
}

/// To f32, a slice at a time; both have one length.
pub trait Widen: Sized + Copy + Sync + 'static {
    /// The values, exactly.
    fn widen(from: &[Self], to: &mut [f32]);
}

/// The other way.
pub trait Convert: Widen {
    /// The nearest values, ties to even.
    fn narrow(from: &[f32], to: &mut [Self]);
}

impl Widen for bf16 {
    fn widen(from: &[bf16], to: &mut [f32]) {
        // The upper half of an f32: simpler than what `half` does, and the compiler makes vectors of it.
        for (to, from) in to.iter_mut().zip(from) {
            *to = f32::from_bits(u32::from(from.to_bits()) << 16);
        }
    }
}

impl Convert for bf16 {
    fn narrow(from: &[f32], to: &mut [bf16]) {
        to.convert_from_f32_slice(from);
    }
}

impl Widen for f16 {
    fn widen(from: &[f16], to: &mut [f32]) {
        from.convert_to_f32_slice(to);
    }
}

impl Convert for f16 {
    fn narrow(from: &[f32], to: &mut [f16]) {
        to.convert_from_f32_slice(from);
    }
}

impl Widen for f32 {
    fn widen(from: &[f32], to: &mut [f32]) {
        to.copy_from_slice(from);
    }
}

impl Convert for f32 {
    fn narrow(from: &[f32], to: &mut [f32]) {
        to.copy_from_slice(from);
    }
}

impl Widen for F8E4M3 {
    fn widen(from: &[F8E4M3], to: &mut [f32]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = E4M3_VALUES[usize::from(from.to_bits())];
        }
    }
}

/// What each number in 8 bits stands for.
const E4M3_VALUES: [f32; 256] = {
    let mut values = [0.0; 256];
    let mut bits = 0;
    while bits < values.len() {
        values[bits] = F8E4M3::from_bits(bits as u8).to_f32();
        bits += 1;
    }
    values
};

macro_rules! wrapping {
    ($type:ty, $variant:ident) => {
        impl Sealed for $type {
            fn wrap(data: &[Self]) -> HostData<'_> {
                HostData::$variant(data)
            }
            fn wrap_mut(data: &mut [Self]) -> HostDataMut<'_> {
                HostDataMut::$variant(data)
            }
            fn unwrap<'a>(data: &HostData<'a>) -> Option<&'a [Self]> {
                match data {
                    HostData::$variant(data) => Some(data),
                    _ => None,
                }
            }
            fn unwrap_mut<'a>(data: &'a mut HostDataMut<'_>) -> Option<&'a mut [Self]> {
                match data {
                    HostDataMut::$variant(data) => Some(data),
                    _ => None,
                }
            }
        }
    };
}
wrapping!(bf16, Bf16);
wrapping!(f16, F16);
wrapping!(f32, F32);
wrapping!(F8E4M3, E4m3);
wrapping!(i32, I32);
wrapping!(u8, U8);
wrapping!(u64, U64);

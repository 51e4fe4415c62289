//! The element types of q, k, v and o, their mapping to Rust types, and slices of any of them.

use std::fmt;

use ferroflash_kernels::expression::ElementType;
use ferroflash_kernels::variants;
use float8::F8E4M3;
use half::{bf16, f16};

pub(crate) use sealed::{HostData, HostDataMut, Widen};

/// Type of the elements of q, k, v, o and their gradients. Statistics (lse) and every accumulation are f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// bfloat16, [`half::bf16`].
    Bf16,
    /// IEEE binary16, [`half::f16`].
    F16,
    /// IEEE binary32, `f32`.
    F32,
}

impl Dtype {
    /// Bytes of one element.
    pub const fn size_bytes(self) -> usize {
        match self {
            Dtype::Bf16 | Dtype::F16 => 2,
            Dtype::F32 => 4,
        }
    }

    /// The kernels' name for it; `None` where no kernel takes it.
    pub const fn of_kernels(self) -> Option<variants::Dtype> {
        match self {
            Dtype::Bf16 => Some(variants::Dtype::Bf16),
            Dtype::F16 => Some(variants::Dtype::F16),
            Dtype::F32 => None,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Dtype::Bf16 => "bf16",
            Dtype::F16 => "f16",
            Dtype::F32 => "f32",
        })
    }
}

/// Type of the numbers in a piece of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScalarType {
    /// Elements of a tensor, or statistics.
    Float(Dtype),
    /// Keys and values in 8 bits: the floating-point format e4m3, `float8::F8E4M3`.
    E4m3,
    /// Lengths: 32-bit integers with a sign.
    I32,
    /// The map of a block mask: bytes.
    U8,
}

impl ScalarType {
    /// Statistics, whatever the problem's type is.
    pub const F32: ScalarType = ScalarType::Float(Dtype::F32);

    /// Bytes of one number.
    pub const fn size_bytes(self) -> usize {
        match self {
            ScalarType::Float(dtype) => dtype.size_bytes(),
            ScalarType::E4m3 => size_of::<F8E4M3>(),
            ScalarType::I32 => size_of::<i32>(),
            ScalarType::U8 => size_of::<u8>(),
        }
    }
}

impl From<Dtype> for ScalarType {
    fn from(dtype: Dtype) -> ScalarType {
        ScalarType::Float(dtype)
    }
}

impl From<ElementType> for ScalarType {
    fn from(element: ElementType) -> ScalarType {
        match element {
            ElementType::F32 => ScalarType::F32,
            ElementType::F16 => Dtype::F16.into(),
            ElementType::Bf16 => Dtype::Bf16.into(),
            ElementType::I32 => ScalarType::I32,
        }
    }
}

impl fmt::Display for ScalarType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ScalarType::Float(dtype) => dtype.fmt(f),
            ScalarType::E4m3 => f.write_str("e4m3"),
            ScalarType::I32 => f.write_str("i32"),
            ScalarType::U8 => f.write_str("u8"),
        }
    }
}

/// A Rust type that memory of a call may hold: an [`Element`], `float8::F8E4M3`, `i32` or `u8`.
pub trait Scalar:
    Copy + Default + Send + Sync + fmt::Debug + PartialEq + sealed::Sealed + 'static
{
    /// Its [`ScalarType`].
    const TYPE: ScalarType;
}

/// A Rust type that all tensors of a call may hold: `half::bf16`, `half::f16` or `f32`.
pub trait Element: Scalar + sealed::Convert {
    /// Its [`Dtype`].
    const DTYPE: Dtype;
    /// The value, exactly.
    fn to_f32(self) -> f32;
    /// The nearest value, ties to even.
    fn from_f32(value: f32) -> Self;
}

impl Scalar for i32 {
    const TYPE: ScalarType = ScalarType::I32;
}

impl Scalar for u8 {
    const TYPE: ScalarType = ScalarType::U8;
}

impl Scalar for F8E4M3 {
    const TYPE: ScalarType = ScalarType::E4m3;
}

macro_rules! element {
    ($type:ty, $dtype:ident, $to_f32:expr, $from_f32:expr) => {
        impl Scalar for $type {
            const TYPE: ScalarType = ScalarType::Float(Dtype::$dtype);
        }
        impl Element for $type {
            const DTYPE: Dtype = Dtype::$dtype;
            #[inline]
            fn to_f32(self) -> f32 {
                $to_f32(self)
            }
            #[inline]
            fn from_f32(value: f32) -> Self {
                $from_f32(value)
            }
        }
    };
}
element!(bf16, Bf16, bf16::to_f32, bf16::from_f32);
element!(f16, F16, f16::to_f32, f16::from_f32);
element!(f32, F32, std::convert::identity, std::convert::identity);

pub(crate) mod sealed {
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
    }

    /// An exclusive slice, likewise.
    pub enum HostDataMut<'a> {
        Bf16(&'a mut [bf16]),
        F16(&'a mut [f16]),
        F32(&'a mut [f32]),
        E4m3(&'a mut [F8E4M3]),
        I32(&'a mut [i32]),
        U8(&'a mut [u8]),
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
}

//! The element types of q, k, v and o, their mapping to Rust types, and slices of any of them.

use std::fmt;

use ferroflash_expression::ElementType;
use ferroflash_kernels::variants;
use float8::F8E4M3;
use half::{bf16, f16};

pub(crate) mod sealed;

pub(crate) use sealed::{HostData, HostDataMut, Widen, of_any_type, of_named_type};

/// Type of the elements of q, k, v, o and their gradients. Statistics (lse) and every accumulation are f32.
///
/// The [crate's documentation](crate) has an example.
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

    /// The kernels' name for it.
    pub const fn of_kernels(self) -> variants::Dtype {
        match self {
            Dtype::Bf16 => variants::Dtype::Bf16,
            Dtype::F16 => variants::Dtype::F16,
            Dtype::F32 => variants::Dtype::F32,
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
///
/// [`VectorDescription`](crate::tensor::VectorDescription) has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScalarType {
    /// Elements of a tensor, or statistics.
    Float(Dtype),
    /// Keys and values in 8 bits: the floating-point format e4m3, `float8::F8E4M3`.
    E4m3,
    /// Lengths: signed 32-bit integers.
    I32,
    /// The map of a block mask: bytes.
    U8,
    /// Seed and offset of dropout.
    U64,
}

impl ScalarType {
    /// Statistics, for any type of the problem.
    pub const F32: ScalarType = ScalarType::Float(Dtype::F32);

    /// Bytes of one number.
    pub const fn size_bytes(self) -> usize {
        match self {
            ScalarType::Float(dtype) => dtype.size_bytes(),
            ScalarType::E4m3 => size_of::<F8E4M3>(),
            ScalarType::I32 => size_of::<i32>(),
            ScalarType::U8 => size_of::<u8>(),
            ScalarType::U64 => size_of::<u64>(),
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
            ScalarType::U64 => f.write_str("u64"),
        }
    }
}

/// A Rust type of any argument of a call: an [`Element`], `float8::F8E4M3`, `i32`, `u8` or `u64`.
pub trait Scalar:
    Copy + Default + Send + Sync + fmt::Debug + PartialEq + sealed::Sealed + 'static
{
    /// Its [`ScalarType`].
    const TYPE: ScalarType;
}

/// A Rust type of the tensors of a call: `half::bf16`, `half::f16` or `f32`.
///
/// [`attend`](crate::attend()) has an example.
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

impl Scalar for u64 {
    const TYPE: ScalarType = ScalarType::U64;
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

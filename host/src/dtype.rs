//! The element types of q, k, v and o, and their mapping to Rust types.

use std::fmt;

use ferroflash_kernels::variants;
use half::{bf16, f16};

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

/// A Rust type that tensors may hold: `half::bf16`, `half::f16` or `f32`.
pub trait Element: Copy + Send + Sync + fmt::Debug + PartialEq + sealed::Sealed + 'static {
    /// Its [`Dtype`].
    const DTYPE: Dtype;
    /// The value, exactly.
    fn to_f32(self) -> f32;
    /// The nearest value, ties to even.
    fn from_f32(value: f32) -> Self;
}

macro_rules! element {
    ($type:ty, $dtype:ident, $to_f32:expr, $from_f32:expr) => {
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
    use super::{bf16, f16};
    use crate::tensor::{HostData, HostDataMut};

    /// Keeps [`super::Element`] closed and gives the tensors their way from a slice to an enum and back.
    pub trait Sealed: Sized {
        fn wrap(data: &[Self]) -> HostData<'_>;
        fn wrap_mut(data: &mut [Self]) -> HostDataMut<'_>;
        fn unwrap<'a>(data: &HostData<'a>) -> Option<&'a [Self]>;
        fn unwrap_mut<'a>(data: &'a mut HostDataMut<'_>) -> Option<&'a mut [Self]>;
    }

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
}

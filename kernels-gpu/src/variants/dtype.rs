//! The element types of kernels.

use crate::config::{BYTE_BYTES, F32_BYTES, HALF_BYTES};

/// Type of the elements of q, k, v, o and their gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// bfloat16.
    Bf16,
    /// IEEE binary16.
    F16,
    /// IEEE binary32.
    F32,
    /// Of q, k and v: 8 bits, four of exponent and three of mantissa. The constants [`OF16`](crate::spec::Constant::OF16) and
    /// [`OF32`](crate::spec::Constant::OF32) say the type of o.
    E4m3,
}

impl Dtype {
    /// Bytes of an element.
    pub const fn bytes(self) -> u32 {
        match self {
            Dtype::Bf16 | Dtype::F16 => HALF_BYTES,
            Dtype::F32 => F32_BYTES,
            Dtype::E4m3 => BYTE_BYTES,
        }
    }
}

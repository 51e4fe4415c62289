//! Tensor maps: what Hopper's copy engine knows of a tensor. CUDA 12.0 brought them.

use std::ffi::{c_int, c_void};

use super::raw;
use crate::error::DriverError;

/// Type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementType {
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
}

impl ElementType {
    /// `CUtensorMapDataType`.
    const fn number(self) -> c_int {
        match self {
            ElementType::F16 => 6,
            ElementType::Bf16 => 9,
        }
    }
}

/// A tensor of four dimensions, the innermost first, to be copied in boxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiled {
    /// Type of the elements.
    pub element: ElementType,
    /// Address of the first one; a multiple of 16.
    pub address: u64,
    /// Elements along each dimension: 1 to 2³².
    pub sizes: [u64; RANK],
    /// Bytes from one entry to the next, of all dimensions but the innermost: multiples of 16 below 2⁴⁰.
    pub strides: [u64; RANK - 1],
    /// Elements of a box along each dimension: 1 to 256; along the innermost 128 bytes.
    pub box_sizes: [u32; RANK],
}

/// Dimensions of a tensor.
pub const RANK: usize = 4;

/// The driver's encoding: 128 bytes that only the copy engine reads, at a multiple of 64.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMap(pub [u64; 16]);

/// `CU_TENSOR_MAP_INTERLEAVE_NONE`.
const INTERLEAVE_NONE: c_int = 0;
/// `CU_TENSOR_MAP_SWIZZLE_128B`.
const SWIZZLE_128_BYTES: c_int = 3;
/// `CU_TENSOR_MAP_L2_PROMOTION_L2_256B`.
const L2_PROMOTION_256_BYTES: c_int = 3;
/// `CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE`: what lies outside the tensor is read as 0.
const FILL_NONE: c_int = 0;

/// Encodes a tensor whose boxes lie in shared memory in the 128-byte swizzle, every element of a box next to the other.
///
/// The driver checks sizes, strides and alignment, and looks at nothing behind the address. One older than CUDA 12.0
/// lacks the function: the error says so.
pub fn encode(tensor: &Tiled) -> Result<TensorMap, DriverError> {
    let mut map = TensorMap([0; 16]);
    let element_strides = [1_u32; RANK];
    // SAFETY: `map` is there to be written, aligned as the driver asks; every list has as many entries as the rank
    // says, the strides one less.
    unsafe {
        raw::cuTensorMapEncodeTiled(
            (&raw mut map).cast::<c_void>(),
            tensor.element.number(),
            RANK as u32,
            tensor.address as *mut c_void,
            tensor.sizes.as_ptr(),
            tensor.strides.as_ptr(),
            tensor.box_sizes.as_ptr(),
            element_strides.as_ptr(),
            INTERLEAVE_NONE,
            SWIZZLE_128_BYTES,
            L2_PROMOTION_256_BYTES,
            FILL_NONE,
        )?
    };
    Ok(map)
}

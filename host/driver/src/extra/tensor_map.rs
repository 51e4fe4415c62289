//! Tensor maps: descriptions of tensors for Hopper's copy engine, from CUDA 12.0 on.

use std::ffi::{c_int, c_uint, c_void};

use crate::error::DriverError;

/// Type of a tensor's elements: `CUtensorMapDataType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum ElementType {
    /// Bytes, also those of numbers of 8 bits.
    U8 = 0,
    /// IEEE binary16.
    F16 = 6,
    /// bfloat16.
    Bf16 = 9,
}

/// A tensor of four dimensions, the innermost first, to be copied in boxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiled {
    /// Type of the elements.
    pub element: ElementType,
    /// Address of the first element; a multiple of 16.
    pub address: u64,
    /// Elements along each dimension: 1 to 2³².
    pub sizes: [u64; RANK],
    /// Strides in bytes, of all dimensions but the innermost: multiples of 16 below 2⁴⁰.
    pub strides: [u64; RANK - 1],
    /// Elements of a box along each dimension: 1 to 256; along the innermost 128 bytes.
    pub box_sizes: [u32; RANK],
}

/// Dimensions of a tensor.
pub const RANK: usize = 4;
const DIMENSIONS: c_uint = RANK as c_uint;

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

calls! {
    unsafe fn encode_tiled(
        element: c_int, address: *mut c_void, sizes: *const [u64; RANK], strides: *const [u64; RANK - 1],
        boxes: *const [u32; RANK], element_strides: *const [u32; RANK],
    ) -> TensorMap = cuTensorMapEncodeTiled(
        &mut, element: c_int, DIMENSIONS: c_uint, address: *mut c_void, sizes: *const [u64; RANK],
        strides: *const [u64; RANK - 1], boxes: *const [u32; RANK], element_strides: *const [u32; RANK],
        INTERLEAVE_NONE: c_int, SWIZZLE_128_BYTES: c_int, L2_PROMOTION_256_BYTES: c_int, FILL_NONE: c_int
    );
}

/// Encodes a tensor whose boxes are in shared memory in the 128-byte swizzle, with contiguous elements.
///
/// The driver checks sizes, strides and alignment, and does not read memory at the address. A driver older than CUDA 12.0 lacks the function: the error says so.
pub fn encode(tensor: &Tiled) -> Result<TensorMap, DriverError> {
    let (element, address) = (tensor.element as c_int, tensor.address as *mut c_void);
    let (sizes, strides, boxes) = (&tensor.sizes, &tensor.strides, &tensor.box_sizes);
    // SAFETY: every list has as many entries as the rank says, the strides one less.
    unsafe { encode_tiled(element, address, sizes, strides, boxes, &[1; RANK]) }
}

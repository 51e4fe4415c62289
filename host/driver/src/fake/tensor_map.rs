//! Tensor maps. The encoding is the arguments themselves, in the order of [`TensorMap`]'s words below.

use std::ffi::{c_int, c_uint, c_void};

use super::{Call, INVALID_VALUE, state, write};
use crate::extra::tensor_map::{RANK, TensorMap};

/// Bytes of an element of the types that are encoded: f16 and bf16.
const ELEMENT_BYTES: u64 = 2;
/// `CUtensorMapDataType` of f16 and bf16.
const ELEMENTS: [c_int; 2] = [6, 9];
/// The most elements of a box along a dimension.
const MAX_BOX: u32 = 256;
/// Bytes along the innermost dimension of a box, with the 128-byte swizzle.
const SWIZZLE_BYTES: u64 = 128;
/// No interleaving, the 128-byte swizzle, promotion to 256 bytes in the L2 cache, zeros outside.
const MODES: [c_int; 4] = [0, 3, 3, 0];

/// Words: address, four sizes, three strides, the four sizes of a box, the type of the elements.
pub(super) extern "C" fn encode(
    map: *mut c_void,
    element: c_int,
    rank: c_uint,
    address: usize,
    sizes: *const [u64; RANK],
    strides: *const [u64; RANK - 1],
    box_sizes: *const [u32; RANK],
    element_strides: *const [u32; RANK],
    interleave: c_int,
    swizzle: c_int,
    l2_promotion: c_int,
    fill: c_int,
) -> u32 {
    if rank as usize != RANK || [interleave, swizzle, l2_promotion, fill] != MODES {
        return INVALID_VALUE;
    }
    // SAFETY: callers of a driver give lists as long as the rank says.
    let (sizes, strides, box_sizes, element_strides) =
        unsafe { (*sizes, *strides, *box_sizes, *element_strides) };
    let legal = ELEMENTS.contains(&element)
        && (map as usize).is_multiple_of(64)
        && address != 0
        && address.is_multiple_of(16)
        && sizes.iter().all(|size| (1..=1 << 32).contains(size))
        && strides
            .iter()
            .all(|stride| (16..1 << 40).contains(stride) && stride.is_multiple_of(16))
        && box_sizes.iter().all(|size| (1..=MAX_BOX).contains(size))
        && u64::from(box_sizes[0]) * ELEMENT_BYTES == SWIZZLE_BYTES
        && element_strides == [1; RANK];
    if !legal {
        return INVALID_VALUE;
    }
    let mut words = [0; 16];
    words[0] = address as u64;
    words[1..5].copy_from_slice(&sizes);
    words[5..8].copy_from_slice(&strides);
    words[8..12].copy_from_slice(&box_sizes.map(u64::from));
    words[12] = element as u64;
    state().record(Call::EncodeTensorMap);
    write(map.cast::<TensorMap>(), TensorMap(words))
}

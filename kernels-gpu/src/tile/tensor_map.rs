//! Tensor maps as bytes: the copy with which one that is made in global memory begins.

use crate::params::TensorMap;
use crate::ptx::{global, parameters};

/// Bytes that a thread copies at once.
const PIECE: u64 = 16;

/// Copies a tensor map from the parameters, or from global memory, to `to`.
///
/// # Safety
/// A tensor map lies at `from`; its 128 bytes fit at `to` in global memory, where nothing else reads or writes.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn copy(from: u64, to: u64) {
    for piece in 0..size_of::<TensorMap>() as u64 / PIECE {
        let offset = piece * PIECE;
        // SAFETY: the caller's contract.
        unsafe { global::st_global_x4(to + offset, parameters::ld_generic_x4(from + offset)) };
    }
}

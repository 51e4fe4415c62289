//! Memory of the current context's device.

use super::raw;
use crate::error::DriverError;
use crate::sys::CUdeviceptr;

/// Allocates; what the bytes hold is not said. The address is a multiple of 256.
///
/// # Safety
/// A context is current. The memory is to be freed with [`free`].
pub unsafe fn allocate(n_bytes: usize) -> Result<CUdeviceptr, DriverError> {
    let mut address = 0;
    // SAFETY: a context is current, as the caller promises; `address` is there to be written.
    unsafe { raw::cuMemAlloc_v2(&mut address, n_bytes)? };
    Ok(address)
}

/// Frees.
///
/// # Safety
/// `address` came from [`allocate`], its context is current, and nothing uses the memory any more.
pub unsafe fn free(address: CUdeviceptr) -> Result<(), DriverError> {
    // SAFETY: as the caller promises.
    unsafe { raw::cuMemFree_v2(address) }
}

/// Bytes that are free now, and in all.
pub fn info() -> Result<(usize, usize), DriverError> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: both are there to be written.
    unsafe { raw::cuMemGetInfo_v2(&mut free, &mut total)? };
    Ok((free, total))
}

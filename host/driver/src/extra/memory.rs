//! Memory of the current context's device.

use crate::error::DriverError;
use crate::sys::CUdeviceptr;

calls! {
    /// Allocates; what the bytes hold is not said. The address is a multiple of 256.
    ///
    /// # Safety
    /// A context is current. The memory is to be freed with [`free`].
    pub unsafe fn allocate(n_bytes: usize) -> CUdeviceptr = cuMemAlloc_v2(&mut, n_bytes: usize);

    /// Frees.
    ///
    /// # Safety
    /// `address` came from [`allocate`], its context is current, and nothing uses the memory any more.
    pub unsafe fn free(address: CUdeviceptr) = cuMemFree_v2(address: CUdeviceptr);

    unsafe fn get_info(free: *mut usize, total: *mut usize) =
        cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
}

/// Bytes that are free now, and in all.
pub fn info() -> Result<(usize, usize), DriverError> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: both are there to be written.
    unsafe { get_info(&mut free, &mut total)? };
    Ok((free, total))
}

//! Memory of the current context's device.

use crate::error::DriverError;
use crate::sys::CUdeviceptr;

calls! {
    /// Allocates uninitialised memory. The address is a multiple of 256.
    ///
    /// # Safety
    /// A context is current. Free the memory with [`free`].
    pub unsafe fn allocate(n_bytes: usize) -> CUdeviceptr = cuMemAlloc_v2(&mut, n_bytes: usize);

    /// Frees.
    ///
    /// # Safety
    /// `address` came from [`allocate`], its context is current, and nothing uses the memory afterwards.
    pub unsafe fn free(address: CUdeviceptr) = cuMemFree_v2(address: CUdeviceptr);

    unsafe fn get_info(free: *mut usize, total: *mut usize) =
        cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
}

/// Free bytes, and total bytes.
pub fn info() -> Result<(usize, usize), DriverError> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: both are there to be written.
    unsafe { get_info(&mut free, &mut total)? };
    Ok((free, total))
}

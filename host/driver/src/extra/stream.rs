//! Streams that do not wait for the default stream; work on any stream.

use std::ffi::{c_uint, c_void};

use crate::error::DriverError;
use crate::sys::{CUcontext, CUdeviceptr, CUstream};

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;

calls! {
    /// Creates a stream in the current context that does not wait for the default stream.
    ///
    /// # Safety
    /// A context is current. Destroy the stream with [`destroy`].
    pub unsafe fn create() -> CUstream = cuStreamCreate(&mut, NON_BLOCKING: c_uint);

    /// Destroys a stream; its pending work still runs.
    ///
    /// # Safety
    /// `stream` came from [`create`] and is not used afterwards.
    pub unsafe fn destroy(stream: CUstream) = cuStreamDestroy_v2(stream: CUstream);

    /// Waits until the work on a stream is done.
    ///
    /// # Safety
    /// `stream` belongs to the current context.
    pub unsafe fn synchronize(stream: CUstream) = cuStreamSynchronize(stream: CUstream);

    /// The context that a stream belongs to.
    ///
    /// # Safety
    /// `stream` is alive; the default stream (null) is taken to be the current context's.
    pub unsafe fn context(stream: CUstream) -> CUcontext = cuStreamGetCtx(stream: CUstream, &mut);

    unsafe fn enqueue_copy_to_device(to: CUdeviceptr, from: *const c_void, n_bytes: usize, stream: CUstream) =
        cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, n_bytes: usize, stream: CUstream);
    unsafe fn enqueue_copy_to_host(to: *mut c_void, from: CUdeviceptr, n_bytes: usize, stream: CUstream) =
        cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, n_bytes: usize, stream: CUstream);
    unsafe fn enqueue_copy_on_device(to: CUdeviceptr, from: CUdeviceptr, n_bytes: usize, stream: CUstream) =
        cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, n_bytes: usize, stream: CUstream);
    unsafe fn enqueue_fill(to: CUdeviceptr, value: u8, n_bytes: usize, stream: CUstream) =
        cuMemsetD8Async(to: CUdeviceptr, value: u8, n_bytes: usize, stream: CUstream);
}

/// Enqueues work on this many bytes; does nothing for 0 bytes.
fn unless_empty(
    n_bytes: usize,
    enqueue: impl FnOnce() -> Result<(), DriverError>,
) -> Result<(), DriverError> {
    if n_bytes == 0 { Ok(()) } else { enqueue() }
}

/// Enqueues a copy of `n_bytes` from host memory to device memory; does nothing for 0 bytes.
///
/// # Safety
/// Both ranges are valid, and the host's is neither freed nor written before the copy is done.
pub unsafe fn copy_to_device(
    to: CUdeviceptr,
    from: *const c_void,
    n_bytes: usize,
    stream: CUstream,
) -> Result<(), DriverError> {
    // SAFETY: as the caller promises.
    unless_empty(n_bytes, || unsafe {
        enqueue_copy_to_device(to, from, n_bytes, stream)
    })
}

/// Enqueues a copy of `n_bytes` from device memory to host memory; does nothing for 0 bytes.
///
/// # Safety
/// Both ranges are valid, and the host's is neither freed, read nor written before the copy is done.
pub unsafe fn copy_to_host(
    to: *mut c_void,
    from: CUdeviceptr,
    n_bytes: usize,
    stream: CUstream,
) -> Result<(), DriverError> {
    // SAFETY: as the caller promises.
    unless_empty(n_bytes, || unsafe {
        enqueue_copy_to_host(to, from, n_bytes, stream)
    })
}

/// Enqueues a copy of `n_bytes` within device memory; does nothing for 0 bytes.
///
/// # Safety
/// Both ranges are valid until the copy is done, and do not overlap.
pub unsafe fn copy_on_device(
    to: CUdeviceptr,
    from: CUdeviceptr,
    n_bytes: usize,
    stream: CUstream,
) -> Result<(), DriverError> {
    // SAFETY: as the caller promises.
    unless_empty(n_bytes, || unsafe {
        enqueue_copy_on_device(to, from, n_bytes, stream)
    })
}

/// Enqueues the filling of `n_bytes` of device memory with one value; does nothing for 0 bytes.
///
/// # Safety
/// The range is valid until the work is done.
pub unsafe fn fill(
    to: CUdeviceptr,
    value: u8,
    n_bytes: usize,
    stream: CUstream,
) -> Result<(), DriverError> {
    // SAFETY: as the caller promises.
    unless_empty(n_bytes, || unsafe {
        enqueue_fill(to, value, n_bytes, stream)
    })
}

//! Contexts: the primary one of a device, and which is current in this thread.

use crate::error::DriverError;
use crate::sys::{CUcontext, CUdevice};

calls! {
    unsafe fn get_current() -> CUcontext = cuCtxGetCurrent(&mut);
    unsafe fn pop_current() -> CUcontext = cuCtxPopCurrent_v2(&mut);
    unsafe fn get_device() -> CUdevice = cuCtxGetDevice(&mut);
    unsafe fn wait() = cuCtxSynchronize();

    /// Makes a context current in this thread until [`pop`].
    ///
    /// # Safety
    /// `context` is alive until it is popped.
    pub unsafe fn push(context: CUcontext) = cuCtxPushCurrent_v2(context: CUcontext);

    /// The primary context of a device, which every library of the process shares; it lives until everyone who retained it has released it. It does
    /// not become current.
    ///
    /// # Safety
    /// Release it with [`release_primary`].
    pub unsafe fn retain_primary(device: CUdevice) -> CUcontext =
        cuDevicePrimaryCtxRetain(&mut, device: CUdevice);

    /// Releases it.
    ///
    /// # Safety
    /// It came from [`retain_primary`], once for each release; objects made in it are not used afterwards.
    pub unsafe fn release_primary(device: CUdevice) = cuDevicePrimaryCtxRelease_v2(device: CUdevice);
}

/// The context that is current in this thread; null if there is none.
pub fn current() -> Result<CUcontext, DriverError> {
    // SAFETY: it only asks.
    unsafe { get_current() }
}

/// Pops the current context of this thread; the one below it, if any, is current again.
pub fn pop() -> Result<CUcontext, DriverError> {
    // SAFETY: where no context is current, the driver says so.
    unsafe { pop_current() }
}

/// The device of the current context.
pub fn device() -> Result<CUdevice, DriverError> {
    // SAFETY: where no context is current, the driver says so.
    unsafe { get_device() }
}

/// Waits until all work of the current context is done, and reports its errors.
pub fn synchronize() -> Result<(), DriverError> {
    // SAFETY: where no context is current, the driver says so.
    unsafe { wait() }
}

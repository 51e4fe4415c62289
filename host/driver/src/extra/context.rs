//! Contexts: the primary one of a device, and which is current in this thread.

use std::ptr::null_mut;

use super::raw;
use crate::error::DriverError;
use crate::sys::{CUcontext, CUdevice};

/// The context that is current in this thread; null where there is none.
pub fn current() -> Result<CUcontext, DriverError> {
    let mut context = null_mut();
    // SAFETY: `context` is there to be written.
    unsafe { raw::cuCtxGetCurrent(&mut context)? };
    Ok(context)
}

/// Makes a context current in this thread until [`pop`].
///
/// # Safety
/// `context` is alive and stays so until it is popped.
pub unsafe fn push(context: CUcontext) -> Result<(), DriverError> {
    // SAFETY: as the caller promises.
    unsafe { raw::cuCtxPushCurrent_v2(context) }
}

/// Takes the current context of this thread away; the one below it, or none, is current again.
pub fn pop() -> Result<CUcontext, DriverError> {
    let mut context = null_mut();
    // SAFETY: `context` is there to be written.
    unsafe { raw::cuCtxPopCurrent_v2(&mut context)? };
    Ok(context)
}

/// The device of the current context.
pub fn device() -> Result<CUdevice, DriverError> {
    let mut device = 0;
    // SAFETY: `device` is there to be written; where no context is current, the driver says so.
    unsafe { raw::cuCtxGetDevice(&mut device)? };
    Ok(device)
}

/// Waits until all work of the current context is done, and reports what went wrong in it.
pub fn synchronize() -> Result<(), DriverError> {
    // SAFETY: where no context is current, the driver says so.
    unsafe { raw::cuCtxSynchronize() }
}

/// The primary context of a device, which every library of the process shares; it lives until all that retained it have released it.
/// It does not become current.
///
/// # Safety
/// It is to be released with [`release_primary`].
pub unsafe fn retain_primary(device: CUdevice) -> Result<CUcontext, DriverError> {
    let mut context = null_mut();
    // SAFETY: `context` is there to be written; a device that does not exist is refused.
    unsafe { raw::cuDevicePrimaryCtxRetain(&mut context, device)? };
    Ok(context)
}

/// Gives it back.
///
/// # Safety
/// It came from [`retain_primary`], once for each release; what was made in it is not used afterwards.
pub unsafe fn release_primary(device: CUdevice) -> Result<(), DriverError> {
    // SAFETY: as the caller promises.
    unsafe { raw::cuDevicePrimaryCtxRelease_v2(device) }
}

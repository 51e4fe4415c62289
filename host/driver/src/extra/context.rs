//! Which context is current in this thread.

use std::ptr::null_mut;

use cust_raw::CUcontext;

use super::raw;
use crate::error::DriverError;

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

/// Makes a context current in this thread, in place of the one that was; null takes that one away.
///
/// # Safety
/// `context` is null, or alive for as long as it is current.
pub unsafe fn set(context: CUcontext) -> Result<(), DriverError> {
    // SAFETY: as the caller promises.
    unsafe { raw::cuCtxSetCurrent(context) }
}

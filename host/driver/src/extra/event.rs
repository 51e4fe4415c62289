//! Events: marks in a stream, with the time at which it passed them.

use std::ffi::c_uint;
use std::ptr::null_mut;

use super::raw;
use crate::error::DriverError;
use crate::sys::{CUevent, CUstream};

/// `CU_EVENT_DEFAULT`: with time, waited for by spinning.
const DEFAULT: c_uint = 0;

/// Creates an event in the current context.
///
/// # Safety
/// A context is current. The event is to be destroyed with [`destroy`].
pub unsafe fn create() -> Result<CUevent, DriverError> {
    let mut event = null_mut();
    // SAFETY: a context is current, as the caller promises; `event` is there to be written.
    unsafe { raw::cuEventCreate(&mut event, DEFAULT)? };
    Ok(event)
}

/// Destroys an event.
///
/// # Safety
/// `event` came from [`create`] and is not used afterwards.
pub unsafe fn destroy(event: CUevent) -> Result<(), DriverError> {
    // SAFETY: as the caller promises.
    unsafe { raw::cuEventDestroy_v2(event) }
}

/// Records an event after the work that is on a stream now.
///
/// # Safety
/// `event` and `stream` are alive and of the current context.
pub unsafe fn record(event: CUevent, stream: CUstream) -> Result<(), DriverError> {
    // SAFETY: as the caller promises.
    unsafe { raw::cuEventRecord(event, stream) }
}

/// Makes the later work of a stream wait for an event, without holding up the host.
///
/// # Safety
/// `event` and `stream` are alive.
pub unsafe fn wait(stream: CUstream, event: CUevent) -> Result<(), DriverError> {
    // SAFETY: as the caller promises.
    unsafe { raw::cuStreamWaitEvent(stream, event, 0) }
}

/// Holds the host up until an event has been passed.
///
/// # Safety
/// `event` is alive.
pub unsafe fn synchronize(event: CUevent) -> Result<(), DriverError> {
    // SAFETY: as the caller promises.
    unsafe { raw::cuEventSynchronize(event) }
}

/// Milliseconds from one event to another, both passed.
///
/// # Safety
/// Both events are alive.
pub unsafe fn elapsed_ms(start: CUevent, end: CUevent) -> Result<f32, DriverError> {
    let mut elapsed = 0.0;
    // SAFETY: as the caller promises; `elapsed` is there to be written.
    unsafe { raw::cuEventElapsedTime(&mut elapsed, start, end)? };
    Ok(elapsed)
}

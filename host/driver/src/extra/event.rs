//! Events: marks in a stream, with the time at which the stream passed them.

use std::ffi::c_uint;

use crate::sys::{CUevent, CUstream};

/// `CU_EVENT_DEFAULT`: with time; waiting spins.
const DEFAULT: c_uint = 0;
/// Flags of `cuStreamWaitEvent`: none exist.
const NO_FLAGS: c_uint = 0;

calls! {
    /// Creates an event in the current context.
    ///
    /// # Safety
    /// A context is current. Destroy the event with [`destroy`].
    pub unsafe fn create() -> CUevent = cuEventCreate(&mut, DEFAULT: c_uint);

    /// Destroys an event.
    ///
    /// # Safety
    /// `event` came from [`create`] and is not used afterwards.
    pub unsafe fn destroy(event: CUevent) = cuEventDestroy_v2(event: CUevent);

    /// Records an event after the work that is on a stream now.
    ///
    /// # Safety
    /// `event` and `stream` are alive and of the current context.
    pub unsafe fn record(event: CUevent, stream: CUstream) =
        cuEventRecord(event: CUevent, stream: CUstream);

    /// Makes the later work of a stream wait for an event, without blocking the host.
    ///
    /// # Safety
    /// `event` and `stream` are alive.
    pub unsafe fn wait(stream: CUstream, event: CUevent) =
        cuStreamWaitEvent(stream: CUstream, event: CUevent, NO_FLAGS: c_uint);

    /// Blocks the host until an event has been passed.
    ///
    /// # Safety
    /// `event` is alive.
    pub unsafe fn synchronize(event: CUevent) = cuEventSynchronize(event: CUevent);

    /// Milliseconds from one event to another, both passed.
    ///
    /// # Safety
    /// Both events are alive.
    pub unsafe fn elapsed_ms(start: CUevent, end: CUevent) -> f32 =
        cuEventElapsedTime(&mut, start: CUevent, end: CUevent);
}

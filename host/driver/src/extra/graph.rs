//! Graphs: the work of a stream captured once, launched many times by one call.

use std::ffi::c_int;
use std::ptr::null_mut;

use super::raw;
use crate::error::DriverError;
use crate::sys::{CUgraph, CUgraphExec, CUstream};

/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`: calls of other threads do not disturb the capture.
const THREAD_LOCAL: c_int = 1;

/// From here on the work enqueued on a stream by this thread is recorded and not done.
///
/// # Safety
/// `stream` is alive and not the default stream.
pub unsafe fn begin_capture(stream: CUstream) -> Result<(), DriverError> {
    // SAFETY: as the caller promises.
    unsafe { raw::cuStreamBeginCapture_v2(stream, THREAD_LOCAL) }
}

/// Ends the capture and gives what was recorded, to be destroyed with [`destroy`].
///
/// # Safety
/// `stream` is alive and was given to [`begin_capture`] by this thread.
pub unsafe fn end_capture(stream: CUstream) -> Result<CUgraph, DriverError> {
    let mut graph = null_mut();
    // SAFETY: as the caller promises; `graph` is there to be written.
    unsafe { raw::cuStreamEndCapture(stream, &mut graph)? };
    Ok(graph)
}

/// Makes a graph ready to launch, to be destroyed with [`destroy_exec`].
///
/// # Safety
/// `graph` is alive.
pub unsafe fn instantiate(graph: CUgraph) -> Result<CUgraphExec, DriverError> {
    let mut exec = null_mut();
    // SAFETY: as the caller promises; `exec` is there to be written.
    unsafe { raw::cuGraphInstantiateWithFlags(&mut exec, graph, 0)? };
    Ok(exec)
}

/// Enqueues the work of a graph.
///
/// # Safety
/// `exec` and `stream` are alive and of one context; the addresses that were captured are still valid.
pub unsafe fn launch(exec: CUgraphExec, stream: CUstream) -> Result<(), DriverError> {
    // SAFETY: as the caller promises.
    unsafe { raw::cuGraphLaunch(exec, stream) }
}

/// Destroys a graph; those made ready from it stay.
///
/// # Safety
/// `graph` is alive and not used afterwards.
pub unsafe fn destroy(graph: CUgraph) -> Result<(), DriverError> {
    // SAFETY: as the caller promises.
    unsafe { raw::cuGraphDestroy(graph) }
}

/// Destroys a graph that was made ready.
///
/// # Safety
/// `exec` is alive and not used afterwards.
pub unsafe fn destroy_exec(exec: CUgraphExec) -> Result<(), DriverError> {
    // SAFETY: as the caller promises.
    unsafe { raw::cuGraphExecDestroy(exec) }
}

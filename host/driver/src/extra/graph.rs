//! Graphs: the work of a stream captured once, launched many times by one call.

use std::ffi::c_int;

use crate::sys::{CUgraph, CUgraphExec, CUstream};

/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`: calls of other threads do not affect the capture.
const THREAD_LOCAL: c_int = 1;
/// Flags of `cuGraphInstantiateWithFlags`.
const NO_FLAGS: u64 = 0;

calls! {
    /// From here on the work that this thread enqueues on a stream is recorded and not run.
    ///
    /// # Safety
    /// `stream` is alive and not the default stream.
    pub unsafe fn begin_capture(stream: CUstream) =
        cuStreamBeginCapture_v2(stream: CUstream, THREAD_LOCAL: c_int);

    /// Ends the capture and returns the recorded graph, to be destroyed with [`destroy`].
    ///
    /// # Safety
    /// `stream` is alive and was given to [`begin_capture`] by this thread.
    pub unsafe fn end_capture(stream: CUstream) -> CUgraph = cuStreamEndCapture(stream: CUstream, &mut);

    /// Instantiates a graph, to be destroyed with [`destroy_exec`].
    ///
    /// # Safety
    /// `graph` is alive.
    pub unsafe fn instantiate(graph: CUgraph) -> CUgraphExec =
        cuGraphInstantiateWithFlags(&mut, graph: CUgraph, NO_FLAGS: u64);

    /// Enqueues the work of a graph.
    ///
    /// # Safety
    /// `exec` and `stream` are alive and of one context; the addresses that were captured are still valid.
    pub unsafe fn launch(exec: CUgraphExec, stream: CUstream) =
        cuGraphLaunch(exec: CUgraphExec, stream: CUstream);

    /// Destroys a graph; its instances stay valid.
    ///
    /// # Safety
    /// `graph` is alive and not used afterwards.
    pub unsafe fn destroy(graph: CUgraph) = cuGraphDestroy(graph: CUgraph);

    /// Destroys an instantiated graph.
    ///
    /// # Safety
    /// `exec` is alive and not used afterwards.
    pub unsafe fn destroy_exec(exec: CUgraphExec) = cuGraphExecDestroy(exec: CUgraphExec);
}

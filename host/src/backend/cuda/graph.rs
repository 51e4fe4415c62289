//! Graphs: calls captured from a queue once, launched with one driver call as often as wanted.

use std::fmt;
use std::sync::Arc;

use ferroflash_driver::extra;
use ferroflash_driver::sys::CUgraphExec;

use super::queue::{Ended, Lane, Queue, Recording, State};
use crate::error::{DriverError, Error, ProblemError};
use crate::tensor::Share;

/// The calls that were captured from a queue, with the addresses that they were given.
///
/// It keeps the queue's workspace of that time, and the memory of every [`DeviceBuffer`](super::DeviceBuffer) among the arguments: they stay
/// allocated when the buffers are dropped. Memory of another library must be kept alive by the caller, as the contract of
/// [`slice_from_raw`](super::memory::slice_from_raw) says.
///
/// A graph is launched on the queue that it was captured from and on no other: its workspace belongs to the calls of that
/// queue, which run one after another.
pub struct Graph {
    exec: CUgraphExec,
    lane: Arc<Lane>,
    shares: Vec<Share>,
}

// SAFETY: the driver wants launches of one graph not to be at once; each borrows the one queue of the graph exclusively.
unsafe impl Send for Graph {}
// SAFETY: as above.
unsafe impl Sync for Graph {}

/// Ends a capture when its closure panics.
struct Open<'a>(&'a mut Queue);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if let State::Capturing(_) = self.0.state {
            drop(self.0.end_capture());
        }
    }
}

impl Queue {
    /// Captures the calls that `work` enqueues on the given queue, which is this one: they are recorded and do not run. If `work` or one of its
    /// calls fails, the error is returned, and the queue is as before.
    ///
    /// The workspace cannot grow meanwhile: [`Queue::reserve`] comes first. The driver allows little else in this thread until `work` returns:
    /// anything that allocates or waits, such as a call that is not prepared, invalidates the capture, which is then an error
    /// ([`DriverError::Capture`]). Buffers that this or another thread drops meanwhile are freed at the next wait for the device; other threads that
    /// wait for the device wait for the capture first.
    pub fn capture(
        &mut self,
        work: impl FnOnce(&mut Queue) -> Result<(), Error>,
    ) -> Result<Graph, Error> {
        self.ready()?;
        let lane = Arc::clone(&self.lane);
        let current = lane.device.enter()?;
        let stream = lane.stream().as_raw();
        // SAFETY: the queue holds the stream; the driver refuses the default stream.
        let begin = || unsafe { extra::graph::begin_capture(stream) }.map_err(DriverError::from);
        lane.device.captures().begin(begin)?;
        drop(current);
        self.state = State::Capturing(Recording::default());
        let open = Open(self);
        let done = work(open.0);
        let ended = open.0.end_capture();
        done?;
        let Ended { captured, shares } = ended?;
        let _current = lane.device.enter()?;
        // SAFETY: the graph is alive.
        let exec = unsafe { extra::graph::instantiate(captured.0) }.map_err(DriverError::from)?;
        Ok(Graph {
            exec,
            lane: Arc::clone(&lane),
            shares,
        })
    }
}

impl Graph {
    /// Enqueues the captured calls on the queue that they were captured from. Neither waits nor allocates.
    pub fn launch(&self, queue: &mut Queue) -> Result<(), Error> {
        if !Arc::ptr_eq(&self.lane, &queue.lane) {
            return Err(ProblemError::GraphElsewhere.into());
        }
        queue.ready()?;
        let _current = self.lane.device.enter()?;
        // SAFETY: the stream is that of the capture. What the captured kernels use is held by `shares`, or by whoever gave memory
        // of another library; the device, which `lane` holds, keeps the kernels loaded.
        let launched = unsafe { extra::graph::launch(self.exec, self.lane.stream().as_raw()) };
        launched.map_err(|error| queue.failed(error.into()).into())
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if let Ok(_current) = self.lane.device.enter() {
            // SAFETY: the graph is ours and is not used afterwards. The driver lets its work end first, and what the work uses is
            // freed when the device has been waited for.
            let _ = unsafe { extra::graph::destroy_exec(self.exec) };
        }
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph")
            .field("device", &self.lane.device.ordinal())
            .field("n_head_splits", &self.shares.len())
            .finish_non_exhaustive()
    }
}

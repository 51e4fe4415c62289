//! Queues: a stream with the workspace of the calls on it.
//!
//! A kernel's intermediate results lie in a workspace, and so do the counters by which its blocks share out tiles. Two calls
//! that run at once must not have the same. A queue owns both a stream and a workspace: its calls run one after another,
//! and nothing lends the workspace to another stream.

use std::fmt;
use std::sync::Arc;

use ferroflash_driver::extra;
use ferroflash_driver::sys::CUstream;

use super::device::CudaDevice;
use super::launch::Launches;
use super::memory::Memory;
use super::stream::{Stream, StreamRef};
use crate::arguments::Argument;
use crate::error::{DriverError, Error, ProblemError};
use crate::plan::Plan;
use crate::plan::workspace::COUNTER_BYTES;

/// A stream of a device, with the memory for the intermediate results of the calls on it.
///
/// Calls run in the order in which they are enqueued. The workspace is as large as the largest of them needs. Its first
/// bytes hold counters that are 0 between calls: they are cleared when it is allocated, and every kernel that counts leaves 0
/// behind ([`COUNTER_BYTES`]).
///
/// Dropping a queue waits for its work.
pub struct Queue {
    lane: Lane,
    workspace: Option<Memory>,
    state: State,
}

/// The stream of a queue.
struct Lane {
    stream: LaneStream,
    device: Arc<CudaDevice>,
}

/// Whose stream it is.
enum LaneStream {
    Own(Stream),
    Borrowed(StreamRef<'static>),
}

/// What may be done with a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Calls may be enqueued.
    Ready,
    /// A call was enqueued in part and may still run; what the counters hold is not known.
    Poisoned,
}

impl Lane {
    fn stream(&self) -> StreamRef<'_> {
        match &self.stream {
            LaneStream::Own(stream) => stream.into(),
            LaneStream::Borrowed(stream) => *stream,
        }
    }

    fn synchronize(&self) -> Result<(), DriverError> {
        self.stream().synchronize(&self.device)
    }
}

impl Queue {
    /// A queue on a new stream, which waits for no other stream; without a workspace yet.
    pub fn new(device: &Arc<CudaDevice>) -> Result<Queue, DriverError> {
        let stream = LaneStream::Own(Stream::new(device)?);
        Ok(Queue::on(device, stream))
    }

    /// A queue on a stream that another library created; null is the default stream. The queue has a workspace of its own, and
    /// dropping it waits for the stream.
    ///
    /// # Safety
    /// The stream is alive for as long as the queue. While somebody else captures it into a graph, the queue neither grows
    /// nor is synchronised, and it lives for as long as that graph.
    pub unsafe fn borrow(device: &Arc<CudaDevice>, stream: CUstream) -> Result<Queue, Error> {
        let current = device.enter()?;
        // SAFETY: the stream is alive, as the caller promises.
        let context = unsafe { extra::stream::context(stream) }.map_err(DriverError::from)?;
        let own = extra::context::current().map_err(DriverError::from)?;
        drop(current);
        if context != own {
            return Err(ProblemError::QueueElsewhere.into());
        }
        // SAFETY: as above.
        let stream = unsafe { StreamRef::from_raw(stream) };
        Ok(Queue::on(device, LaneStream::Borrowed(stream)))
    }

    fn on(device: &Arc<CudaDevice>, stream: LaneStream) -> Queue {
        let device = Arc::clone(device);
        Queue {
            lane: Lane { stream, device },
            workspace: None,
            state: State::Ready,
        }
    }

    /// The device it belongs to.
    pub fn device(&self) -> &Arc<CudaDevice> {
        &self.lane.device
    }

    /// Its stream: for copies and events in the order of its calls.
    pub fn stream(&self) -> StreamRef<'_> {
        self.lane.stream()
    }

    /// Bytes of its workspace.
    pub fn workspace_bytes(&self) -> u64 {
        self.workspace.as_ref().map_or(0, Memory::n_bytes)
    }

    /// Makes the workspace large enough for a plan. Where it is too small, this waits for the queue, frees the old
    /// memory, and allocates.
    pub fn reserve(&mut self, plan: &Plan) -> Result<(), Error> {
        Ok(self.grow(plan.workspace.n_bytes())?)
    }

    fn grow(&mut self, n_bytes: u64) -> Result<(), DriverError> {
        if n_bytes <= self.workspace_bytes() {
            return Ok(());
        }
        if self.workspace.is_some() {
            self.synchronize()?;
            self.workspace = None;
        }
        let workspace = Memory::new(&self.lane.device, n_bytes)?;
        // In the order of the stream, so before the first call.
        workspace.clear_first(COUNTER_BYTES, self.stream())?;
        self.workspace = Some(workspace);
        Ok(())
    }

    /// Enqueues the kernels of a plan, with its arguments at these addresses. Where a kernel is refused, those before it have
    /// been waited for when this returns, or the queue takes no call until it has been.
    pub(crate) fn enqueue(
        &mut self,
        launches: &Launches,
        address: impl Fn(Argument) -> u64,
    ) -> Result<(), Error> {
        if !Arc::ptr_eq(&self.lane.device, launches.device()) {
            return Err(ProblemError::QueueElsewhere.into());
        }
        if self.state == State::Poisoned {
            return Err(DriverError::QueuePoisoned.into());
        }
        self.grow(launches.plan().workspace.n_bytes())?;
        let workspace = self.workspace.as_ref().map_or(0, Memory::address);
        launches
            .enqueue(workspace, address, self.stream())
            .map_err(|error| {
                self.state = State::Poisoned;
                // Its own error would hide the first; where it fails the queue stays poisoned.
                let _ = self.synchronize();
                error.into()
            })
    }

    /// Waits until its work is done, and reports what went wrong in it.
    pub fn synchronize(&mut self) -> Result<(), DriverError> {
        if let (State::Poisoned, Some(workspace)) = (self.state, &self.workspace) {
            workspace.clear_first(COUNTER_BYTES, self.stream())?;
        }
        self.lane.synchronize()?;
        self.state = State::Ready;
        Ok(())
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // An error can only be that of earlier work. The workspace is freed when the device has been waited for.
        let _ = self.lane.synchronize();
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("stream", &self.stream())
            .field("device", &self.lane.device.ordinal())
            .field("workspace_bytes", &self.workspace_bytes())
            .field("state", &self.state)
            .finish()
    }
}

impl<'a> From<&'a Queue> for StreamRef<'a> {
    fn from(queue: &'a Queue) -> StreamRef<'a> {
        queue.stream()
    }
}

//! Queues: a stream with the workspace of the calls on it.
//!
//! A kernel's intermediate results are in a workspace, as are the counters from which its blocks claim tiles. Two calls that run at the same time
//! must not share a workspace. A queue owns both a stream and a workspace: its calls run one after another, and no other stream uses the workspace.

use std::fmt;
use std::sync::Arc;

use ferroflash_driver::extra;
use ferroflash_driver::sys::{CUgraph, CUstream};

use super::context::Current;
use super::device::CudaDevice;
use super::launch::Launches;
use super::marks::Marks;
use super::memory::Memory;
use super::stream::{Stream, StreamRef};
use crate::arguments::{Argument, Operands};
use crate::error::{DriverError, Error, ProblemError};
use crate::plan::workspace::{ALIGNMENT_BYTES, COUNTER_BYTES};
use crate::plan::{Plan, Planned, WorkspaceLayout};
use crate::tensor::{Allocation, Share};

/// A stream of a device, with the memory for the intermediate results of the calls on it.
///
/// Calls run in the order in which they are enqueued. The workspace is as large as the largest of them needs. Its first bytes are counters that are
/// 0 between calls: they are cleared when it is allocated, and every kernel that counts resets them to 0 ([`COUNTER_BYTES`]).
///
/// Dropping a queue waits for its work, unless its workspace is lent ([`Queue::with_workspace`]).
pub struct Queue {
    pub(super) lane: Arc<Lane>,
    pub(super) workspace: Workspace,
    pub(super) state: State,
    /// Events between the launches of the next call.
    pub(super) marks: Option<Marks>,
}

/// The stream of a queue. Its address is the queue's identity: graphs hold it.
#[derive(Debug)]
pub(super) struct Lane {
    stream: LaneStream,
    pub(super) device: Arc<CudaDevice>,
}

/// The owner of its stream.
#[derive(Debug)]
enum LaneStream {
    Own(Stream),
    Borrowed(StreamRef<'static>),
}

/// Memory for intermediate results.
pub(super) enum Workspace {
    /// The queue's own; `None` before a call needs any.
    Own(Option<Arc<Memory>>),
    /// The caller's, of this length.
    Lent { address: u64, n_bytes: u64 },
}

impl Workspace {
    pub(super) fn address(&self) -> u64 {
        match self {
            Workspace::Own(memory) => memory.as_ref().map_or(0, |memory| memory.address()),
            Workspace::Lent { address, .. } => *address,
        }
    }

    fn n_bytes(&self) -> u64 {
        match self {
            Workspace::Own(memory) => memory.as_ref().map_or(0, |memory| memory.n_bytes()),
            Workspace::Lent { n_bytes, .. } => *n_bytes,
        }
    }
}

/// The state of a queue.
#[derive(Debug)]
pub(super) enum State {
    /// Calls may be enqueued.
    Ready,
    /// A call was enqueued in part and may still run; the counters are unknown.
    Poisoned,
    /// Calls are captured into a graph.
    Capturing(Recording),
}

/// The state of a capture.
#[derive(Debug, Default)]
pub(super) struct Recording {
    shares: Vec<Share>,
    failed: Option<DriverError>,
}

impl Recording {
    /// Keeps the memory of a call's arguments.
    fn keep(&mut self, operands: &Operands) {
        self.shares.extend(operands.shares());
    }

    /// A call was captured in part: there will be no graph.
    fn spoil(&mut self, error: DriverError) {
        self.failed.get_or_insert(error);
    }
}

/// A graph that is not instantiated, destroyed when this is dropped.
pub(super) struct Captured(pub(super) CUgraph);

impl Drop for Captured {
    fn drop(&mut self) {
        // SAFETY: the graph is ours and is not used afterwards.
        let _ = unsafe { extra::graph::destroy(self.0) };
    }
}

/// The result of an ended capture, not yet instantiated.
pub(super) struct Ended {
    pub(super) captured: Captured,
    pub(super) shares: Vec<Share>,
}

impl Lane {
    pub(super) fn stream(&self) -> StreamRef<'_> {
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
    /// A queue on a new stream that waits for no other stream. It has no workspace yet.
    pub fn new(device: &Arc<CudaDevice>) -> Result<Queue, DriverError> {
        let stream = LaneStream::Own(Stream::new(device)?);
        Ok(Queue::on(device, stream))
    }

    /// A queue on a stream that another library created; null is the default stream. The queue has its own workspace, and dropping it waits for the stream.
    ///
    /// # Safety
    /// The stream is alive for as long as the queue and the graphs captured from it. While the queue captures, nothing else is
    /// enqueued on the stream. While other code captures it into a graph, the queue neither grows nor is synchronised, and the queue and the memory
    /// of its calls' arguments then live as long as that graph.
    pub unsafe fn borrow(device: &Arc<CudaDevice>, stream: CUstream) -> Result<Queue, Error> {
        let current = device.enter()?;
        // SAFETY: the stream is alive, as the caller promises.
        let context = unsafe { extra::stream::context(stream) }.map_err(DriverError::from)?;
        drop(current);
        if !device.is_of(context) {
            return Err(ProblemError::QueueElsewhere.into());
        }
        // SAFETY: as above.
        let stream = unsafe { StreamRef::from_raw(stream) };
        Ok(Queue::on(device, LaneStream::Borrowed(stream)))
    }

    /// The same in a workspace that the caller lends, at a multiple of [`ALIGNMENT_BYTES`]: of
    /// [`Plan::workspace`](crate::plan::Plan::workspace)'s length, or of the longest of several calls'. Such a queue allocates nothing, never waits
    /// by itself, and may be created for each call. The contents of the workspace do not matter: before each call whose kernels count, the counters
    /// are cleared in the order of the stream.
    ///
    /// # Safety
    /// As for [`Queue::borrow`]; and nothing else uses these bytes of device memory while the queue's calls run, or a graph that captured them is launched.
    pub unsafe fn with_workspace(
        device: &Arc<CudaDevice>,
        stream: CUstream,
        address: u64,
        n_bytes: u64,
    ) -> Result<Queue, Error> {
        if !address.is_multiple_of(ALIGNMENT_BYTES) {
            let alignment = ALIGNMENT_BYTES;
            return Err(ProblemError::WorkspaceMisaligned { address, alignment }.into());
        }
        // SAFETY: as the caller promises.
        let mut queue = unsafe { Queue::borrow(device, stream)? };
        queue.workspace = Workspace::Lent { address, n_bytes };
        Ok(queue)
    }

    /// Clears this many bytes of a workspace's counters in the order of the stream, so before the first call that uses them.
    fn clear_counters(
        &self,
        workspace: &Workspace,
        n_bytes: u64,
        _current: &Current,
    ) -> Result<(), DriverError> {
        let n_bytes = workspace.n_bytes().min(n_bytes) as usize;
        let stream = self.lane.stream().as_raw();
        // SAFETY: the range is the workspace's, which is there until the queue's work is done. The device's context is current.
        unsafe { extra::stream::fill(workspace.address(), 0, n_bytes, stream)? };
        Ok(())
    }

    /// Clears the counters of a lent workspace, if the call counts: its memory may have been used otherwise since the last call.
    fn clear_lent(&self, layout: &WorkspaceLayout, current: &Current) -> Result<(), DriverError> {
        match &self.workspace {
            lent @ Workspace::Lent { .. } if layout.has_counter() => {
                self.clear_counters(lent, layout.counter_bytes(), current)
            }
            Workspace::Lent { .. } | Workspace::Own(_) => Ok(()),
        }
    }

    fn on(device: &Arc<CudaDevice>, stream: LaneStream) -> Queue {
        let device = Arc::clone(device);
        Queue {
            lane: Arc::new(Lane { stream, device }),
            workspace: Workspace::Own(None),
            state: State::Ready,
            marks: None,
        }
    }

    /// The device it belongs to.
    pub fn device(&self) -> &Arc<CudaDevice> {
        &self.lane.device
    }

    /// Its stream: for copies and events in the order of its calls. During a capture they are refused.
    pub fn stream(&self) -> StreamRef<'_> {
        match self.state {
            State::Capturing(_) => self.lane.stream().captured(),
            State::Ready | State::Poisoned => self.lane.stream(),
        }
    }

    /// Bytes of its workspace.
    pub fn workspace_bytes(&self) -> u64 {
        self.workspace.n_bytes()
    }

    /// Makes the workspace large enough for a plan. If it is too small, this waits for the queue, frees the old memory, and allocates; a
    /// [`Graph`](super::Graph) captured before keeps the old memory.
    pub fn reserve(&mut self, plan: &Plan) -> Result<(), Error> {
        self.grow(plan.workspace.n_bytes())
    }

    /// The same for this many bytes, such as those of the workspace of a [`QuantizePlan`](crate::plan::QuantizePlan).
    pub fn reserve_bytes(&mut self, n_bytes: u64) -> Result<(), Error> {
        self.grow(n_bytes)
    }

    pub(crate) fn grow(&mut self, needed: u64) -> Result<(), Error> {
        let given = self.workspace_bytes();
        if needed <= given {
            return Ok(());
        }
        let too_small = ProblemError::WorkspaceTooSmall { given, needed };
        match (&self.state, &self.workspace) {
            (State::Capturing(_), _) | (_, Workspace::Lent { .. }) => return Err(too_small.into()),
            (_, Workspace::Own(Some(_))) => {
                self.synchronize()?;
                self.workspace = Workspace::Own(None);
            }
            (_, Workspace::Own(None)) => {}
        }
        let own = Workspace::Own(Some(Arc::new(Memory::new(&self.lane.device, needed)?)));
        self.clear_counters(&own, COUNTER_BYTES, &self.lane.device.enter()?)?;
        self.workspace = own;
        Ok(())
    }

    /// Enqueues the kernels of a plan, with its arguments at these addresses. If a launch is refused, this waits for the launches before it, or the
    /// queue takes no call until it has waited. A capture keeps the memory of
    /// `operands`.
    pub(crate) fn enqueue<P: Planned>(
        &mut self,
        launches: &Launches<P>,
        operands: &Operands,
        address: impl Fn(Argument) -> u64,
    ) -> Result<(), Error> {
        // A capture has none: events of a graph have no times.
        let marks = self.marks.take().filter(|_| self.ready().is_ok());
        if !Arc::ptr_eq(&self.lane.device, launches.device()) {
            return Err(ProblemError::QueueElsewhere.into());
        }
        if let State::Poisoned = self.state {
            return Err(DriverError::QueuePoisoned.into());
        }
        self.grow(launches.plan().workspace_layout().n_bytes())?;
        let enqueued = self.lane.device.enter().and_then(|current| {
            self.clear_lent(launches.plan().workspace_layout(), &current)?;
            let (workspace, stream) = (self.workspace.address(), self.lane.stream());
            launches.enqueue(
                workspace,
                address,
                operands.values(),
                marks.as_ref(),
                stream,
                &current,
            )
        });
        if let State::Capturing(recording) = &mut self.state {
            recording.keep(operands);
        }
        enqueued.map_err(|error| self.failed(error).into())
    }

    /// Whether a capture may begin, or a graph be launched.
    pub(super) fn ready(&self) -> Result<(), DriverError> {
        match self.state {
            State::Ready => Ok(()),
            State::Poisoned => Err(DriverError::QueuePoisoned),
            State::Capturing(_) => Err(DriverError::QueueCaptured),
        }
    }

    /// Waits for the rest of work that was enqueued in part.
    pub(super) fn failed(&mut self, error: DriverError) -> DriverError {
        match &mut self.state {
            State::Capturing(recording) => recording.spoil(error.clone()),
            State::Ready | State::Poisoned => {
                self.state = State::Poisoned;
                // Its own error would hide the first; where it fails the queue stays poisoned.
                let _ = self.synchronize();
            }
        }
        error
    }

    /// Waits until its work is done, and reports its errors.
    pub fn synchronize(&mut self) -> Result<(), DriverError> {
        match &self.state {
            State::Capturing(_) => return Err(DriverError::QueueCaptured),
            State::Poisoned => {
                let current = self.lane.device.enter()?;
                self.clear_counters(&self.workspace, COUNTER_BYTES, &current)?;
            }
            State::Ready => {}
        }
        self.lane.synchronize()?;
        self.state = State::Ready;
        Ok(())
    }

    /// Ends the capture; the queue is ready again, even after an error.
    pub(super) fn end_capture(&mut self) -> Result<Ended, DriverError> {
        let State::Capturing(recording) = std::mem::replace(&mut self.state, State::Ready) else {
            return Err(DriverError::QueueReplaced);
        };
        let _ending = self.lane.device.captures().end();
        let _current = self.lane.device.enter()?;
        // SAFETY: the queue holds the stream, whose capture it has begun; the driver refuses another thread.
        let captured = unsafe { extra::graph::end_capture(self.lane.stream().as_raw()) };
        let captured = captured.map(Captured);
        if let Some(error) = recording.failed {
            return Err(error);
        }
        let captured = captured?;
        let mut shares = recording.shares;
        if let Workspace::Own(Some(workspace)) = &self.workspace {
            shares.push(workspace.share());
        }
        Ok(Ended { captured, shares })
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // A capture is still open where its closure put another queue in this one's place.
        if let State::Capturing(_) = self.state {
            drop(self.end_capture());
        }
        // Lent memory stays when the queue goes; nothing of its own is freed.
        if let Workspace::Own(_) = self.workspace {
            // An error can only be that of earlier work. The workspace is freed when the device has been waited for.
            let _ = self.lane.synchronize();
        }
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

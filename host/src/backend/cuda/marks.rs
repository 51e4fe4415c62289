//! Marks between the launches of a call: for a profile, how long each kernel takes.

use std::sync::Arc;

use super::event::Event;
use super::launch::Launches;
use super::queue::Queue;
use super::stream::StreamRef;
use crate::error::DriverError;
use crate::plan::Planned;

/// Events that a call records between its launches.
pub(super) type Marks = Arc<[Event]>;

impl Queue {
    /// Records events between the launches of the next call on this queue: event `i` before launch `i` of its plan, and one more after the last
    /// launch. So a call of `n` launches takes `n + 1` events, and
    /// [`Event::elapsed_ms`] of two consecutive events is the time of one launch. With fewer events the last launches have none; surplus events are not recorded.
    ///
    /// Only the next call is marked, whether it succeeds or not. An event costs a kernel some of the overlap with the next one's launch, so the sum of
    /// the times is more than an unmarked call takes. Refused while the queue captures; a call that is captured next has no marks.
    ///
    /// ```no_run
    /// use ferroflash::backend::cuda::{Event, Queue};
    /// # use ferroflash::{Error, Inputs, Outputs, PreparedForward};
    ///
    /// # fn profile(prepared: &PreparedForward, queue: &mut Queue, inputs: &Inputs, outputs: &mut Outputs) -> Result<(), Error> {
    /// let n_launches = prepared.plan().launches.len();
    /// let events = (0..=n_launches).map(|_| Event::new(queue.device()));
    /// let events: std::sync::Arc<[Event]> = events.collect::<Result<_, _>>()?;
    /// queue.mark_launches(events.clone())?;
    /// prepared.forward(queue, inputs, outputs)?;
    /// queue.synchronize()?;
    /// for (launch, marks) in prepared.plan().launches.iter().zip(events.windows(2)) {
    ///     println!("{}: {} ms", launch.kernel(), marks[1].elapsed_ms(&marks[0])?);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn mark_launches(&mut self, events: Arc<[Event]>) -> Result<(), DriverError> {
        self.ready()?;
        self.marks = Some(events);
        Ok(())
    }
}

impl<P: Planned> Launches<P> {
    /// Records the mark of this place, if there is one.
    pub(super) fn mark(
        &self,
        marks: Option<&Marks>,
        place: usize,
        stream: StreamRef<'_>,
    ) -> Result<(), DriverError> {
        match marks.and_then(|marks| marks.get(place)) {
            Some(event) => event.record(stream),
            None => Ok(()),
        }
    }
}

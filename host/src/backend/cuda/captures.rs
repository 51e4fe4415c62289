//! The open captures of a device's streams: while one is open nothing waits for the device, which would invalidate the capture.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

/// How long to wait for other threads' captures. A capture records calls and runs none, so it is over by then, unless it waits for the thread that waits for it.
const PATIENCE: Duration = Duration::from_secs(2);

/// The threads that capture, once for each capture.
#[derive(Default)]
pub(super) struct Captures {
    open: Mutex<Vec<ThreadId>>,
    ended: Condvar,
}

/// While this guard lives no capture begins.
pub(super) struct Held<'a>(MutexGuard<'a, Vec<ThreadId>>);

impl Held<'_> {
    /// Whether no capture is open.
    pub(super) fn none_is_open(&self) -> bool {
        self.0.is_empty()
    }
}

/// A capture that ends.
pub(super) struct Ending<'a>(&'a Captures);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let mut held = self.0.hold();
        let own = thread::current().id();
        if let Some(idx) = held.0.iter().position(|&id| id == own) {
            held.0.swap_remove(idx);
        }
        self.0.ended.notify_all();
    }
}

impl Captures {
    /// A capture of this thread, if `begin` begins it.
    pub(super) fn begin<E>(&self, begin: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let mut held = self.hold();
        begin()?;
        held.0.push(thread::current().id());
        Ok(())
    }

    /// A capture of this thread ends, by the time that the guard is dropped.
    pub(super) fn end(&self) -> Ending<'_> {
        Ending(self)
    }

    /// Keeps captures from beginning.
    pub(super) fn hold(&self) -> Held<'_> {
        Held(self.open.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The same, after the captures of other threads have ended. It does not wait for this thread's own, nor longer than two seconds: the driver then decides.
    pub(super) fn hold_without_others(&self) -> Held<'_> {
        let own = thread::current().id();
        let others = |open: &mut Vec<ThreadId>| open.iter().any(|&id| id != own);
        let Held(open) = self.hold();
        let waited = self.ended.wait_timeout_while(open, PATIENCE, others);
        Held(waited.unwrap_or_else(PoisonError::into_inner).0)
    }
}

//! The context that a device works in, and which one is current in a thread.

use ferroflash_driver::extra;
use ferroflash_driver::sys::{CUcontext, CUdevice};

use crate::error::DriverError;

/// The context that a device works in.
pub(super) enum Context {
    Primary(PrimaryContext),
    Borrowed(BorrowedContext),
}

impl Context {
    pub(super) fn handle(&self) -> CUcontext {
        match self {
            Context::Primary(context) => context.handle,
            Context::Borrowed(BorrowedContext(handle)) => *handle,
        }
    }

    pub(super) fn is_primary(&self) -> bool {
        matches!(self, Context::Primary(_))
    }
}

/// A context that another library has made, and keeps alive.
pub(super) struct BorrowedContext(CUcontext);

impl BorrowedContext {
    pub(super) fn new(context: CUcontext) -> BorrowedContext {
        BorrowedContext(context)
    }
}

// SAFETY: as for a primary context.
unsafe impl Send for BorrowedContext {}
// SAFETY: as above.
unsafe impl Sync for BorrowedContext {}

/// The primary context of a device, held. Other libraries of the process share it.
pub(super) struct PrimaryContext {
    handle: CUcontext,
    device: CUdevice,
}

// SAFETY: the driver lets every thread use a context, at once; the handle is an address that only the driver follows.
unsafe impl Send for PrimaryContext {}
// SAFETY: as above.
unsafe impl Sync for PrimaryContext {}

impl PrimaryContext {
    pub(super) fn retain(device: CUdevice) -> Result<PrimaryContext, DriverError> {
        // SAFETY: released when this is dropped.
        let handle = unsafe { extra::context::retain_primary(device)? };
        Ok(PrimaryContext { handle, device })
    }
}

impl Drop for PrimaryContext {
    fn drop(&mut self) {
        // SAFETY: it was retained once, and what was made in it is gone with the device. An error leaves nothing to do.
        let _ = unsafe { extra::context::release_primary(self.device) };
    }
}

/// Keeps a context current in this thread; when it is dropped, the thread is as before.
#[must_use]
pub(super) struct Current {
    pushed: Pushed,
    /// The stack of contexts belongs to the thread: the guard stays in it.
    _stays: std::marker::PhantomData<*const ()>,
}

/// Whether the guard has a context to pop.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pushed {
    Yes,
    No,
}

impl Current {
    pub(super) fn enter(context: CUcontext) -> Result<Current, DriverError> {
        let pushed = if extra::context::current()? == context {
            Pushed::No
        } else {
            // SAFETY: a device holds its context, and outlives the guards it gives.
            unsafe { extra::context::push(context)? };
            Pushed::Yes
        };
        Ok(Current {
            pushed,
            _stays: std::marker::PhantomData,
        })
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        if self.pushed == Pushed::Yes {
            // It fails only where somebody has taken the context away already.
            let _ = extra::context::pop();
        }
    }
}

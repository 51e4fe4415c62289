//! Events: marks in a stream, with the time at which the device passed them.

use std::sync::Arc;

use ferroflash_driver::extra;
use ferroflash_driver::sys::CUevent;

use super::device::CudaDevice;
use super::stream::StreamRef;
use crate::error::DriverError;

/// A mark that streams pass.
///
/// The [module](crate::backend::cuda) has an example.
#[derive(Debug)]
pub struct Event {
    handle: CUevent,
    device: Arc<CudaDevice>,
}

// SAFETY: the driver lets every thread use an event; the handle is an address that only the driver follows.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// A new event of a device, not yet recorded.
    pub fn new(device: &Arc<CudaDevice>) -> Result<Event, DriverError> {
        let _current = device.enter()?;
        // SAFETY: the device's context is current; the event is destroyed when this is dropped.
        let handle = unsafe { extra::event::create()? };
        Ok(Event {
            handle,
            device: Arc::clone(device),
        })
    }

    /// Records it after the work that is on a stream now.
    pub fn record<'a>(&self, stream: impl Into<StreamRef<'a>>) -> Result<(), DriverError> {
        let stream = stream.into().usable()?;
        let _current = self.device.enter()?;
        // SAFETY: both are alive; a stream of another context is refused.
        unsafe { extra::event::record(self.handle, stream) }.map_err(DriverError::from)
    }

    /// Makes the later work of a stream wait for it; the host goes on.
    pub fn hold_up<'a>(&self, stream: impl Into<StreamRef<'a>>) -> Result<(), DriverError> {
        let stream = stream.into().usable()?;
        let _current = self.device.enter()?;
        // SAFETY: both are alive.
        unsafe { extra::event::wait(stream, self.handle) }.map_err(DriverError::from)
    }

    /// Waits until the device has passed it.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        let _current = self.device.enter()?;
        // SAFETY: the event is alive.
        unsafe { extra::event::synchronize(self.handle) }.map_err(DriverError::from)
    }

    /// Milliseconds of the device's clock since an earlier event; both have been passed.
    pub fn elapsed_ms(&self, since: &Event) -> Result<f32, DriverError> {
        let _current = self.device.enter()?;
        // SAFETY: both are alive.
        Ok(unsafe { extra::event::elapsed_ms(since.handle, self.handle)? })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_current) = self.device.enter() {
            // SAFETY: the event is ours, and nobody uses it any more. An error can only be that of earlier work.
            let _ = unsafe { extra::event::destroy(self.handle) };
        }
    }
}

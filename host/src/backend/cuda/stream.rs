//! Streams: queues of work that a device does in order, while the host goes on.

use std::marker::PhantomData;
use std::sync::Arc;

use ferroflash_driver::extra;
use ferroflash_driver::sys::CUstream;

use super::device::CudaDevice;
use crate::error::DriverError;

/// A stream of this library: it waits for no other stream, not even the default stream.
///
/// The [module](crate::backend::cuda) has an example.
#[derive(Debug)]
pub struct Stream {
    handle: CUstream,
    device: Arc<CudaDevice>,
}

/// A borrowed stream: one of this library, with the feature `cust` one of that library, or a raw handle.
///
/// The [module](crate::backend::cuda) has an example.
#[derive(Clone, Copy, Debug)]
pub struct StreamRef<'a> {
    handle: CUstream,
    takes: Takes,
    borrow: PhantomData<&'a ()>,
}

/// The work that a stream accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    /// Work of any kind.
    Any,
    /// The calls of its queue, which captures them: the graph holds what they use, and would not hold what a copy uses.
    Calls,
}

// SAFETY: the driver lets every thread use a stream, at once; the handle is an address that only the driver follows.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}
// SAFETY: as above.
unsafe impl Send for StreamRef<'_> {}
// SAFETY: as above.
unsafe impl Sync for StreamRef<'_> {}

impl Stream {
    /// A new stream of a device.
    pub fn new(device: &Arc<CudaDevice>) -> Result<Stream, DriverError> {
        let _current = device.enter()?;
        // SAFETY: the device's context is current; the stream is destroyed when this is dropped.
        let handle = unsafe { extra::stream::create()? };
        Ok(Stream {
            handle,
            device: Arc::clone(device),
        })
    }

    /// The device it belongs to.
    pub fn device(&self) -> &Arc<CudaDevice> {
        &self.device
    }

    /// Waits until its work is done, and reports its errors.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        StreamRef::from(self).synchronize(&self.device)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Ok(_current) = self.device.enter() {
            // SAFETY: the stream is ours, and nobody borrows it any more; its work is still done. An error can only
            // be that of earlier work.
            let _ = unsafe { extra::stream::destroy(self.handle) };
        }
    }
}

impl StreamRef<'static> {
    /// The device's default stream, which waits for the other streams that were created without a flag.
    pub const DEFAULT: StreamRef<'static> = StreamRef {
        handle: std::ptr::null_mut(),
        takes: Takes::Any,
        borrow: PhantomData,
    };
}

impl StreamRef<'_> {
    /// A stream by its handle: one that another library created.
    ///
    /// # Safety
    /// The stream is alive for as long as the result is used. (Work on a stream of another device is refused; it is not unsafe.)
    pub unsafe fn from_raw(handle: CUstream) -> Self {
        StreamRef {
            handle,
            takes: Takes::Any,
            borrow: PhantomData,
        }
    }

    /// The driver's handle.
    pub fn as_raw(self) -> CUstream {
        self.handle
    }

    /// The same stream while its queue captures.
    pub(super) fn captured(self) -> Self {
        let takes = Takes::Calls;
        StreamRef { takes, ..self }
    }

    /// The handle, if the stream accepts more than the calls of its queue.
    pub(super) fn usable(self) -> Result<CUstream, DriverError> {
        match self.takes {
            Takes::Any => Ok(self.handle),
            Takes::Calls => Err(DriverError::QueueCaptured),
        }
    }

    /// As [`StreamRef::usable`], if the stream belongs to the device, whose context is current. Waiting for the device would not wait for work of another stream.
    pub(super) fn usable_of(self, device: &CudaDevice) -> Result<CUstream, DriverError> {
        let handle = self.usable()?;
        // The default stream is that of the current context.
        if handle.is_null() {
            return Ok(handle);
        }
        // SAFETY: the stream is alive while it is borrowed.
        let context = unsafe { extra::stream::context(handle) }?;
        match device.is_of(context) {
            true => Ok(handle),
            false => Err(DriverError::StreamElsewhere),
        }
    }

    /// Waits until the stream's work is done, and reports its errors. `device` is the stream's device.
    pub fn synchronize(self, device: &CudaDevice) -> Result<(), DriverError> {
        let handle = self.usable()?;
        let _current = device.enter()?;
        // SAFETY: the stream is alive while it is borrowed; one of another context is refused.
        unsafe { extra::stream::synchronize(handle) }.map_err(DriverError::from)
    }
}

impl<'a> From<&'a Stream> for StreamRef<'a> {
    fn from(stream: &'a Stream) -> Self {
        StreamRef {
            handle: stream.handle,
            takes: Takes::Any,
            borrow: PhantomData,
        }
    }
}

#[cfg(feature = "cust")]
impl<'a> From<&'a cust::stream::Stream> for StreamRef<'a> {
    fn from(stream: &'a cust::stream::Stream) -> Self {
        StreamRef {
            handle: stream.as_inner().cast(),
            takes: Takes::Any,
            borrow: PhantomData,
        }
    }
}

//! Device memory: buffers, and the views of them that tensors are made of.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::Arc;

use ferroflash_driver::extra;

use super::device::CudaDevice;
use super::stream::StreamRef;
use crate::dtype::{Scalar, ScalarType};
use crate::error::DriverError;
use crate::tensor::{Allocation, DeviceSlice, DeviceSliceMut, Share};

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: u32 = 2;

/// Elements in the memory of a device.
///
/// Work that is enqueued borrows its arguments only until it is enqueued; the device uses them later. So a buffer may be dropped at any time:
/// dropping it waits for all work of the device, then frees the memory. If it is not possible to wait for the device, the memory stays allocated
/// until it is; if a [`Graph`](super::Graph) uses it, until the graph is dropped. The order of a stream, or an [`Event`](super::Event), keeps reads
/// and writes in order: without one, the values read are undefined, and nothing worse happens.
pub struct DeviceBuffer<T: Scalar> {
    memory: Arc<Memory>,
    n_elems: usize,
    elements: PhantomData<T>,
}

/// Bytes in the memory of a device, freed when this is dropped, in its context. Zero bytes allocate nothing.
pub(super) struct Bytes {
    address: u64,
    n_bytes: usize,
}

impl Bytes {
    /// Allocates in the current context.
    fn allocate(n_bytes: usize) -> Result<Bytes, ferroflash_driver::DriverError> {
        let address = match n_bytes {
            0 => 0,
            // SAFETY: freed when this is dropped; where no context is current, the driver says so.
            _ => unsafe { extra::memory::allocate(n_bytes)? },
        };
        Ok(Bytes { address, n_bytes })
    }

    /// How many.
    pub(super) fn n_bytes(&self) -> usize {
        self.n_bytes
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        if self.n_bytes > 0 {
            // SAFETY: allocated with this; the device has been waited for. An error can only be that of earlier work.
            let _ = unsafe { extra::memory::free(self.address) };
        }
    }
}

/// Bytes in the memory of a device, at a multiple of 256.
pub(crate) struct Memory {
    bytes: ManuallyDrop<Bytes>,
    device: Arc<CudaDevice>,
}

impl Memory {
    /// Allocates; the bytes are uninitialised.
    pub(crate) fn new(device: &Arc<CudaDevice>, n_bytes: u64) -> Result<Memory, DriverError> {
        let _current = device.enter()?;
        let out_of_memory = || {
            let free_bytes = device.memory().map_or(0, |memory| memory.free_bytes);
            DriverError::OutOfMemory {
                needed_bytes: n_bytes,
                free_bytes,
            }
        };
        let size = usize::try_from(n_bytes).map_err(|_| out_of_memory())?;
        match Bytes::allocate(size) {
            Ok(bytes) => Ok(Memory {
                bytes: ManuallyDrop::new(bytes),
                device: Arc::clone(device),
            }),
            Err(error) if error.code() == Some(OUT_OF_MEMORY) => Err(out_of_memory()),
            Err(error) => Err(error.into()),
        }
    }

    /// Its address; 0 if it is empty.
    pub(crate) fn address(&self) -> u64 {
        self.bytes.address
    }

    /// Its length.
    pub(crate) fn n_bytes(&self) -> u64 {
        self.bytes.n_bytes as u64
    }
}

impl Allocation for Arc<Memory> {
    fn share(&self) -> Share {
        Arc::clone(self) as Share
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:#x}", self.n_bytes(), self.address())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: taken here and never used again.
        let bytes = unsafe { ManuallyDrop::take(&mut self.bytes) };
        self.device.retire(bytes);
    }
}

impl<T: Scalar> DeviceBuffer<T> {
    /// Allocates; the elements are uninitialised.
    pub fn new(device: &Arc<CudaDevice>, n_elems: usize) -> Result<DeviceBuffer<T>, DriverError> {
        let n_bytes = (n_elems as u64).saturating_mul(size_of::<T>() as u64);
        Ok(DeviceBuffer {
            memory: Arc::new(Memory::new(device, n_bytes)?),
            n_elems,
            elements: PhantomData,
        })
    }

    /// Allocates and copies, in the order of a stream; waits for the copy.
    pub fn from_slice<'a>(
        device: &Arc<CudaDevice>,
        from: &[T],
        stream: impl Into<StreamRef<'a>>,
    ) -> Result<DeviceBuffer<T>, DriverError> {
        let mut buffer = DeviceBuffer::new(device, from.len())?;
        buffer.copy_from(from, stream)?;
        Ok(buffer)
    }

    /// Copies as many elements as it has from host memory, in the order of a stream; waits for the copy.
    pub fn copy_from<'a>(
        &mut self,
        from: &[T],
        stream: impl Into<StreamRef<'a>>,
    ) -> Result<(), DriverError> {
        self.same_length(from.len())?;
        let (device, stream) = (&self.memory.device, stream.into());
        let _current = device.enter()?;
        let on = stream.usable_of(device)?;
        // SAFETY: both ranges have this length; `from` is borrowed until the copy has been waited for.
        unsafe {
            let from = from.as_ptr().cast::<c_void>();
            extra::stream::copy_to_device(self.memory.address(), from, self.n_bytes(), on)?;
        }
        stream.synchronize(device)
    }

    /// Copies a block of host memory repeatedly until all elements are written, the last time only as much as fits, in the order of a stream; waits
    /// for the copies. For more elements than the host has memory for.
    pub fn fill_from<'a>(
        &mut self,
        block: &[T],
        stream: impl Into<StreamRef<'a>>,
    ) -> Result<(), DriverError> {
        if block.is_empty() {
            return self.same_length(0);
        }
        let (device, stream) = (&self.memory.device, stream.into());
        let _current = device.enter()?;
        let on = stream.usable_of(device)?;
        let mut firsts = (0..self.n_elems).step_by(block.len());
        let copied = firsts.try_for_each(|first| {
            let n_bytes = block.len().min(self.n_elems - first) * size_of::<T>();
            let to = self.memory.address() + (first * size_of::<T>()) as u64;
            // SAFETY: both ranges have this length; `block` is borrowed until the copies have been waited for.
            unsafe { extra::stream::copy_to_device(to, block.as_ptr().cast(), n_bytes, on) }
        });
        // Also where one was refused: those before it read the block.
        let waited = stream.synchronize(device);
        copied?;
        waited
    }

    /// Copies all elements to host memory, in the order of a stream; waits for the copy.
    pub fn copy_to<'a>(
        &self,
        to: &mut [T],
        stream: impl Into<StreamRef<'a>>,
    ) -> Result<(), DriverError> {
        self.same_length(to.len())?;
        let (device, stream) = (&self.memory.device, stream.into());
        let _current = device.enter()?;
        let on = stream.usable_of(device)?;
        // SAFETY: both ranges have this length; `to` is borrowed until the copy has been waited for; any bytes are
        // values of a `Scalar`.
        unsafe {
            let to = to.as_mut_ptr().cast::<c_void>();
            extra::stream::copy_to_host(to, self.memory.address(), self.n_bytes(), on)?;
        }
        stream.synchronize(device)
    }

    /// Copies elements over others, from element `to` on, in the order of a stream; waits for the copy.
    ///
    /// # Errors
    /// [`DriverError::CopyWithin`]: the buffer does not have all of them, or they overlap.
    pub fn copy_within<'a>(
        &mut self,
        from: Range<usize>,
        to: usize,
        stream: impl Into<StreamRef<'a>>,
    ) -> Result<(), DriverError> {
        let n_elems = from.len();
        let apart = from.start.abs_diff(to) >= n_elems;
        if !apart || from.end > self.n_elems || to > self.n_elems - n_elems {
            return Err(DriverError::CopyWithin {
                from,
                to,
                n_elems: self.n_elems,
            });
        }
        let (device, stream) = (&self.memory.device, stream.into());
        let _current = device.enter()?;
        let on = stream.usable_of(device)?;
        let at = |elem: usize| self.memory.address() + (elem * size_of::<T>()) as u64;
        // SAFETY: both ranges are the buffer's own and do not overlap; it is borrowed exclusively until the copy has been waited for.
        unsafe {
            extra::stream::copy_on_device(at(to), at(from.start), n_elems * size_of::<T>(), on)?
        };
        stream.synchronize(device)
    }

    /// Makes every element zero, in the order of a stream; returns before it is done.
    pub fn zero<'a>(&mut self, stream: impl Into<StreamRef<'a>>) -> Result<(), DriverError> {
        let device = &self.memory.device;
        let _current = device.enter()?;
        let stream = stream.into().usable_of(device)?;
        // SAFETY: the range is the buffer's own, borrowed exclusively; it is freed only when the device has been waited for, of which the stream
        // is one.
        unsafe { extra::stream::fill(self.memory.address(), 0, self.n_bytes(), stream)? };
        Ok(())
    }

    /// All elements, in the order of a stream; waits for the copy.
    pub fn to_vec<'a>(&self, stream: impl Into<StreamRef<'a>>) -> Result<Vec<T>, DriverError> {
        let mut elements = vec![T::default(); self.n_elems];
        self.copy_to(&mut elements, stream)?;
        Ok(elements)
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.n_elems
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.n_elems == 0
    }

    /// The device it belongs to.
    pub fn device(&self) -> &Arc<CudaDevice> {
        &self.memory.device
    }

    /// To read from: what a [`crate::Tensor`] is made of.
    pub fn slice(&self) -> DeviceSlice<'_> {
        DeviceSlice::new(
            self.memory.address(),
            self.n_elems as u64,
            T::TYPE,
            self.memory.device.ordinal(),
            Some(&self.memory),
        )
    }

    /// To write to: what a [`crate::TensorMut`] is made of.
    pub fn slice_mut(&mut self) -> DeviceSliceMut<'_> {
        DeviceSliceMut::new(
            self.memory.address(),
            self.n_elems as u64,
            T::TYPE,
            self.memory.device.ordinal(),
            Some(&self.memory),
        )
    }

    fn n_bytes(&self) -> usize {
        self.n_elems * size_of::<T>()
    }

    fn same_length(&self, given: usize) -> Result<(), DriverError> {
        if given == self.n_elems {
            Ok(())
        } else {
            Err(DriverError::CopyLength {
                needed: self.n_elems,
                given,
            })
        }
    }
}

impl<T: Scalar> fmt::Debug for DeviceBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBuffer")
            .field("address", &format_args!("{:#x}", self.memory.address()))
            .field("n_elems", &self.n_elems)
            .field("dtype", &T::TYPE)
            .field("device", &self.memory.device.ordinal())
            .finish()
    }
}

/// Elements of device memory, copied to the host; `None` if it has another type, or does not have these elements. Waits for all work of the device,
/// so that enqueued writes are done.
pub(crate) fn elements<T: Scalar>(
    device: &CudaDevice,
    slice: &DeviceSlice,
    range: Range<u64>,
) -> Result<Vec<T>, DriverError> {
    let n_elems = match slice.dtype() == T::TYPE && range.end <= slice.n_elems() {
        true => range.end.saturating_sub(range.start) as usize,
        false => 0,
    };
    let mut elements = vec![T::default(); n_elems];
    device.synchronize()?;
    let _current = device.enter()?;
    let stream = StreamRef::DEFAULT;
    let n_bytes = n_elems * size_of::<T>();
    if n_bytes > 0 {
        let from = slice.address() + range.start * size_of::<T>() as u64;
        // SAFETY: the slice's memory lives while it is borrowed, and has these elements; `elements` too, and is borrowed until the copy has
        // been waited for; any bytes are values of a `Scalar`.
        unsafe {
            let to = elements.as_mut_ptr().cast::<c_void>();
            extra::stream::copy_to_host(to, from, n_bytes, stream.as_raw())?;
        }
    }
    stream.synchronize(device)?;
    Ok(elements)
}

/// Device memory of another library, to read from.
///
/// # Safety
/// `n_elems` elements of `dtype` are at `address` of the device, for `'a` and for as long as work that was enqueued with the result runs or a graph
/// that captured such work is launched; and nothing writes them during that time.
///
/// The [module](crate::backend::cuda) has an example.
pub unsafe fn slice_from_raw<'a>(
    device: &'a CudaDevice,
    address: u64,
    n_elems: u64,
    dtype: impl Into<ScalarType>,
) -> DeviceSlice<'a> {
    DeviceSlice::new(address, n_elems, dtype.into(), device.ordinal(), None)
}

/// Device memory of another library, to write to.
///
/// # Safety
/// As for [`slice_from_raw`]; and nothing else reads or writes the elements during that time.
pub unsafe fn slice_from_raw_mut<'a>(
    device: &'a CudaDevice,
    address: u64,
    n_elems: u64,
    dtype: impl Into<ScalarType>,
) -> DeviceSliceMut<'a> {
    DeviceSliceMut::new(address, n_elems, dtype.into(), device.ordinal(), None)
}

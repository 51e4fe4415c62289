//! CUDA memory: calls are enqueued on candle's stream, in memory of candle's allocator, without copies and without waiting.
//!
//! All work of a call is enqueued on candle's stream, on which candle also allocates and frees, in this order. So memory that is dropped after a
//! call has been enqueued is freed after the call. If other streams are in use, cudarc's events order them: [`Place::Order`] waits for these events
//! when it is made, and records one when it is dropped.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::cuda_backend::CudaStorageSlice;
use candle_core::cuda_backend::cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DeviceRepr, SyncOnDrop,
};
use candle_core::{CudaDevice, CudaStorage, DType, DeviceLocation, Layout, Result, Storage};
use ferroflash::Device;
use ferroflash::backend::cuda::{self, Queue};
use ferroflash::raw::{Addresses, Call, Values};

use super::{Place, refused};

/// The smallest allocation: the driver does not allocate 0 bytes.
const LEAST_BYTES: usize = 256;

/// A device, and candle's stream on it.
pub(crate) struct Cuda {
    candle: CudaDevice,
    stream: Arc<CudaStream>,
    device: Device,
    cuda: Arc<cuda::CudaDevice>,
}

/// A context that candle works in, and ferroflash's device in it. It is kept for the life of the program, as are its kernels, which the driver
/// compiles at their first use.
#[derive(Clone)]
struct Known {
    device: Device,
    cuda: Arc<cuda::CudaDevice>,
    _context: Arc<CudaContext>,
}

/// By the address of the context.
static KNOWN: LazyLock<Mutex<HashMap<usize, Known>>> = LazyLock::new(Mutex::default);

/// The cached or newly found device of a context.
fn known(context: &Arc<CudaContext>) -> std::result::Result<Known, ferroflash::Error> {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    match known.entry(context.cu_ctx().addr()) {
        Entry::Occupied(entry) => Ok(entry.get().clone()),
        Entry::Vacant(entry) => {
            // SAFETY: the context is alive, and what is kept here keeps it for the life of the program.
            let cuda = unsafe { cuda::CudaDevice::from_context(context.cu_ctx().cast())? };
            let new = Known {
                device: Device::from_cuda(Arc::clone(&cuda))?,
                cuda,
                _context: Arc::clone(context),
            };
            Ok(entry.insert(new).clone())
        }
    }
}

/// The slice in a storage, for any element type; an error for types that no call takes.
macro_rules! of_elements {
    ($dtype:expr, $slice:expr, $elements:ident => $value:expr) => {
        match $slice {
            CudaStorageSlice::BF16($elements) => $value,
            CudaStorageSlice::F16($elements) => $value,
            CudaStorageSlice::F32($elements) => $value,
            CudaStorageSlice::F8E4M3($elements) => $value,
            CudaStorageSlice::I32($elements) => $value,
            CudaStorageSlice::U32($elements) => $value,
            _ => {
                let op = "ferroflash";
                return Err(candle_core::Error::UnsupportedDTypeForOp($dtype, op).bt());
            }
        }
    };
}

/// The address of an element. An empty tensor may begin beyond the end.
fn at<T>(address: u64, n_elems: usize, first: usize) -> u64 {
    address + (first.min(n_elems) * size_of::<T>()) as u64
}

fn read<'a, T>(
    elements: &'a CudaSlice<T>,
    first: usize,
    stream: &'a CudaStream,
) -> (u64, SyncOnDrop<'a>) {
    let n_elems = elements.len();
    let (address, order) = elements.device_ptr(stream);
    (at::<T>(address, n_elems, first), order)
}

fn write<'a, T>(
    elements: &'a mut CudaSlice<T>,
    first: usize,
    stream: &'a CudaStream,
) -> (u64, SyncOnDrop<'a>) {
    let n_elems = elements.len();
    let (address, order) = elements.device_ptr_mut(stream);
    (at::<T>(address, n_elems, first), order)
}

impl Cuda {
    fn elements<T: DeviceRepr>(&self, n_elems: usize) -> Result<CudaSlice<T>> {
        // SAFETY: passes write every element of their outputs, rows of no sequence among them, or give an error, and then the
        // memory is dropped; kernels read of the workspace what they have written, and its counters are cleared by the queue. Of an
        // empty tensor nobody reads the one element.
        unsafe { self.candle.alloc::<T>(n_elems.max(1)) }
    }
}

impl Place for Cuda {
    type Storage = CudaStorage;
    type Order<'a> = SyncOnDrop<'a>;

    fn of(storage: &CudaStorage) -> Result<Cuda> {
        let candle = storage.device().clone();
        let stream = candle.cuda_stream();
        let Known { device, cuda, .. } = known(stream.context()).map_err(refused)?;
        Ok(Cuda {
            candle,
            stream,
            device,
            cuda,
        })
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn location(&self) -> DeviceLocation {
        self.candle.location()
    }

    fn find(storage: &Storage) -> Option<&CudaStorage> {
        match storage {
            Storage::Cuda(storage) => Some(storage),
            _ => None,
        }
    }

    fn wrap(storage: CudaStorage) -> Storage {
        Storage::Cuda(storage)
    }

    fn room(&self, dtype: DType, n: usize) -> Result<CudaStorage> {
        let slice = match dtype {
            DType::BF16 => CudaStorageSlice::BF16(self.elements(n)?),
            DType::F16 => CudaStorageSlice::F16(self.elements(n)?),
            DType::I32 => CudaStorageSlice::I32(self.elements(n)?),
            DType::U32 => CudaStorageSlice::U32(self.elements(n)?),
            DType::F8E4M3 => CudaStorageSlice::F8E4M3(self.elements(n)?),
            _ => CudaStorageSlice::F32(self.elements(n)?),
        };
        let device = self.candle.clone();
        Ok(CudaStorage { slice, device })
    }

    fn read<'a>(&'a self, storage: &'a CudaStorage, first: usize) -> Result<(u64, SyncOnDrop<'a>)> {
        Ok(
            of_elements!(storage.dtype(), &storage.slice, elements => read(elements, first, &self.stream)),
        )
    }

    fn write<'a>(
        &'a self,
        storage: &'a mut CudaStorage,
        first: usize,
    ) -> Result<(u64, SyncOnDrop<'a>)> {
        let (dtype, stream) = (storage.dtype(), &self.stream);
        Ok(of_elements!(dtype, &mut storage.slice, elements => write(elements, first, stream)))
    }

    fn copy(storage: &CudaStorage, layout: &Layout) -> Result<CudaStorage> {
        storage.try_clone(layout)
    }

    unsafe fn run(&self, call: &Call, addresses: &Addresses, values: &Values) -> Result<()> {
        let n_bytes = usize::try_from(call.workspace_bytes()).unwrap_or(usize::MAX);
        let mut workspace = self.elements::<u8>(n_bytes.max(LEAST_BYTES))?;
        let n_bytes = workspace.len() as u64;
        let (address, _order) = workspace.device_ptr_mut(&self.stream);
        let stream = self.stream.cu_stream().cast();
        // SAFETY: `self` holds the stream, and longer than the queue lives. The workspace is borrowed exclusively until then, and is
        // freed behind the call.
        let queue = unsafe { Queue::with_workspace(&self.cuda, stream, address, n_bytes) };
        let mut queue = queue.map_err(refused)?;
        // SAFETY: as the caller promises.
        unsafe { call.run(addresses, values, Some(&mut queue)) }.map_err(refused)
    }
}

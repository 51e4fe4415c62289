//! A candle device as ferroflash's, found by its context and kept.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use candle_core::backend::BackendDevice;
use candle_core::cuda_backend::cudarc::driver::{CudaContext, CudaStream};
use candle_core::{CudaDevice, DeviceLocation, Result};
use ferroflash::Device;
use ferroflash::backend::cuda;

use super::raw;
use crate::error::Error;

/// Where a call runs: a device, and candle's stream of it.
pub(super) struct CallContext {
    device: Device,
    cuda: Arc<cuda::CudaDevice>,
    stream: Arc<CudaStream>,
    location: DeviceLocation,
}

/// A context that candle works in, and ferroflash's device in it. It is kept for the life of the program, and so its kernels are,
/// which the driver compiles when they are first wanted.
#[derive(Clone)]
struct Known {
    device: Device,
    cuda: Arc<cuda::CudaDevice>,
    _context: Arc<CudaContext>,
}

/// By the address of the context.
static KNOWN: LazyLock<Mutex<HashMap<usize, Known>>> = LazyLock::new(Mutex::default);

impl CallContext {
    pub(super) fn of(candle: &CudaDevice) -> Result<CallContext> {
        let stream = candle.cuda_stream();
        let Known { device, cuda, .. } = known(stream.context())?;
        Ok(CallContext {
            device,
            cuda,
            stream,
            location: candle.location(),
        })
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    pub(super) fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    pub(super) fn location(&self) -> DeviceLocation {
        self.location
    }

    pub(super) fn cuda(&self) -> &Arc<cuda::CudaDevice> {
        &self.cuda
    }
}

/// What a context has been found to be before, or is now.
fn known(context: &Arc<CudaContext>) -> std::result::Result<Known, Error> {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    match known.entry(context.cu_ctx().addr()) {
        Entry::Occupied(entry) => Ok(entry.get().clone()),
        Entry::Vacant(entry) => {
            let cuda = raw::device(context)?;
            let device = Device::from_cuda(Arc::clone(&cuda))?;
            let new = Known {
                device,
                cuda,
                _context: Arc::clone(context),
            };
            Ok(entry.insert(new).clone())
        }
    }
}

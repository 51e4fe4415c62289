//! Memory of Burn's CUDA devices: f16 and bf16, in place, on ferroflash's kernels.
//!
//! CubeCL, which runs Burn's CUDA work, exposes the address of a tensor's memory, but not its stream. So a call waits twice: for CubeCL's work that
//! computes the inputs, and for ferroflash's, which runs on its own stream. MISSING.md says what Burn would have to expose for calls that do not
//! wait. Both libraries work in the device's primary context, so the addresses of one are valid in the other.

use std::any::Any;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, LazyLock, Mutex};

use burn::backend::TensorMetadata;
use burn::tensor::{DType, Shape};
use burn_cubecl::cubecl::cuda::CudaRuntime;
use burn_cubecl::cubecl::future;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeBackend, CubeDevice};
use cubecl_runtime::runtime::Runtime;
use ferroflash::arguments::Argument;
use ferroflash::error::PlanError;
use ferroflash::{Device, Layout, Queue};

use super::{Lent, Memory, Place, lock};
use crate::check;
use crate::error::Error;

/// ferroflash's kernels read 16 bytes at a time.
const ALIGNMENT_BYTES: u64 = 16;

/// The devices that calls have used, by ordinal, each with its own queue.
static PLACES: LazyLock<Mutex<HashMap<u32, Arc<Place>>>> = LazyLock::new(Mutex::default);

/// Whether a device of CubeCL is a CUDA device.
pub(crate) fn is_cuda(device: &CubeDevice) -> bool {
    ordinal(device).is_some()
}

/// The index of a CUDA device in the driver's list.
fn ordinal(device: &CubeDevice) -> Option<u32> {
    match device {
        CubeDevice::Cuda(device) => u32::try_from(device.index).ok(),
        _ => None,
    }
}

/// The CUDA device with this ordinal, opened when it is first used.
fn place(ordinal: u32) -> Result<Arc<Place>, Error> {
    match lock(&PLACES).entry(ordinal) {
        Entry::Occupied(entry) => Ok(Arc::clone(entry.get())),
        Entry::Vacant(entry) => {
            let device = Device::cuda(ordinal)?;
            let backend = device.backend();
            let not_asynchronous =
                || ferroflash::Error::from(PlanError::NotAsynchronous { backend });
            let gpu = device.as_cuda().ok_or_else(not_asynchronous)?;
            let queue = Queue::new(gpu).map_err(ferroflash::Error::from)?;
            let queue = Some(Mutex::new(queue));
            Ok(Arc::clone(entry.insert(Arc::new(Place { device, queue }))))
        }
    }
}

/// Keeps the memory of a tensor allocated and in place: the tensor, and CubeCL's own handle.
pub(crate) struct Hold {
    tensor: CubeTensor,
    _resource: Box<dyn Any>,
}

impl Memory for CubeBackend {
    const DTYPES: &'static [DType] = check::DTYPES;
    type Hold<'a> = Hold;
    type Room = CubeTensor;

    fn place(inputs: [&CubeTensor; 3]) -> Result<Arc<Place>, Error> {
        let device = inputs[0].device();
        let all = [Argument::Q, Argument::K, Argument::V];
        for (argument, input) in all.into_iter().zip(inputs) {
            let given = input.device();
            if !is_cuda(&given) {
                return Err(Error::Backend {
                    argument,
                    given: format!("{given:?}"),
                    allowed: &["Cuda"],
                });
            }
            if given != device {
                return Err(Error::MixedDevices {
                    argument,
                    given: format!("{given:?}"),
                    needed: format!("{device:?}"),
                });
            }
        }
        place(ordinal(&device).unwrap_or_default())
    }

    /// A copy if the last dimension is not contiguous, or a row does not start at a multiple of 16 bytes.
    fn read<'a>(
        argument: Argument,
        tensor: &'a CubeTensor,
    ) -> Result<(Lent<'a, CubeBackend>, Layout), Error> {
        let tensor = match rows_are_aligned(tensor) {
            true => tensor.clone(),
            false => into_contiguous(tensor.clone()),
        };
        let (mut address, mut hold) = lend(argument, tensor)?;
        if !address.is_multiple_of(ALIGNMENT_BYTES) {
            (address, hold) = lend(argument, hold.tensor.copy())?;
        }
        let layout = layout(argument, &hold.tensor)?;
        Ok(((address, hold), layout))
    }

    fn read_gapless<'a>(
        argument: Argument,
        tensor: &'a CubeTensor,
    ) -> Result<Lent<'a, CubeBackend>, Error> {
        lend(argument, into_contiguous(tensor.clone()))
    }

    fn room(beside: &CubeTensor, shape: Shape, dtype: DType) -> CubeTensor {
        let n_bytes = shape.num_elements() * dtype.size();
        let handle = beside.client.empty(n_bytes);
        let (client, device) = (beside.client.clone(), beside.device.clone());
        CubeTensor::new_contiguous(client, device, shape, handle, dtype)
    }

    fn write<'a>(
        argument: Argument,
        room: &'a mut CubeTensor,
    ) -> Result<Lent<'a, CubeBackend>, Error> {
        lend(argument, room.clone())
    }

    fn tensor(_beside: &CubeTensor, room: CubeTensor) -> CubeTensor {
        room
    }

    /// Waits for CubeCL's work on the stream that the memory was lent to. Lending it has made that stream wait for the work
    /// that wrote it.
    fn wait(hold: &Hold) -> Result<(), Error> {
        future::block_on(hold.tensor.client.sync()).map_err(|error| Error::Synchronize {
            detail: error.to_string(),
        })
    }
}

/// The address of a tensor, which CubeCL does not write as long as it has a second owner.
fn lend(argument: Argument, tensor: CubeTensor) -> Result<(u64, Hold), Error> {
    let handle = tensor.handle.clone();
    let resource = tensor
        .client
        .get_resource::<<CudaRuntime as Runtime>::Server>(handle)
        .map_err(|error| Error::Memory {
            argument,
            detail: error.to_string(),
        })?;
    let address = resource.resource().ptr;
    let hold = Hold {
        tensor,
        _resource: Box::new(resource),
    };
    Ok((address, hold))
}

/// Shape and strides, with ferroflash's order of dimensions.
fn layout(argument: Argument, tensor: &CubeTensor) -> Result<Layout, Error> {
    let [batch, heads, seqlen, head_dim] = check::shape(argument, tensor)?;
    let strides = tensor.meta.strides();
    let &[batch_stride, head_stride, row_stride, _] = strides.as_ref() else {
        return Err(Error::Rank {
            argument,
            given: strides.len(),
            needed: 4,
        });
    };
    let shape = [batch, seqlen, heads, head_dim];
    Ok(Layout::strided(
        shape,
        [batch_stride, row_stride, head_stride],
    ))
}

/// Whether ferroflash can read all of a tensor's rows in place, if it can read the first.
fn rows_are_aligned(tensor: &CubeTensor) -> bool {
    let (shape, strides) = (tensor.meta.shape(), tensor.meta.strides());
    let elems = (ALIGNMENT_BYTES as usize) / tensor.dtype.size();
    let Some((last, outer)) = strides.split_last() else {
        return false;
    };
    // A tensor that Burn stores in tiles has other dimensions in memory than its shape says.
    let is_plain = tensor.rank() == shape.len();
    is_plain
        && *last == 1
        && shape
            .iter()
            .zip(outer)
            .all(|(&size, stride)| size <= 1 || stride.is_multiple_of(elems))
}

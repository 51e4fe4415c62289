//! The calls that wait, on a GPU: tensors of the host are copied there and the results back; tensors of the device's
//! memory are used where they lie.
#![forbid(unsafe_code)]

use std::sync::Arc;

use half::{bf16, f16};

use super::cuda::launch::Launches;
use super::cuda::memory::Memory as DeviceMemory;
use super::cuda::{CudaDevice, DeviceBuffer, Stream};
use crate::error::{DriverError, Error};
use crate::plan::workspace::{COUNTER_BYTES, Piece};
use crate::plan::{Addresses, Plan};
use crate::tensor::{
    Gradients, HostData, HostDataMut, Lse, LseMut, Memory, MemoryMut, OutputGradients, Saved,
    Tensor, TensorMut,
};

/// Computes o and lse, and the weights where the plan gives them; waits for the result.
pub(crate) fn forward(
    device: &Arc<CudaDevice>,
    plan: Plan,
    inputs: [&Tensor; 3],
    o: &mut TensorMut,
    lse: &mut LseMut,
    weights: Option<&mut TensorMut>,
) -> Result<(), Error> {
    let mut call = Call::new(device, plan)?;
    let [q, k, v] = inputs;
    let staged_o = call.output(o)?;
    let staged_lse = call.output_lse(lse)?;
    let staged_weights = match &weights {
        Some(weights) => Some(call.output(weights)?),
        None => None,
    };
    let at = Addresses {
        q: call.input(q)?,
        k: call.input(k)?,
        v: call.input(v)?,
        o: staged_o.address(),
        lse: staged_lse.address(),
        weights: staged_weights.as_ref().map_or(0, Staged::address),
        ..Addresses::default()
    };
    call.run(at)?;
    staged_o.copy_back(o, &call.stream)?;
    staged_lse.copy_back_lse(lse, &call.stream)?;
    match (staged_weights, weights) {
        (Some(staged), Some(weights)) => Ok(staged.copy_back(weights, &call.stream)?),
        _ => Ok(()),
    }
}

/// Computes the gradients; waits for them.
pub(crate) fn backward(
    device: &Arc<CudaDevice>,
    plan: Plan,
    saved: &Saved,
    of_output: &OutputGradients,
    gradients: &mut Gradients,
) -> Result<(), Error> {
    let mut call = Call::new(device, plan)?;
    let d_q = call.output(&gradients.d_q)?;
    let d_k = call.output(&gradients.d_k)?;
    let d_v = call.output(&gradients.d_v)?;
    let at = Addresses {
        q: call.input(&saved.q)?,
        k: call.input(&saved.k)?,
        v: call.input(&saved.v)?,
        o: call.input(&saved.o)?,
        lse: call.input_lse(&saved.lse)?,
        d_o: call.input(&of_output.d_o)?,
        d_lse: match &of_output.d_lse {
            Some(d_lse) => call.input_lse(d_lse)?,
            None => 0,
        },
        d_q: d_q.address(),
        d_k: d_k.address(),
        d_v: d_v.address(),
        ..Addresses::default()
    };
    call.run(at)?;
    d_q.copy_back(&mut gradients.d_q, &call.stream)?;
    d_k.copy_back(&mut gradients.d_k, &call.stream)?;
    d_v.copy_back(&mut gradients.d_v, &call.stream)?;
    Ok(())
}

/// One call: its kernels, its stream, and the copies of its inputs.
struct Call {
    launches: Launches,
    stream: Stream,
    workspace: DeviceMemory,
    inputs: Vec<Staged>,
}

impl Call {
    fn new(device: &Arc<CudaDevice>, plan: Plan) -> Result<Call, DriverError> {
        // The stream of this call waits for no other: whatever the caller has enqueued to make the inputs is waited
        // for here.
        device.synchronize()?;
        let mut workspace = DeviceMemory::new(device, plan.workspace.n_bytes())?;
        let stream = Stream::new(device)?;
        if plan.workspace.pieces().iter().any(Piece::is_counter) {
            workspace.clear_first(COUNTER_BYTES, (&stream).into())?;
        }
        let launches = Launches::new(device, plan)?;
        Ok(Call {
            launches,
            stream,
            workspace,
            inputs: Vec::new(),
        })
    }

    fn input(&mut self, tensor: &Tensor) -> Result<u64, Error> {
        let n_elems = tensor.layout().extent_elems()?;
        match tensor.memory() {
            Memory::Device(slice) => Ok(slice.address()),
            Memory::Host(HostData::Bf16(data)) => {
                self.hold(Staged::Bf16(self.upload(&data[..n_elems])?))
            }
            Memory::Host(HostData::F16(data)) => {
                self.hold(Staged::F16(self.upload(&data[..n_elems])?))
            }
            Memory::Host(HostData::F32(data)) => {
                self.hold(Staged::F32(self.upload(&data[..n_elems])?))
            }
        }
    }

    fn input_lse(&mut self, lse: &Lse) -> Result<u64, Error> {
        match lse {
            Lse::Device(slice) => Ok(slice.address()),
            Lse::Host(data) => self.hold(Staged::F32(self.upload(data)?)),
        }
    }

    /// What lies between the rows of a strided output is copied there and back unchanged.
    fn output(&self, tensor: &TensorMut) -> Result<Staged, Error> {
        let n_elems = tensor.layout().extent_elems()?;
        Ok(match tensor.memory() {
            MemoryMut::Device(slice) => Staged::InPlace(slice.address()),
            MemoryMut::Host(HostDataMut::Bf16(data)) => {
                Staged::Bf16(self.upload(&data[..n_elems])?)
            }
            MemoryMut::Host(HostDataMut::F16(data)) => Staged::F16(self.upload(&data[..n_elems])?),
            MemoryMut::Host(HostDataMut::F32(data)) => Staged::F32(self.upload(&data[..n_elems])?),
        })
    }

    fn output_lse(&self, lse: &LseMut) -> Result<Staged, Error> {
        Ok(match lse {
            LseMut::Device(slice) => Staged::InPlace(slice.address()),
            LseMut::Host(data) => {
                Staged::F32(DeviceBuffer::new(self.launches.device(), data.len())?)
            }
        })
    }

    fn upload<T: crate::Element>(&self, data: &[T]) -> Result<DeviceBuffer<T>, DriverError> {
        DeviceBuffer::from_slice(self.launches.device(), data, &self.stream)
    }

    fn hold(&mut self, staged: Staged) -> Result<u64, Error> {
        let address = staged.address();
        self.inputs.push(staged);
        Ok(address)
    }

    fn run(&self, at: Addresses) -> Result<(), DriverError> {
        let at = Addresses {
            workspace: self.workspace.address(),
            ..at
        };
        self.launches.enqueue(&at, (&self.stream).into())?;
        self.stream.synchronize()
    }
}

/// A tensor on the device: a copy, or the caller's own memory.
enum Staged {
    InPlace(u64),
    Bf16(DeviceBuffer<bf16>),
    F16(DeviceBuffer<f16>),
    F32(DeviceBuffer<f32>),
}

impl Staged {
    fn address(&self) -> u64 {
        match self {
            Staged::InPlace(address) => *address,
            Staged::Bf16(buffer) => buffer.slice().address(),
            Staged::F16(buffer) => buffer.slice().address(),
            Staged::F32(buffer) => buffer.slice().address(),
        }
    }

    fn copy_back(&self, tensor: &mut TensorMut, stream: &Stream) -> Result<(), DriverError> {
        match (self, tensor.memory_mut()) {
            (Staged::Bf16(buffer), MemoryMut::Host(HostDataMut::Bf16(to))) => {
                download(buffer, to, stream)
            }
            (Staged::F16(buffer), MemoryMut::Host(HostDataMut::F16(to))) => {
                download(buffer, to, stream)
            }
            (Staged::F32(buffer), MemoryMut::Host(HostDataMut::F32(to))) => {
                download(buffer, to, stream)
            }
            _ => Ok(()),
        }
    }

    fn copy_back_lse(&self, lse: &mut LseMut, stream: &Stream) -> Result<(), DriverError> {
        match (self, lse) {
            (Staged::F32(buffer), LseMut::Host(to)) => download(buffer, to, stream),
            _ => Ok(()),
        }
    }
}

/// Copies back what the layout reaches over; the host's slice may go on behind it.
fn download<T: crate::Element>(
    buffer: &DeviceBuffer<T>,
    to: &mut [T],
    stream: &Stream,
) -> Result<(), DriverError> {
    buffer.copy_to(&mut to[..buffer.len()], stream)
}

//! The calls that wait, on a GPU: arguments of the host are copied there and the results back; those in the device's memory are
//! used where they lie.
#![forbid(unsafe_code)]

use std::sync::Arc;

use float8::F8E4M3;
use half::{bf16, f16};

use super::cuda::launch::Launches;
use super::cuda::{CudaDevice, DeviceBuffer, Queue, StreamRef};
use crate::arguments::{ByArgument, Lent, Operand, Operands};
use crate::dtype::{HostData, HostDataMut, Scalar};
use crate::error::{DriverError, Error};
use crate::plan::Planned;
use crate::tensor::{Memory, MemoryMut};

/// Computes what the plan's pass writes; waits for the results.
pub(crate) fn run<P: Planned>(
    device: &Arc<CudaDevice>,
    plan: P,
    operands: &mut Operands,
) -> Result<(), Error> {
    // The queue of this call waits for no other: whatever the caller has enqueued to make the inputs is waited
    // for here.
    device.synchronize()?;
    let mut queue = Queue::new(device)?;
    queue.grow(plan.workspace_layout().n_bytes())?;
    let launches = Launches::new(device, plan)?;
    let mut staged = ByArgument::<Option<Staged>>::default();
    for (argument, operand) in operands.iter_mut() {
        staged[argument] = Some(Staged::new(device, operand, queue.stream())?);
    }
    let address = |argument| staged[argument].as_ref().map_or(0, Staged::address);
    queue.enqueue(&launches, operands, address)?;
    queue.synchronize()?;
    for (argument, operand) in operands.iter_mut() {
        if let (Some(staged), Lent::Write(memory)) = (&staged[argument], operand.lend()) {
            staged.copy_back(memory, queue.stream())?;
        }
    }
    Ok(())
}

/// An argument on the device: a copy, or the caller's own memory.
enum Staged {
    InPlace(u64),
    Bf16(DeviceBuffer<bf16>),
    F16(DeviceBuffer<f16>),
    F32(DeviceBuffer<f32>),
    E4m3(DeviceBuffer<F8E4M3>),
    I32(DeviceBuffer<i32>),
    U8(DeviceBuffer<u8>),
    U64(DeviceBuffer<u64>),
}

impl Staged {
    /// Copies what the layout reaches over, if it lies on the host. What lies between the rows of a strided output is copied there
    /// and back unchanged.
    fn new(
        device: &Arc<CudaDevice>,
        operand: &mut Operand,
        stream: StreamRef,
    ) -> Result<Staged, Error> {
        fn upload<T: Scalar>(
            device: &Arc<CudaDevice>,
            data: &[T],
            stream: StreamRef,
        ) -> Result<DeviceBuffer<T>, DriverError> {
            DeviceBuffer::from_slice(device, data, stream)
        }
        let n = operand.describe().extent_elems()?;
        Ok(match operand.lend() {
            Lent::Read(Memory::Device(slice)) => Staged::InPlace(slice.address()),
            Lent::Read(Memory::Host(data)) => match data {
                HostData::Bf16(data) => Staged::Bf16(upload(device, &data[..n], stream)?),
                HostData::F16(data) => Staged::F16(upload(device, &data[..n], stream)?),
                HostData::F32(data) => Staged::F32(upload(device, &data[..n], stream)?),
                HostData::E4m3(data) => Staged::E4m3(upload(device, &data[..n], stream)?),
                HostData::I32(data) => Staged::I32(upload(device, &data[..n], stream)?),
                HostData::U8(data) => Staged::U8(upload(device, &data[..n], stream)?),
                HostData::U64(data) => Staged::U64(upload(device, &data[..n], stream)?),
            },
            Lent::Write(MemoryMut::Device(slice)) => Staged::InPlace(slice.address()),
            Lent::Write(MemoryMut::Host(data)) => match data {
                HostDataMut::Bf16(data) => Staged::Bf16(upload(device, &data[..n], stream)?),
                HostDataMut::F16(data) => Staged::F16(upload(device, &data[..n], stream)?),
                HostDataMut::F32(data) => Staged::F32(upload(device, &data[..n], stream)?),
                HostDataMut::E4m3(data) => Staged::E4m3(upload(device, &data[..n], stream)?),
                HostDataMut::I32(data) => Staged::I32(upload(device, &data[..n], stream)?),
                HostDataMut::U8(data) => Staged::U8(upload(device, &data[..n], stream)?),
                HostDataMut::U64(data) => Staged::U64(upload(device, &data[..n], stream)?),
            },
        })
    }

    fn address(&self) -> u64 {
        match self {
            Staged::InPlace(address) => *address,
            Staged::Bf16(buffer) => buffer.slice().address(),
            Staged::F16(buffer) => buffer.slice().address(),
            Staged::F32(buffer) => buffer.slice().address(),
            Staged::E4m3(buffer) => buffer.slice().address(),
            Staged::I32(buffer) => buffer.slice().address(),
            Staged::U8(buffer) => buffer.slice().address(),
            Staged::U64(buffer) => buffer.slice().address(),
        }
    }

    fn copy_back(&self, to: &mut MemoryMut, stream: StreamRef) -> Result<(), DriverError> {
        let MemoryMut::Host(to) = to else {
            return Ok(());
        };
        match (self, to) {
            (Staged::Bf16(buffer), HostDataMut::Bf16(to)) => download(buffer, to, stream),
            (Staged::F16(buffer), HostDataMut::F16(to)) => download(buffer, to, stream),
            (Staged::F32(buffer), HostDataMut::F32(to)) => download(buffer, to, stream),
            (Staged::E4m3(buffer), HostDataMut::E4m3(to)) => download(buffer, to, stream),
            (Staged::I32(buffer), HostDataMut::I32(to)) => download(buffer, to, stream),
            (Staged::U8(buffer), HostDataMut::U8(to)) => download(buffer, to, stream),
            (Staged::U64(buffer), HostDataMut::U64(to)) => download(buffer, to, stream),
            _ => Ok(()),
        }
    }
}

/// Copies back what the layout reaches over; the host's slice may go on behind it.
fn download<T: Scalar>(
    buffer: &DeviceBuffer<T>,
    to: &mut [T],
    stream: StreamRef,
) -> Result<(), DriverError> {
    buffer.copy_to(&mut to[..buffer.len()], stream)
}

//! The calls that wait, on a GPU: arguments on the host are copied there and the results back; those in device memory are used in place.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::cuda::launch::Launches;
use super::cuda::{CudaDevice, DeviceBuffer, Queue, StreamRef};
use crate::arguments::{ByArgument, Lent, Operand, Operands};
use crate::dtype::{HostData, HostDataMut, Scalar, of_any_type};
use crate::error::{DriverError, Error};
use crate::plan::Planned;
use crate::tensor::{Memory, MemoryMut};

/// Runs the plan's pass, and waits for the results.
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

/// An argument on the device.
enum Staged {
    /// The caller's own memory.
    InPlace(u64),
    Copy(Box<dyn Copied>),
}

/// A copy of an argument of any element type.
trait Copied {
    fn address(&self) -> u64;

    /// Copies back the elements that the layout covers; the host's slice may be longer.
    fn copy_back(&self, to: &mut HostDataMut, stream: StreamRef) -> Result<(), DriverError>;
}

impl<T: Scalar> Copied for DeviceBuffer<T> {
    fn address(&self) -> u64 {
        self.slice().address()
    }

    fn copy_back(&self, to: &mut HostDataMut, stream: StreamRef) -> Result<(), DriverError> {
        match T::unwrap_mut(to) {
            Some(to) => self.copy_to(&mut to[..self.len()], stream),
            None => Ok(()),
        }
    }
}

impl Staged {
    /// Copies the elements that the layout covers, if it is on the host. The elements between the rows of a strided output are copied there and back unchanged.
    fn new(
        device: &Arc<CudaDevice>,
        operand: &mut Operand,
        stream: StreamRef,
    ) -> Result<Staged, Error> {
        fn copy<T: Scalar>(
            device: &Arc<CudaDevice>,
            data: &[T],
            stream: StreamRef,
        ) -> Result<Box<dyn Copied>, DriverError> {
            Ok(Box::new(DeviceBuffer::from_slice(device, data, stream)?))
        }
        let n = operand.describe().extent_elems()?;
        Ok(match operand.lend() {
            Lent::Read(Memory::Device(slice)) => Staged::InPlace(slice.address()),
            Lent::Write(MemoryMut::Device(slice)) => Staged::InPlace(slice.address()),
            Lent::Read(Memory::Host(data)) => Staged::Copy(
                of_any_type!(HostData, data, data => copy(device, &data[..n], stream)?),
            ),
            Lent::Write(MemoryMut::Host(data)) => Staged::Copy(
                of_any_type!(HostDataMut, data, data => copy(device, &data[..n], stream)?),
            ),
        })
    }

    fn address(&self) -> u64 {
        match self {
            Staged::InPlace(address) => *address,
            Staged::Copy(copy) => copy.address(),
        }
    }

    fn copy_back(&self, to: &mut MemoryMut, stream: StreamRef) -> Result<(), DriverError> {
        match (self, to) {
            (Staged::Copy(copy), MemoryMut::Host(to)) => copy.copy_back(to, stream),
            _ => Ok(()),
        }
    }
}

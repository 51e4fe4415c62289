//! Elements of GPU memory, copied to the host: for what the CPU computes from a GPU's tensors.
#![forbid(unsafe_code)]

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

use super::cuda::CudaDevice;
use super::cuda::memory::elements;
use crate::dtype::{Scalar, of_named_type};
use crate::error::{Error, ProblemError};
use crate::tensor::{DeviceSlice, Location, Memory, Vector};

/// The most unwanted elements that one copy of rows includes: 4 MiB of f32.
const CHUNK_ELEMS: usize = 1 << 20;

/// Copies, and counts the bytes.
pub(crate) struct Fetch<'d> {
    device: Option<&'d Arc<CudaDevice>>,
    copied_bytes: Cell<u64>,
}

/// Equidistant rows of a tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// Element that the first begins with.
    pub(crate) first: usize,
    /// Elements from one to the next.
    pub(crate) stride: usize,
    pub(crate) n_rows: usize,
    pub(crate) n_columns: usize,
}

/// A vector on the host.
pub(crate) struct Fetched(Box<dyn AsVector>);

/// Elements of some type.
trait AsVector {
    fn as_vector(&self) -> Vector<'_>;
}

impl<T: Scalar> AsVector for Vec<T> {
    fn as_vector(&self) -> Vector<'_> {
        self.into()
    }
}

impl Fetched {
    pub(crate) fn vector(&self) -> Vector<'_> {
        self.0.as_vector()
    }
}

impl<'d> Fetch<'d> {
    /// From this device, if there is one.
    pub(crate) fn new(device: Option<&'d Arc<CudaDevice>>) -> Fetch<'d> {
        Fetch {
            device,
            copied_bytes: Cell::new(0),
        }
    }

    /// How much it has copied so far.
    pub(crate) fn copied_bytes(&self) -> u64 {
        self.copied_bytes.get()
    }

    /// A vector on the device; `None` if it is on the host already.
    pub(crate) fn vector(&self, vector: &Vector) -> Result<Option<Fetched>, Error> {
        let Memory::Device(slice) = vector.memory() else {
            return Ok(None);
        };
        let all = 0..slice.n_elems() as usize;
        Ok(Some(Fetched(
            of_named_type!(slice.dtype(), T => Box::new(self.elements::<T>(slice, all)?)),
        )))
    }

    /// Appends rows, without the memory between them. Sparse rows are copied together with that memory, some at a time.
    pub(crate) fn rows<T: Scalar>(
        &self,
        from: &DeviceSlice,
        run: Run,
        to: &mut Vec<T>,
    ) -> Result<(), Error> {
        let Run {
            first,
            stride,
            n_rows,
            n_columns,
        } = run;
        let at_once = CHUNK_ELEMS.checked_div(stride).unwrap_or(n_rows).max(1);
        for row in (0..n_rows).step_by(at_once) {
            let n = at_once.min(n_rows - row);
            let start = first + row * stride;
            let end = start + (n - 1) * stride + n_columns;
            let elements = self.elements::<T>(from, start..end)?;
            (0..n).for_each(|row| to.extend_from_slice(&elements[row * stride..][..n_columns]));
        }
        Ok(())
    }

    /// Elements that are there, by what validation has seen of the slice.
    fn elements<T: Scalar>(
        &self,
        from: &DeviceSlice,
        range: Range<usize>,
    ) -> Result<Vec<T>, Error> {
        let given = Location::Cuda(from.ordinal());
        let device = self.device.ok_or(ProblemError::OtherDevice {
            given,
            needed: Location::Host,
        })?;
        let elements = elements::<T>(device, from, range.start as u64..range.end as u64)?;
        let n_bytes = (range.len() * size_of::<T>()) as u64;
        self.copied_bytes.set(self.copied_bytes.get() + n_bytes);
        Ok(elements)
    }
}

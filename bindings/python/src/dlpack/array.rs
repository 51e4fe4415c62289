//! Our memory with a shape and a type, which other libraries import by `__dlpack__`.

use std::ffi::c_void;
use std::sync::Arc;

use dlpark::ffi::{DLDataType, DLDevice, DLManagedTensor, DLManagedTensorVersioned};
use dlpark::metadata::Dynamic;
use dlpark::python::ExportRequest;
use dlpark::{DlpackFlags, Managed, ManagedTensorBase};
use ferroflash::backend::cuda::{CudaDevice, DeviceBuffer};
use ferroflash::error::{DriverError, ProblemError};
use pyo3::exceptions::{PyAttributeError, PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::dtype;
use crate::error::to_py;

/// XLA imports host memory without a copy if it begins at a multiple of this.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Reference-counted memory.
enum Memory {
    /// Readers and writers use the address.
    Host {
        address: u64,
        lines: Vec<Line>,
    },
    Cuda(Buffer),
}

/// Device memory. Freeing it waits for the device, whose work may wait for a thread of Python; so Python's lock is released meanwhile.
struct Buffer {
    bytes: Option<DeviceBuffer<u8>>,
    address: u64,
    ordinal: u32,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // `None` where Python is at its end and nobody waits for it: the bytes are dropped below.
        Python::try_attach(|py| py.detach(|| drop(self.bytes.take())));
    }
}

impl Memory {
    fn host(mut lines: Vec<Line>) -> Memory {
        let address = lines.as_mut_ptr().expose_provenance() as u64;
        Memory::Host { address, lines }
    }

    fn zeros(n_bytes: usize) -> Memory {
        Memory::host(vec![Line([0; 64]); n_bytes.div_ceil(size_of::<Line>())])
    }

    fn truths(given: &[bool]) -> Memory {
        let line = |truths: &[bool]| {
            let mut line = Line([0; 64]);
            for (byte, &truth) in line.0.iter_mut().zip(truths) {
                *byte = u8::from(truth);
            }
            line
        };
        Memory::host(given.chunks(size_of::<Line>()).map(line).collect())
    }

    /// The bytes are uninitialised.
    fn cuda(ordinal: u32, n_bytes: usize) -> Result<Memory, DriverError> {
        let bytes = DeviceBuffer::new(&CudaDevice::open(ordinal)?, n_bytes)?;
        Ok(Memory::Cuda(Buffer {
            address: bytes.slice().address(),
            bytes: Some(bytes),
            ordinal,
        }))
    }

    fn address(&self) -> u64 {
        match self {
            Memory::Host { address, .. } => *address,
            Memory::Cuda(buffer) => buffer.address,
        }
    }

    fn device(&self) -> DLDevice {
        match self {
            Memory::Host { .. } => DLDevice::CPU,
            Memory::Cuda(buffer) => DLDevice::cuda(buffer.ordinal as i32),
        }
    }

    /// A copy with the same bytes.
    fn copied(&self) -> PyResult<Memory> {
        match self {
            Memory::Host { lines, .. } => Ok(Memory::host(lines.clone())),
            Memory::Cuda(_) => Err(PyBufferError::new_err(
                "copy is True; allowed for an array of a GPU: None or False",
            )),
        }
    }
}

/// A contiguous array that other libraries import without a copy, by `numpy.from_dlpack` and the like, any number of times. All of them share the
/// memory, which lives until the last one is gone.
#[pyclass(frozen, module = "ferroflash._native")]
pub(crate) struct Array {
    memory: Arc<Memory>,
    dtype: DLDataType,
    shape: Vec<usize>,
}

impl Array {
    /// Truth values on the host, of this shape.
    pub(crate) fn of_truths(given: &[bool], shape: Vec<usize>) -> Array {
        Array {
            memory: Arc::new(Memory::truths(given)),
            dtype: DLDataType::BOOL,
            shape,
        }
    }
}

#[pymethods]
impl Array {
    /// Zeros on the host, or uninitialised memory of the CUDA device of this ordinal.
    #[new]
    #[pyo3(signature = (dtype, shape, ordinal=None))]
    fn new(
        py: Python<'_>,
        dtype: &str,
        shape: Vec<usize>,
        ordinal: Option<u32>,
    ) -> PyResult<Array> {
        let dtype = dtype::named(dtype)?;
        let sizes = [dtype.element_size()].into_iter().chain(shape.clone());
        let n_bytes = match shape.contains(&0) {
            true => Some(0),
            false => sizes.into_iter().try_fold(1usize, usize::checked_mul),
        };
        let what = "the bytes of an array";
        let n_bytes = n_bytes
            .filter(|&n_bytes| isize::try_from(n_bytes).is_ok())
            .ok_or_else(|| to_py(ProblemError::SizeOverflow { what }))?;
        let memory = match ordinal {
            None => Memory::zeros(n_bytes),
            Some(ordinal) => py
                .detach(|| Memory::cuda(ordinal, n_bytes))
                .map_err(to_py)?,
        };
        Ok(Array {
            memory: Arc::new(memory),
            dtype,
            shape,
        })
    }

    /// Shape.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    /// Type of the elements, as numpy spells it.
    #[getter]
    fn dtype(&self) -> String {
        dtype::name(self.dtype)
    }

    /// Address of the first element.
    #[getter]
    fn address(&self) -> u64 {
        self.memory.address()
    }

    /// For numpy, which before version 2.1 imports capsules as read-only arrays, and exports no capsules of those.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let typestr = match (&*self.memory, dtype::typestr(self.dtype)) {
            (Memory::Host { .. }, Some(typestr)) => typestr,
            _ => {
                let text = format!("numpy has no arrays like {}", self.__repr__());
                return Err(PyAttributeError::new_err(text));
            }
        };
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("shape", self.shape(py)?)?;
        interface.set_item("typestr", typestr)?;
        interface.set_item("data", (self.address(), false))?;
        Ok(interface)
    }

    /// `(1, 0)`: the host. `(2, n)`: CUDA device n.
    fn __dlpack_device__(&self) -> (u32, i32) {
        self.memory.device().into()
    }

    /// A capsule for one consumer: `dltensor_versioned` if `max_version` supports it, else `dltensor`. The elements are ready on any stream of the
    /// consumer. `BufferError`: another device, or a copy of an array of a GPU.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__(
        &self,
        py: Python<'_>,
        stream: Option<&Bound<'_, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(u32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        let request = ExportRequest::parse(stream, max_version, dl_device, None)?;
        match (&*self.memory, stream) {
            (Memory::Cuda(_), _) => drop(request.cuda_stream()?),
            (Memory::Host { .. }, None) => {}
            (Memory::Host { .. }, Some(stream)) => {
                let text = format!("stream is {stream}; allowed for an array of the host: None");
                return Err(PyValueError::new_err(text));
            }
        }
        let (memory, flags) = match copy {
            Some(true) => (Arc::new(self.memory.copied()?), DlpackFlags::IS_COPIED),
            _ => (Arc::clone(&self.memory), DlpackFlags::empty()),
        };
        let (legacy, versioned) = (Arc::clone(&memory), memory);
        request.export_zero_copy(
            py,
            self.memory.device(),
            DlpackFlags::empty(),
            || self.managed::<DLManagedTensor>(legacy, flags),
            || self.managed::<DLManagedTensorVersioned>(versioned, flags),
        )
    }

    fn __repr__(&self) -> String {
        let (shape, dtype) = (&self.shape, self.dtype());
        let device = match &*self.memory {
            Memory::Host { .. } => "cpu".to_owned(),
            Memory::Cuda(buffer) => format!("cuda:{}", buffer.ordinal),
        };
        format!("ferroflash.Array({shape:?}, {dtype}, {device})")
    }
}

impl Array {
    /// An array of this shape and type over this memory of its length.
    fn managed<M: ManagedTensorBase>(
        &self,
        memory: Arc<Memory>,
        flags: DlpackFlags,
    ) -> PyResult<Managed<M>> {
        let (device, address) = (memory.device(), memory.address());
        let data: *mut c_void = match self.shape.contains(&0) {
            true => std::ptr::null_mut(),
            false => std::ptr::with_exposed_provenance_mut(address as usize),
        };
        let mut tensor = Dynamic::compact(self.shape.as_slice())
            .prepare_as::<M>()
            .map_err(|error| PyBufferError::new_err(error.to_string()))?
            .initialize(memory);
        tensor
            .set_data(data)
            .set_device(device)
            .set_dtype(self.dtype);
        // SAFETY: the flag is set for a memory that was copied for this export alone. The memory has the bytes of the shape, and the
        // tensor's deleter lets go of it; strides are those of a contiguous array; who shares the memory may write it.
        Ok(unsafe {
            tensor.set_flags_unchecked(flags);
            tensor.finish()
        })
    }
}

//! Streams for calls that wait.

use ferroflash::backend::cuda::{self, CudaDevice, StreamRef};
use pyo3::prelude::*;

use crate::error::to_py;

/// A stream of a CUDA device that waits for no other stream.
#[pyclass(frozen, module = "ferroflash._native")]
pub(crate) struct Stream {
    stream: cuda::Stream,
}

#[pymethods]
impl Stream {
    /// A new stream of the device of this ordinal.
    #[new]
    fn new(py: Python<'_>, ordinal: u32) -> PyResult<Stream> {
        let stream = py.detach(|| cuda::Stream::new(&CudaDevice::open(ordinal)?));
        Ok(Stream {
            stream: stream.map_err(to_py)?,
        })
    }

    /// The driver's handle.
    #[getter]
    fn handle(&self) -> u64 {
        let handle = StreamRef::from(&self.stream).as_raw();
        handle.expose_provenance() as u64
    }

    /// Waits until its work is done, and reports its errors.
    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.stream.synchronize()).map_err(to_py)
    }
}

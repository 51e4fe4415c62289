//! Arrays of other libraries, to read.

use dlpark::ffi::{DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
use dlpark::python::{ImportedDlpack, from_dlpack};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::dtype;

/// Memory of another library's array, kept alive. When the object is dropped, the library's deleter runs once.
#[pyclass(frozen, module = "ferroflash._native")]
pub(crate) struct Import {
    /// Address of the first element; 0 if there is none.
    #[pyo3(get)]
    address: u64,
    /// Shape.
    #[pyo3(get)]
    shape: Vec<i64>,
    /// Strides in elements, of any sign.
    #[pyo3(get)]
    strides: Vec<i64>,
    /// `float32` and the like.
    #[pyo3(get)]
    dtype: String,
    /// DLPack's number of the kind of device, and the device's index.
    #[pyo3(get)]
    device: (u32, i32),
    _held: ImportedDlpack,
}

#[pymethods]
impl Import {
    /// Asks an array for its memory, to be read in the order of a stream: a handle in DLPack's form, on a GPU only.
    ///
    /// Writes to the memory before the reads are done, for instance by another thread, change what is read.
    #[new]
    #[pyo3(signature = (array, stream=None))]
    fn new(array: &Bound<'_, PyAny>, stream: Option<u64>) -> PyResult<Import> {
        let capsule = capsule(array, stream)?;
        let held = from_dlpack(capsule.as_borrowed(), None, None)?;
        let invalid = |error: dlpark::tensor::Error| PyValueError::new_err(error.to_string());
        let tensor = held.validate().map_err(invalid)?;
        // SAFETY: the pointer is not read here, only its address is taken; that it lies in memory of the device is DLPack's contract.
        let first = unsafe { tensor.offset_bytes_ptr() }.map_err(invalid)?;
        let is_empty = tensor.num_elements() == 0;
        let (shape, strides) = (tensor.shape().to_vec(), tensor.strides_or_compact());
        Ok(Import {
            address: if is_empty {
                0
            } else {
                first.expose_provenance() as u64
            },
            shape,
            strides: strides.map_err(invalid)?.into_owned(),
            dtype: dtype::name(tensor.dtype()),
            device: tensor.device().into(),
            _held: held,
        })
    }
}

/// A capsule of the newest version that both sides know. Libraries from before DLPack 1.0 do not know `max_version` and refuse it
/// with a `TypeError`.
fn capsule<'py>(array: &Bound<'py, PyAny>, stream: Option<u64>) -> PyResult<Bound<'py, PyAny>> {
    let py = array.py();
    let ask = |versioned: bool| {
        let options = PyDict::new(py);
        if let Some(stream) = stream {
            options.set_item(intern!(py, "stream"), stream)?;
        }
        if versioned {
            let newest = (DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION);
            options.set_item(intern!(py, "max_version"), newest)?;
        }
        array.call_method(intern!(py, "__dlpack__"), (), Some(&options))
    };
    match ask(true) {
        Err(error) if error.is_instance_of::<PyTypeError>(py) => ask(false),
        answer => answer,
    }
}

//! Questions to PyTorch at every call: whether a call is plain, and whether gradients are wanted.

use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Functions of PyTorch, looked up once.
pub(super) struct Torch {
    /// The plain tensor types: `Tensor` and `Parameter`.
    types: [Py<PyAny>; 2],
    n_modes: Py<PyAny>,
    transforms: Py<PyAny>,
    tracing: Py<PyAny>,
    any_autocast: Py<PyAny>,
    autocast: Py<PyAny>,
    autocast_dtype: Py<PyAny>,
    is_negated: Py<PyAny>,
    grad_enabled: Py<PyAny>,
    precision: Py<PyAny>,
    raw_stream: Option<Py<PyAny>>,
    /// The names of `torch.autograd.forward_ad`.
    forward_ad: Py<PyDict>,
}

impl Torch {
    pub(super) fn find(torch: &Bound<'_, PyModule>) -> PyResult<Torch> {
        let py = torch.py();
        let native = torch.getattr("_C")?;
        let of = |name: &str| native.getattr(name).map(Bound::unbind);
        let parameter = py.import("torch.nn")?.getattr("Parameter")?;
        Ok(Torch {
            types: [torch.getattr("Tensor")?.unbind(), parameter.unbind()],
            n_modes: of("_len_torch_dispatch_stack")?,
            transforms: of("_are_functorch_transforms_active")?,
            tracing: of("_is_tracing")?,
            any_autocast: of("_is_any_autocast_enabled")?,
            autocast: torch.getattr("is_autocast_enabled")?.unbind(),
            autocast_dtype: torch.getattr("get_autocast_dtype")?.unbind(),
            is_negated: torch.getattr("Tensor")?.getattr("is_neg")?.unbind(),
            grad_enabled: torch.getattr("is_grad_enabled")?.unbind(),
            precision: torch.getattr("get_float32_matmul_precision")?.unbind(),
            raw_stream: of("_cuda_getCurrentRawStream").ok(),
            forward_ad: py.import("torch.autograd.forward_ad")?.dict().unbind(),
        })
    }

    /// Whether an object is a plain tensor of PyTorch. Native code may then read it, if the call is plain.
    pub(super) fn is_tensor(&self, object: &Bound<'_, PyAny>) -> bool {
        let of = object.get_type_ptr().cast::<ffi::PyObject>();
        self.types.iter().any(|known| known.as_ptr() == of)
    }

    /// Whether these are plain tensors, and nothing else has to see the call: no transformation, no mode, no tracer, no forward-mode tangent; and no
    /// tensor has the negative bit set.
    pub(super) fn is_plain(&self, tensors: &[&Bound<'_, PyAny>]) -> PyResult<bool> {
        let py = tensors[0].py();
        if !tensors.iter().all(|tensor| self.is_tensor(tensor)) {
            return Ok(false);
        }
        for asked in [&self.n_modes, &self.transforms, &self.tracing] {
            if asked.bind(py).call0()?.is_truthy()? {
                return Ok(false);
            }
        }
        let level = self
            .forward_ad
            .bind(py)
            .get_item(intern!(py, "_current_level"))?;
        if !level.is_some_and(|level| level.extract::<i64>().is_ok_and(|level| level < 0)) {
            return Ok(false);
        }
        for tensor in tensors {
            if one(&self.is_negated, tensor)?.is_truthy()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether autocast leaves tensors of q's type on this device as they are.
    pub(super) fn is_cast_already(&self, q: &Bound<'_, PyAny>, on_cuda: bool) -> PyResult<bool> {
        let py = q.py();
        if !self.any_autocast.bind(py).call0()?.is_truthy()? {
            return Ok(true);
        }
        let device = if on_cuda {
            intern!(py, "cuda")
        } else {
            intern!(py, "cpu")
        };
        if !one(&self.autocast, device)?.is_truthy()? {
            return Ok(true);
        }
        let dtype = one(&self.autocast_dtype, device)?;
        Ok(q.getattr(intern!(py, "dtype"))?.is(&dtype))
    }

    /// Whether gradients are enabled.
    pub(super) fn is_grad_enabled(&self, py: Python<'_>) -> PyResult<bool> {
        self.grad_enabled.bind(py).call0()?.is_truthy()
    }

    /// Whether one of these requires a gradient.
    pub(super) fn asks_for_gradients(&self, tensors: &[&Bound<'_, PyAny>]) -> PyResult<bool> {
        for tensor in tensors {
            let asks = tensor.getattr(intern!(tensor.py(), "requires_grad"))?;
            if asks.is_truthy()? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether products of float32 are to be exact.
    pub(super) fn is_exact(&self, py: Python<'_>) -> PyResult<bool> {
        self.precision.bind(py).call0()?.eq(intern!(py, "highest"))
    }

    /// The current stream of a CUDA device.
    pub(super) fn stream(&self, py: Python<'_>, ordinal: i32) -> PyResult<Option<u64>> {
        let ask = self.raw_stream.as_ref();
        ask.map(|ask| ask.bind(py).call1((ordinal,))?.extract())
            .transpose()
    }
}

/// Calls with one argument, without a tuple for it.
fn one<'py>(function: &Py<PyAny>, argument: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = argument.py();
    let end = std::ptr::null_mut::<ffi::PyObject>();
    // SAFETY: the thread is attached; the arguments are objects, and end with a null pointer.
    unsafe {
        let result = ffi::PyObject_CallFunctionObjArgs(function.as_ptr(), argument.as_ptr(), end);
        Bound::from_owned_ptr_or_err(py, result)
    }
}

//! Where a score lies, and what a call gives by name: parameters and tensors.

use ferroflash::expression::{At as TracedAt, ElementType, Int as TracedInt};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::operand::Value;
use super::symbols::{Int, Num};

/// Where a score lies, and the parameters and tensors of a call.
#[pyclass(frozen, module = "ferroflash._native")]
pub(crate) struct At(pub(super) TracedAt);

/// A tensor of a call, to be indexed.
#[pyclass(frozen, mapping, module = "ferroflash._native")]
pub(crate) struct Tensor {
    at: TracedAt,
    name: String,
    element: ElementType,
}

#[pymethods]
impl At {
    /// The sequence.
    #[getter]
    fn batch(&self) -> Int {
        Int(self.0.batch)
    }

    /// The query head.
    #[getter]
    fn head(&self) -> Int {
        Int(self.0.head)
    }

    /// The head of keys and values.
    #[getter]
    fn kv_head(&self) -> Int {
        Int(self.0.kv_head)
    }

    /// The query, from the sequence's first one.
    #[getter]
    fn q(&self) -> Int {
        Int(self.0.q)
    }

    /// The key, from the sequence's first one.
    #[getter]
    fn k(&self) -> Int {
        Int(self.0.k)
    }

    /// Queries of the sequence.
    #[getter]
    fn seqlen_q(&self) -> Int {
        Int(self.0.seqlen_q)
    }

    /// Keys of the sequence.
    #[getter]
    fn seqlen_k(&self) -> Int {
        Int(self.0.seqlen_k)
    }

    /// A number that each call gives.
    fn f32(&self, name: &str) -> Num {
        Num(self.0.f32(name))
    }

    /// A whole number that each call gives.
    fn i32(&self, name: &str) -> Int {
        Int(self.0.i32(name))
    }

    /// A tensor of float32 that each call gives.
    fn tensor_f32(&self, name: String) -> Tensor {
        self.tensor(name, ElementType::F32)
    }

    /// A tensor of float16 that each call gives.
    fn tensor_f16(&self, name: String) -> Tensor {
        self.tensor(name, ElementType::F16)
    }

    /// A tensor of bfloat16 that each call gives.
    fn tensor_bf16(&self, name: String) -> Tensor {
        self.tensor(name, ElementType::Bf16)
    }

    /// A tensor of int32 that each call gives.
    fn tensor_i32(&self, name: String) -> Tensor {
        self.tensor(name, ElementType::I32)
    }
}

impl At {
    fn tensor(&self, name: String, element: ElementType) -> Tensor {
        Tensor {
            at: self.0,
            name,
            element,
        }
    }
}

#[pymethods]
impl Tensor {
    /// An element. An index outside of the tensor is moved to the nearest one inside.
    fn __getitem__(&self, index: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let py = index.py();
        let indices: Vec<TracedInt> = match index.cast::<PyTuple>() {
            Ok(indices) => {
                let indices = indices.iter().map(|index| self.index(&index));
                indices.collect::<PyResult<_>>()?
            }
            Err(_) => vec![self.index(index)?],
        };
        let (at, name) = (self.at, &self.name);
        let number = match self.element {
            ElementType::F32 => at.tensor_f32(name, &indices),
            ElementType::F16 => at.tensor_f16(name, &indices),
            ElementType::Bf16 => at.tensor_bf16(name, &indices),
            ElementType::I32 => {
                let whole = Int(at.tensor_i32(name, &indices));
                return Ok(whole.into_pyobject(py)?.into_any().unbind());
            }
        };
        Ok(Num(number).into_pyobject(py)?.into_any().unbind())
    }
}

impl Tensor {
    fn index(&self, given: &Bound<'_, PyAny>) -> PyResult<TracedInt> {
        let whole = Value::of(given)?.and_then(Value::whole);
        whole.map(|whole| whole.within(self.at)).ok_or_else(|| {
            let (name, given) = (&self.name, given.get_type());
            PyTypeError::new_err(format!(
                "{name} is indexed by {given}; allowed: whole numbers, as many as it has dimensions"
            ))
        })
    }
}

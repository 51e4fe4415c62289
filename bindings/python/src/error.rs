//! Errors of ferroflash as Python exceptions.

use ferroflash::Error;
use ferroflash::error::{ProblemError, ScoreError};
use pyo3::PyErr;
use pyo3::exceptions::{PyNotImplementedError, PyRuntimeError, PyTypeError, PyValueError};

/// `ValueError` for sizes, layouts and lengths, `TypeError` for element types, `NotImplementedError` if no kernel supports the call or a tensor has
/// no gradient, `RuntimeError` for the driver. The text names the argument, what was given and what is allowed.
pub(crate) fn to_py(error: impl Into<Error>) -> PyErr {
    let error = error.into();
    let text = error.to_string();
    match error {
        Error::Problem(ProblemError::DtypeMismatch { .. }) => PyTypeError::new_err(text),
        Error::Problem(ProblemError::Score(
            ScoreError::ParamType { .. } | ScoreError::TensorType { .. },
        )) => PyTypeError::new_err(text),
        Error::Problem(ProblemError::Score(ScoreError::NoTensorGradient { .. })) => {
            PyNotImplementedError::new_err(text)
        }
        Error::Problem(_) | Error::Rotary(_) => PyValueError::new_err(text),
        Error::Plan(_) => PyNotImplementedError::new_err(text),
        _ => PyRuntimeError::new_err(text),
    }
}

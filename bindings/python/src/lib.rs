//! The native module of the Python package `ferroflash`, `ferroflash._native`: attention on addresses.
//!
//! The package's Python code checks arguments, allocates, and passes addresses, strides and streams. Only the fast path of eager calls, `raw::door`,
//! knows a framework: it does the same for plain tensors of PyTorch.
//!
//! | file | contents |
//! |---|---|
//! | `problem` | attention problems, checked |
//! | `argument` | the library's arguments, by name |
//! | `operation` | appends, rotations and roundings to 8 bits |
//! | `device` | devices, kept open |
//! | `expression` | custom scores and masks |
//! | `raw` | passes on addresses |
//! | `dropout` | which weights dropout keeps |
//! | `dlpack` | arrays of other libraries to read, ours to export, streams for calls that wait |
//! | `info` | what this machine has |
//! | `kernels` | kernels in a folder, stored there and compiled ahead |
//! | `error` | errors of ferroflash as Python exceptions |

mod argument;
mod device;
mod dlpack;
mod dropout;
mod error;
mod expression;
mod info;
mod kernels;
mod operation;
mod problem;
mod raw;

use pyo3::pymodule;

/// The native module.
#[pymodule]
mod _native {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::argument::optional_inputs;
    #[pymodule_export]
    use crate::dlpack::{Array, Import, Stream};
    #[pymodule_export]
    use crate::dropout::dropout_mask;
    #[pymodule_export]
    use crate::expression::{Mask, Score};
    #[pymodule_export]
    use crate::info::info;
    #[pymodule_export]
    use crate::kernels::{compile_kernels, find_ptxas, keep_kernels_in};
    #[pymodule_export]
    use crate::problem::Problem;
    #[pymodule_export]
    use crate::raw::{Call, Door, Kernels, Planned, forward_of_graph, refuse};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}

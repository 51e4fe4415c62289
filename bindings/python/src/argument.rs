//! The library's arguments, by their names in Python.

use std::collections::HashMap;
use std::sync::LazyLock;

use ferroflash::arguments::{Argument, Extent, VectorType};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

static NAMES: LazyLock<HashMap<&str, Argument>> = LazyLock::new(|| {
    let named = Argument::ALL.map(|argument| (argument.name(), argument));
    // As PyTorch and FlashAttention call it.
    let aliases = [("rng_state", Argument::DropoutState)];
    named.into_iter().chain(aliases).collect()
});

/// The argument of this name.
pub(crate) fn argument(name: &str) -> PyResult<Argument> {
    let found = NAMES.get(name).copied();
    found.ok_or_else(|| PyTypeError::new_err(format!("{name} is no argument of the library's")))
}

/// A row of the library's table of optional inputs: the name, the type of the elements, the shape in terms of the problem, and whether it has a gradient.
type Row = (&'static str, &'static str, [&'static str; 1], bool);

/// The library's table of optional inputs.
#[pyfunction]
pub(crate) fn optional_inputs() -> Vec<Row> {
    let rows = Argument::ALL.into_iter().filter_map(|argument| {
        let input = argument.optional_input()?;
        let dtype = match input.dtype {
            VectorType::I32 => "int32",
            VectorType::F32 => "float32",
        };
        let extent = match input.extent {
            Extent::Batch => "batch",
            Extent::HeadsQ => "heads_q",
        };
        Some((argument.name(), dtype, [extent], input.gradient.is_some()))
    });
    rows.collect()
}

//! The stream and the results' memory of a pass: for Python objects here, for tensors of PyTorch's C functions in `boxed`.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use super::Means;
use super::aten::Wanted;

/// The stream and the memory of a pass that has `N` results.
pub(super) trait Room<const N: usize> {
    /// A result.
    type Tensor;
    /// The errors of a pass.
    type Error: From<Stuck>;

    /// The current stream of a CUDA device that has a tensor of the call.
    fn stream(&self, ordinal: i32) -> Result<u64, Self::Error>;

    /// Runs a pass on new memory of these kinds, in a workspace of this many bytes on this device, and returns the tensors to keep: the first ones.
    /// Python's lock is released meanwhile. The workspace is freed when the pass has been enqueued; PyTorch reuses it after the pass, in the order of the stream.
    fn run(
        &self,
        wanted: [Wanted<'_>; N],
        n_kept: usize,
        workspace: (Option<i32>, u64),
        pass: impl Fn([u64; N], (u64, u64)) -> Result<(), ferroflash::Error> + Sync,
    ) -> Result<[Option<Self::Tensor>; N], Self::Error>;
}

/// The outcome of a pass with `N` results.
pub(super) type Outcome<R, const N: usize, T> = Result<T, <R as Room<N>>::Error>;

/// Why a pass cannot go on.
pub(super) struct Stuck(pub(super) &'static str);

impl From<Stuck> for PyErr {
    fn from(Stuck(text): Stuck) -> PyErr {
        PyRuntimeError::new_err(text)
    }
}

/// For Python objects.
pub(super) struct Objects<'a, 'py, const N: usize> {
    pub(super) means: &'a Means,
    /// For each result, a tensor with its device, its type and, if it is to have the same, its shape.
    pub(super) like: [&'a Bound<'py, PyAny>; N],
}

impl<const N: usize> Room<N> for Objects<'_, '_, N> {
    type Tensor = Py<PyAny>;
    type Error = PyErr;

    fn stream(&self, ordinal: i32) -> PyResult<u64> {
        let Means { torch, viewer, .. } = self.means;
        if let Some(stream) = viewer.stream(ordinal) {
            return Ok(stream);
        }
        let none = Stuck("PyTorch does not say which stream is current");
        torch
            .stream(self.like[0].py(), ordinal)?
            .ok_or_else(|| none.into())
    }

    fn run(
        &self,
        wanted: [Wanted<'_>; N],
        n_kept: usize,
        workspace: (Option<i32>, u64),
        pass: impl Fn([u64; N], (u64, u64)) -> Result<(), ferroflash::Error> + Sync,
    ) -> PyResult<[Option<Py<PyAny>>; N]> {
        let memory = &self.means.memory;
        memory.run(self.like, wanted, n_kept, workspace, pass)
    }
}

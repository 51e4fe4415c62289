//! Kernels in a folder: stored there by calls, and compiled ahead.

use std::path::PathBuf;

use ferroflash::Error;
use ferroflash::ahead::{CallKind, Compiler, ReadyKernel, kernels, on_threads};
use ferroflash::backend::cuda::{KernelCompiler, Ptxas};
use ferroflash::error::DriverError;
use ferroflash::plan::DeviceInfo;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::device::{self, device};
use crate::error::to_py;

/// The first of these programs that prints its release of CUDA, as `ptxas --version` does; `None` if none does.
#[pyfunction]
pub(crate) fn find_ptxas(py: Python<'_>, programs: Vec<PathBuf>) -> Option<PathBuf> {
    let found = py.detach(|| Ptxas::first_of(programs));
    Some(found.ok()?.program().to_owned())
}

/// From now on every GPU of this process keeps compiled kernels in a folder, compiled by this `ptxas`; `None`: by the driver.
#[pyfunction]
#[pyo3(signature = (folder, ptxas=None))]
pub(crate) fn keep_kernels_in(
    py: Python<'_>,
    folder: PathBuf,
    ptxas: Option<PathBuf>,
) -> PyResult<()> {
    let ptxas = ptxas.map(named).transpose()?;
    py.detach(|| device::keep_kernels_in(folder, ptxas))
        .map_err(to_py)
}

/// Compiles the kernels of calls into a folder: a dictionary for each. With a compute capability no GPU is needed; without one, it compiles for GPU 0.
#[pyfunction]
#[pyo3(signature = (calls, folder, ptxas=None, compute_capability=None))]
pub(crate) fn compile_kernels<'py>(
    py: Python<'py>,
    calls: Vec<String>,
    folder: PathBuf,
    ptxas: Option<PathBuf>,
    compute_capability: Option<(u32, u32)>,
) -> PyResult<Bound<'py, PyList>> {
    let of = |text: &String| text.parse::<CallKind>();
    let calls: Result<Vec<_>, _> = calls.iter().map(of).collect();
    let calls = calls.map_err(|error| PyValueError::new_err(format!("calls: {error}")))?;
    let ptxas = ptxas.map(named).transpose()?;
    let compiled = match compute_capability {
        None => py.detach(|| here(&calls, folder, ptxas)).map_err(to_py)?,
        Some(of) => {
            let (major, minor) = of;
            let info = DeviceInfo::of_compute_capability(of).ok_or_else(|| {
                PyValueError::new_err(format!(
                    "compute_capability is ({major}, {minor}), where no kernel runs; allowed: (8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0) and newer"
                ))
            })?;
            let ptxas = ptxas.ok_or_else(|| {
                PyValueError::new_err(
                    "compute_capability is given and ptxas is not; without a GPU kernels are compiled by ptxas: pip install nvidia-cuda-nvcc, or ptxas=...",
                )
            })?;
            py.detach(|| {
                let compiler = KernelCompiler::new(folder, ptxas, of)?;
                all(&calls, &Compiler::Ahead(Box::new((compiler, info))))
            })
            .map_err(to_py)?
        }
    };
    let list = PyList::empty(py);
    for kernel in compiled {
        let entry = PyDict::new(py);
        entry.set_item("kernel", kernel.kernel.to_string())?;
        entry.set_item("registers", kernel.registers)?;
        entry.set_item("seconds", kernel.time.as_secs_f64())?;
        entry.set_item("origin", kernel.origin.in_words())?;
        list.append(entry)?;
    }
    Ok(list)
}

/// The limits of the first GPU.
fn here(
    calls: &[CallKind],
    folder: PathBuf,
    ptxas: Option<Ptxas>,
) -> Result<Vec<ReadyKernel>, Error> {
    device::keep_kernels_in(folder, ptxas)?;
    let device = device(Some(0))?;
    match device.as_cuda() {
        Some(cuda) => all(calls, &Compiler::Here(cuda)),
        None => Err(DriverError::NoContext.into()),
    }
}

/// All kernels of calls, or the first error.
fn all(calls: &[CallKind], compiler: &Compiler) -> Result<Vec<ReadyKernel>, Error> {
    let kernels = kernels(calls, compiler.info())?;
    let ready = on_threads(&kernels, |kernel| compiler.compile(kernel));
    Ok(ready.into_iter().collect::<Result<_, _>>()?)
}

/// The `ptxas` of this path; an error if it is none.
fn named(program: PathBuf) -> PyResult<Ptxas> {
    Ptxas::at(program).map_err(|error| PyValueError::new_err(format!("ptxas: {error}")))
}

//! What this machine has.

use ferroflash::Device;
use ferroflash::backend::cuda::{CudaDevice, missing_kernels, needed_cuda, origin_of_kernels};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

/// A dictionary: `version`; `kernels`, their origin, or why there are none; `needs_cuda`, the least version of CUDA that the driver has to support;
/// `processor`; `gpus`, a dictionary for each device that the driver reports; and, if there are none, `no_gpu`, the reason.
#[pyfunction]
pub(crate) fn info(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let info = PyDict::new(py);
    info.set_item("version", env!("CARGO_PKG_VERSION"))?;
    let kernels = missing_kernels().map_or_else(|| origin_of_kernels().to_string(), str::to_owned);
    info.set_item("kernels", kernels)?;
    let version = |major: u32, minor: u32| format!("{major}.{minor}");
    let needed = needed_cuda().map(|needed| version(needed.major, needed.minor));
    info.set_item("needs_cuda", needed)?;
    info.set_item("processor", Device::cpu().info().name.clone())?;
    let gpus = PyList::empty(py);
    match CudaDevice::count() {
        Err(error) => info.set_item("no_gpu", error.to_string())?,
        Ok(0) => info.set_item("no_gpu", "there is a CUDA driver, but it shows no device")?,
        Ok(n_devices) => {
            for ordinal in 0..n_devices {
                gpus.append(gpu(py, ordinal)?)?;
            }
        }
    }
    info.set_item("gpus", gpus)?;
    Ok(info)
}

/// One device, or why it cannot be opened.
fn gpu(py: Python<'_>, ordinal: u32) -> PyResult<Bound<'_, PyDict>> {
    let gpu = PyDict::new(py);
    gpu.set_item("ordinal", ordinal)?;
    match py.detach(|| CudaDevice::open(ordinal)) {
        Err(error) => gpu.set_item("error", error.to_string())?,
        Ok(device) => {
            let (info, driver) = (device.info(), device.driver_version());
            gpu.set_item("name", &info.name)?;
            gpu.set_item("compute_capability", info.compute_capability)?;
            gpu.set_item("memory_bytes", info.memory_bytes)?;
            gpu.set_item("driver_cuda", format!("{}.{}", driver.major, driver.minor))?;
        }
    }
    Ok(gpu)
}

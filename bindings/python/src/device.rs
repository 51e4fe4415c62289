//! The devices that calls have used, kept open.

use std::path::PathBuf;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use ferroflash::backend::cuda::Ptxas;
use ferroflash::{Device, Error};

/// The processor.
static CPU: LazyLock<Device> = LazyLock::new(Device::cpu);

/// CUDA devices by ordinal, for the life of the process, with their kernels, which the driver compiles at their first use.
static CUDA: Mutex<Vec<Option<Device>>> = Mutex::new(Vec::new());

/// The folder of compiled kernels, and their compiler.
struct Kept {
    folder: PathBuf,
    ptxas: Option<Ptxas>,
}

static KEPT: Mutex<Option<Kept>> = Mutex::new(None);

fn kept() -> MutexGuard<'static, Option<Kept>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Kept {
    /// The device, with this folder of kernels.
    fn by(&self, device: Device) -> Result<Device, Error> {
        match self.ptxas.clone() {
            Some(ptxas) => device.with_kernel_cache_by(ptxas, &self.folder),
            None => device.with_kernel_cache(&self.folder),
        }
    }
}

/// Sets the folder of compiled kernels for all devices, open or opened later.
pub(crate) fn keep_kernels_in(folder: PathBuf, ptxas: Option<Ptxas>) -> Result<(), Error> {
    let devices = CUDA.lock().unwrap_or_else(PoisonError::into_inner);
    let keeping = Kept { folder, ptxas };
    for device in devices.iter().flatten() {
        keeping.by(device.clone())?;
    }
    *kept() = Some(keeping);
    Ok(())
}

/// The CUDA device of this ordinal, in its primary context, which Python's libraries share; without one, the processor.
pub(crate) fn device(ordinal: Option<u32>) -> Result<Device, Error> {
    let Some(ordinal) = ordinal else {
        return Ok(CPU.clone());
    };
    let mut devices = CUDA.lock().unwrap_or_else(PoisonError::into_inner);
    let index = ordinal as usize;
    if let Some(Some(device)) = devices.get(index) {
        return Ok(device.clone());
    }
    let device = match &*kept() {
        None => Device::cuda(ordinal)?,
        Some(kept) => kept.by(Device::cuda(ordinal)?)?,
    };
    if devices.len() <= index {
        devices.resize(index + 1, None);
    }
    devices[index] = Some(device.clone());
    Ok(device)
}

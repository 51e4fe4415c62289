//! The devices that calls have asked for, kept open.

use std::sync::{LazyLock, Mutex, PoisonError};

use ferroflash::{Device, Error};

/// The processor.
static CPU: LazyLock<Device> = LazyLock::new(Device::cpu);

/// CUDA devices by ordinal, for the life of the process: so are their kernels, which the driver compiles when they are first wanted.
static CUDA: Mutex<Vec<Option<Device>>> = Mutex::new(Vec::new());

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
    let device = Device::cuda(ordinal)?;
    if devices.len() <= index {
        devices.resize(index + 1, None);
    }
    devices[index] = Some(device.clone());
    Ok(device)
}

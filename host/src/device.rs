//! The device that attention runs on: chosen by name, or the best one available, with the reason.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use crate::backend::cuda::missing_kernels;
use crate::backend::cuda::{CudaDevice, Ptxas};
#[cfg(feature = "emulator")]
use crate::backend::emulated::{EmulatorOptions, Lengths};
use crate::error::{DriverError, Error};
use crate::plan::{Backend, DeviceInfo};
use crate::tensor::Location;

/// A device to run attention on. Cheap to clone; clones are the same device.
///
/// The [crate's documentation](crate) has an example.
#[derive(Clone, Debug)]
pub struct Device {
    kind: Kind,
    info: Arc<DeviceInfo>,
    why: Arc<str>,
}

/// What a [`Device`] is.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Cuda(Arc<CudaDevice>),
    Cpu,
    #[cfg(feature = "emulator")]
    Emulated(Box<EmulatorOptions>),
}

/// Why a device that was asked for by name is used.
const ASKED: &str = "asked for by name";

/// Why a device is used that was already open.
const GIVEN: &str = "the caller's own device";

impl Device {
    /// CUDA device 0 if there are a driver, a device and kernels; else the CPU. [`Device::why`] says which and why.
    pub fn best() -> Device {
        match Device::cuda(0) {
            Ok(device) => Device {
                why: "there are a driver, a device and kernels for it".into(),
                ..device
            },
            Err(error) => Device {
                why: format!("no GPU: {error}").into(),
                ..Device::cpu()
            },
        }
    }

    /// The CUDA device of this ordinal.
    pub fn cuda(ordinal: u32) -> Result<Device, Error> {
        Device::around(CudaDevice::open(ordinal)?, ASKED)
    }

    /// A CUDA device that is already open, such as one from the context of another library ([`CudaDevice::from_context`]).
    pub fn from_cuda(device: Arc<CudaDevice>) -> Result<Device, Error> {
        Device::around(device, GIVEN)
    }

    fn around(device: Arc<CudaDevice>, why: &str) -> Result<Device, Error> {
        match missing_kernels() {
            Some(reason) => Err(DriverError::NoKernels {
                detail: reason.to_owned(),
            }
            .into()),
            None => {
                let info = Arc::new(device.info().clone());
                Ok(Device {
                    kind: Kind::Cuda(device),
                    info,
                    why: why.into(),
                })
            }
        }
    }

    /// The same device, which keeps compiled kernels in a folder: see [`CudaDevice::keep_kernels_in`]. A device that is not a GPU has nothing to
    /// compile and ignores the folder.
    pub fn with_kernel_cache(self, folder: impl AsRef<Path>) -> Result<Device, Error> {
        if let Kind::Cuda(device) = &self.kind {
            device.keep_kernels_in(folder)?;
        }
        Ok(self)
    }

    /// The same device, which keeps compiled kernels in a folder and has them compiled by this `ptxas`: see [`CudaDevice::keep_kernels_by`]. A
    /// device that is not a GPU ignores both.
    pub fn with_kernel_cache_by(
        self,
        ptxas: Ptxas,
        folder: impl AsRef<Path>,
    ) -> Result<Device, Error> {
        if let Kind::Cuda(device) = &self.kind {
            device.keep_kernels_by(ptxas, folder)?;
        }
        Ok(self)
    }

    /// This machine's processor, all cores.
    pub fn cpu() -> Device {
        Device {
            kind: Kind::Cpu,
            info: Arc::new(DeviceInfo::cpu()),
            why: ASKED.into(),
        }
    }

    /// The GPU kernels on the emulator: for tests of kernels, thousands of times slower than anything else.
    #[cfg(feature = "emulator")]
    pub fn emulated(options: EmulatorOptions) -> Device {
        let info = Arc::new(options.device.clone());
        Device {
            kind: Kind::Emulated(Box::new(options)),
            info,
            why: ASKED.into(),
        }
    }

    /// The same device, with calls planned for these limits: for tests of kernels that plans would not choose on it. The driver refuses what it cannot launch.
    #[must_use]
    pub fn planned_as(self, limits: DeviceInfo) -> Device {
        let name = format!("{}, planned as {}", self.info.name, limits.name);
        Device {
            info: Arc::new(DeviceInfo { name, ..limits }),
            ..self
        }
    }

    /// Which backend it is.
    pub fn backend(&self) -> Backend {
        match &self.kind {
            Kind::Cuda(_) => Backend::Cuda,
            Kind::Cpu => Backend::Cpu,
            #[cfg(feature = "emulator")]
            Kind::Emulated(_) => Backend::Emulated,
        }
    }

    /// Why this device: asked for by name, or what [`Device::best`] found.
    pub fn why(&self) -> &str {
        &self.why
    }

    /// Its limits, as planning sees them.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// The same, shared.
    pub(crate) fn shared_info(&self) -> Arc<DeviceInfo> {
        Arc::clone(&self.info)
    }

    /// The CUDA device, if it is one: for streams, events and buffers.
    pub fn as_cuda(&self) -> Option<&Arc<CudaDevice>> {
        match &self.kind {
            Kind::Cuda(device) => Some(device),
            _ => None,
        }
    }

    /// The memory in which its kernels work.
    pub fn location(&self) -> Location {
        match &self.kind {
            Kind::Cuda(device) => Location::Cuda(device.ordinal()),
            _ => Location::Host,
        }
    }

    /// Whether calls check lengths on the host.
    pub(crate) fn checks_lengths(&self) -> bool {
        match &self.kind {
            #[cfg(feature = "emulator")]
            Kind::Emulated(options) => options.lengths == Lengths::Checked,
            _ => true,
        }
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.kind
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.backend(), self.info.name)
    }
}

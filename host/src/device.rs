//! Where attention runs: chosen by name, or the best there is with the reason why.

use std::fmt;

#[cfg(feature = "emulator")]
use crate::backend::emulated::EmulatorOptions;
use crate::plan::{Backend, DeviceInfo};
use crate::tensor::Place;

/// A device to run attention on. Cheap to clone; clones are the same device.
#[derive(Clone, Debug)]
pub struct Device {
    kind: Kind,
    why: String,
}

/// What a [`Device`] is.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Cpu,
    #[cfg(feature = "emulator")]
    Emulated(EmulatorOptions),
}

impl Device {
    /// The CUDA device 0 where there is a driver, a device and kernels; else the CPU. [`Device::why`] says which and
    /// why.
    pub fn best() -> Device {
        Device::cpu()
    }

    /// This machine's processor, all cores.
    pub fn cpu() -> Device {
        Device { kind: Kind::Cpu, why: "asked for by name".into() }
    }

    /// The GPU kernels on the emulator: for tests of kernels, thousands of times slower than anything else.
    #[cfg(feature = "emulator")]
    pub fn emulated(options: EmulatorOptions) -> Device {
        Device { kind: Kind::Emulated(options), why: "asked for by name".into() }
    }

    /// Which backend it is.
    pub fn backend(&self) -> Backend {
        match &self.kind {
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
    pub fn info(&self) -> DeviceInfo {
        match &self.kind {
            Kind::Cpu => DeviceInfo::cpu(),
            #[cfg(feature = "emulator")]
            Kind::Emulated(options) => options.device.clone(),
        }
    }

    /// In whose memory its tensors lie.
    pub fn place(&self) -> Place {
        Place::Host
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.kind
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.backend(), self.info().name)
    }
}

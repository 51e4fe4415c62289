//! The backends under test: how each is opened, and what to say when it is not there.

use ferroflash::backend::emulated::EmulatorOptions;
use ferroflash::{Algorithm, Backend, Device};

use crate::suite::say;

/// A backend under test.
#[derive(Clone, Copy, Debug)]
pub struct Subject {
    /// Which.
    pub backend: Backend,
    /// Opens it; the emulator runs its threads in an order that follows from the seed.
    pub open: fn(seed: u64) -> Result<Device, String>,
    /// How many random cases it is put through.
    pub n_random: u32,
}

/// Ordinary Rust on all cores.
pub const CPU: Subject = Subject {
    backend: Backend::Cpu,
    open: |_| Ok(Device::cpu()),
    n_random: 100,
};

/// The kernels on the emulator, with every check switched on.
pub const EMULATED: Subject = Subject {
    backend: Backend::Emulated,
    open: |seed| Ok(Device::emulated(EmulatorOptions::seeded(seed))),
    n_random: 40,
};

/// The same for Hopper's kernels.
pub const EMULATED_HOPPER: Subject = Subject {
    open: |seed| Ok(Device::emulated(EmulatorOptions::hopper(seed))),
    ..EMULATED
};

/// The kernels on the first GPU.
pub const CUDA: Subject = Subject {
    backend: Backend::Cuda,
    open: |_| Device::cuda(0).map_err(|error| error.to_string()),
    n_random: 400,
};

/// The compute capability that flash3's kernels run on.
const HOPPER: (u32, u32) = (9, 0);

/// Whether a device is one that an algorithm's kernels are made for, said a second time.
pub fn is_made_for(device: &Device, algorithm: Algorithm) -> bool {
    algorithm != Algorithm::Flash3 || device.info().compute_capability == HOPPER
}

impl Subject {
    /// Whether the backend is not there, or its device is none that the algorithm is made for; says so.
    pub fn cannot_run(&self, algorithm: Algorithm) -> bool {
        if self.is_absent() {
            return true;
        }
        let made_for = (self.open)(0).is_ok_and(|device| is_made_for(&device, algorithm));
        if !made_for {
            say(&format!(
                "not run: {} {algorithm}: the device is no Hopper",
                self.backend
            ));
        }
        !made_for
    }

    /// Whether the backend is not there; says so, and panics where `REQUIRE` names it.
    pub fn is_absent(&self) -> bool {
        let Err(reason) = (self.open)(0) else {
            return false;
        };
        let backend = self.backend;
        say(&format!("not run: {backend}: {reason}"));
        let required = std::env::var("REQUIRE")
            .is_ok_and(|names| names.split(',').any(|name| name == backend.name()));
        assert!(
            !required,
            "REQUIRE names {backend}, which cannot run: {reason}"
        );
        true
    }
}

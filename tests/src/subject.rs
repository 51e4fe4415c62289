//! The backends under test: how each is opened, and what to say when it is not there.

use ferroflash::backend::emulated::EmulatorOptions;
use ferroflash::{Backend, Device};

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

/// The kernels on the first GPU.
pub const CUDA: Subject = Subject {
    backend: Backend::Cuda,
    open: |_| Device::cuda(0).map_err(|error| error.to_string()),
    n_random: 400,
};

impl Subject {
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

//! The backends under test: how each is opened, and what to say when it is not there.

use ferroflash::backend::emulated::EmulatorOptions;
use ferroflash::plan::DeviceInfo;
use ferroflash::{Backend, Device};
use ferroflash_kernels::variants::TileShape;

use crate::cases::HEAD_DIMS;
use crate::cases::compact::COMPACT_HEAD_DIM;
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
    /// Their head_dims.
    pub head_dims: &'static [usize],
    /// The tile shape of flash2's backward pass at head_dim 128.
    pub tiles: TileShape,
}

/// Ordinary Rust on all cores.
pub const CPU: Subject = Subject {
    backend: Backend::Cpu,
    open: |_| Ok(Device::cpu()),
    n_random: 100,
    head_dims: &HEAD_DIMS,
    tiles: TileShape::Default,
};

/// The kernels on the emulator, with every check switched on.
pub const EMULATED: Subject = Subject {
    backend: Backend::Emulated,
    open: |seed| Ok(Device::emulated(EmulatorOptions::seeded(seed))),
    n_random: 40,
    head_dims: &HEAD_DIMS,
    tiles: TileShape::Default,
};

/// The emulator as a device of compute capability 8.6, whose shared memory holds compact tiles only.
pub const EMULATED_COMPACT: Subject = Subject {
    open: |seed| {
        Ok(Device::emulated(EmulatorOptions {
            device: DeviceInfo::rtx3060(),
            ..EmulatorOptions::seeded(seed)
        }))
    },
    n_random: 15,
    head_dims: &[COMPACT_HEAD_DIM],
    tiles: TileShape::Compact,
    ..EMULATED
};

/// The kernels on the first GPU.
pub const CUDA: Subject = Subject {
    backend: Backend::Cuda,
    open: |_| Device::cuda(0).map_err(|error| error.to_string()),
    n_random: 400,
    head_dims: &HEAD_DIMS,
    tiles: TileShape::Default,
};

/// The first GPU, planned as if its blocks had the shared memory of compute capability 8.6: any GPU runs compact tiles.
pub const CUDA_COMPACT: Subject = Subject {
    open: |seed| {
        let device = (CUDA.open)(seed)?;
        let limits = DeviceInfo {
            shared_bytes_per_block: DeviceInfo::rtx3060().shared_bytes_per_block,
            ..device.info().clone()
        };
        Ok(device.planned_as(limits))
    },
    n_random: 100,
    head_dims: &[COMPACT_HEAD_DIM],
    tiles: TileShape::Compact,
    ..CUDA
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

//! A device as planning sees it. Plain data, so that plans for any GPU can be made and tested anywhere.

use super::Thresholds;
use crate::backend::cpu::pool;

/// A device's limits.
///
/// The [module](mod@crate::plan) has an example.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeviceInfo {
    /// Its name.
    pub name: String,
    /// Compute capability, `(major, minor)`.
    pub compute_capability: (u32, u32),
    /// Number of streaming multiprocessors.
    pub n_sms: u32,
    /// The most bytes of shared memory of a block.
    pub shared_bytes_per_block: u32,
    /// Bytes of global memory.
    pub memory_bytes: u64,
    /// The sizes at which planning chooses differently.
    pub thresholds: Thresholds,
}

impl DeviceInfo {
    /// NVIDIA H200.
    pub fn h200() -> DeviceInfo {
        DeviceInfo {
            name: "NVIDIA H200".into(),
            compute_capability: (9, 0),
            n_sms: 132,
            shared_bytes_per_block: 227 * 1024,
            memory_bytes: 141 << 30,
            thresholds: Thresholds::MEASURED,
        }
    }

    /// NVIDIA A100, 80 GB.
    pub fn a100() -> DeviceInfo {
        DeviceInfo {
            name: "NVIDIA A100".into(),
            compute_capability: (8, 0),
            n_sms: 108,
            shared_bytes_per_block: 163 * 1024,
            memory_bytes: 80 << 30,
            thresholds: Thresholds::MEASURED,
        }
    }

    /// NVIDIA GeForce RTX 3060: compute capability 8.6, less shared memory per block.
    pub fn rtx3060() -> DeviceInfo {
        DeviceInfo {
            name: "NVIDIA GeForce RTX 3060".into(),
            compute_capability: (8, 6),
            n_sms: 28,
            shared_bytes_per_block: 99 * 1024,
            memory_bytes: 12 << 30,
            thresholds: Thresholds::MEASURED,
        }
    }

    /// NVIDIA GeForce RTX 4090: compute capability 8.9, less shared memory per block.
    pub fn rtx4090() -> DeviceInfo {
        DeviceInfo {
            name: "NVIDIA GeForce RTX 4090".into(),
            compute_capability: (8, 9),
            n_sms: 128,
            shared_bytes_per_block: 99 * 1024,
            memory_bytes: 24 << 30,
            thresholds: Thresholds::MEASURED,
        }
    }

    /// A device of this compute capability, which this machine need not have, to plan and to compile for; `None` if no kernel is known to run on it.
    /// Devices of one compute capability differ in multiprocessors and memory.
    pub fn of_compute_capability(compute_capability: (u32, u32)) -> Option<DeviceInfo> {
        let (major, minor) = compute_capability;
        let like = match compute_capability {
            (8, 0 | 7) => DeviceInfo::a100(),
            (8, 6) => DeviceInfo::rtx3060(),
            (8, 9) => DeviceInfo::rtx4090(),
            (9, 0) => DeviceInfo::h200(),
            // Shared memory of a block by the table of compute capabilities in the CUDA C++ programming guide.
            (10 | 11, _) => DeviceInfo::h200(),
            (12, _) => DeviceInfo::rtx4090(),
            _ => return None,
        };
        Some(DeviceInfo {
            name: format!("a device of compute capability {major}.{minor}"),
            compute_capability,
            ..like
        })
    }

    /// This machine's processor: for planning it has no limits.
    pub fn cpu() -> DeviceInfo {
        DeviceInfo {
            name: format!(
                "{} on {} threads",
                std::env::consts::ARCH,
                pool::n_threads()
            ),
            compute_capability: (0, 0),
            n_sms: 0,
            shared_bytes_per_block: 0,
            memory_bytes: u64::MAX,
            thresholds: Thresholds::MEASURED,
        }
    }

    /// The emulated device: the limits of compute capability 8.0, few multiprocessors.
    pub fn emulated() -> DeviceInfo {
        DeviceInfo {
            name: "emulator".into(),
            compute_capability: (8, 0),
            n_sms: 2,
            shared_bytes_per_block: 163 * 1024,
            memory_bytes: 8 << 30,
            thresholds: Thresholds::MEASURED,
        }
    }

    /// The emulated device with the limits of compute capability 9.0.
    pub fn emulated_hopper() -> DeviceInfo {
        DeviceInfo {
            name: "emulator, compute capability 9.0".into(),
            compute_capability: (9, 0),
            shared_bytes_per_block: 227 * 1024,
            ..DeviceInfo::emulated()
        }
    }
}

//! The backends under test: how each is opened, and what to say when it is not there.

use ferroflash::backend::emulated::{EmulatorOptions, Lengths};
use ferroflash::plan::{DeviceInfo, Thresholds};
use ferroflash::{Algorithm, Backend, Device, Pass};
pub use ferroflash_kernels::variants::TileShape;

use crate::cases::compact::COMPACT_HEAD_DIMS;
use crate::cases::{HEAD_DIMS, head_splits, orders};
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
    /// The tiles that it is there for.
    pub tiles: Tiles,
}

/// Which tile shapes a backend is to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tiles {
    /// The default ones.
    Default,
    /// Compact ones in flash2's backward pass above head_dim 64.
    CompactBackward,
    /// Compact ones in flash3's forward pass.
    CompactForward,
    /// Wide ones in flash3's forward pass.
    WideForward,
    /// Grouped ones in flash3's forward pass.
    GroupedForward,
    /// Whichever are planned: the subject is there for something else.
    Any,
}

/// Ordinary Rust on all cores.
pub const CPU: Subject = Subject {
    backend: Backend::Cpu,
    open: |_| Ok(Device::cpu()),
    n_random: 100,
    head_dims: &HEAD_DIMS,
    tiles: Tiles::Default,
};

/// The kernels on the emulator, with every check switched on.
pub const EMULATED: Subject = Subject {
    backend: Backend::Emulated,
    open: |seed| Ok(Device::emulated(EmulatorOptions::seeded(seed))),
    n_random: 40,
    head_dims: &HEAD_DIMS,
    tiles: Tiles::Default,
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
    head_dims: &COMPACT_HEAD_DIMS,
    tiles: Tiles::CompactBackward,
    ..EMULATED
};

/// The emulator as a device of compute capability 9.0, for Hopper's kernels.
pub const EMULATED_HOPPER: Subject = Subject {
    open: |seed| Ok(Device::emulated(EmulatorOptions::hopper(seed))),
    ..EMULATED
};

/// The same, with lengths and tables that nobody looks at before the kernels do, as at those in a GPU's memory.
pub const EMULATED_UNSEEN: Subject = Subject {
    open: |seed| {
        Ok(Device::emulated(EmulatorOptions {
            lengths: Lengths::Unseen,
            ..EmulatorOptions::hopper(seed)
        }))
    },
    ..EMULATED_HOPPER
};

/// The emulator as a Hopper with an H200's SMs: then the tiles of small problems are compact.
pub const EMULATED_SHORT: Subject = Subject {
    open: |seed| emulated(seed, of_h200),
    n_random: 20,
    tiles: Tiles::CompactForward,
    ..EMULATED_HOPPER
};

/// The emulator of [`EMULATED_UNSEEN`] with an H200's SMs: tiles merge their splits themselves.
pub const EMULATED_UNSEEN_SHORT: Subject = Subject {
    open: |seed| {
        let options = EmulatorOptions::hopper(seed);
        Ok(Device::emulated(EmulatorOptions {
            device: of_sms(options.device, DeviceInfo::h200().n_sms),
            lengths: Lengths::Unseen,
            ..options
        }))
    },
    ..EMULATED_HOPPER
};

/// The emulator as a Hopper of so many SMs that flash3's backward pass takes tiles in each of its orders.
pub const EMULATED_ORDERS: Subject = Subject {
    open: |seed| emulated(seed, |device| of_sms(device, orders::N_SMS)),
    n_random: 15,
    tiles: Tiles::Any,
    ..EMULATED_HOPPER
};

/// The emulator as a Hopper of one SM: blocks take many tiles, one after the other.
pub const EMULATED_ONE_SM: Subject = Subject {
    open: |seed| emulated(seed, |device| of_sms(device, 1)),
    tiles: Tiles::Any,
    ..EMULATED_HOPPER
};

/// The same, for grouped tiles: a cache of some hundred keys is large for one SM.
pub const EMULATED_GROUPED: Subject = Subject {
    tiles: Tiles::GroupedForward,
    ..EMULATED_ONE_SM
};

/// The emulator as a Hopper of so many SMs that flash3's backward pass divides query heads into shares.
pub const EMULATED_HEAD_SPLITS: Subject = Subject {
    open: |seed| emulated(seed, |device| of_sms(device, head_splits::N_SMS)),
    ..EMULATED_ORDERS
};

/// The emulator as a Hopper with an H200's SMs, whatever its tiles: plans divide the keys of few queries by themselves.
pub const EMULATED_MANY_SMS: Subject = Subject {
    tiles: Tiles::Any,
    ..EMULATED_SHORT
};

/// The same, where tiles have no counters: a launch of its own merges what splits of keys have found, as of thousands of rows.
pub const EMULATED_APART: Subject = Subject {
    open: |seed| {
        emulated(seed, |device| {
            with(of_h200(device), merging_apart(Thresholds::MEASURED))
        })
    },
    ..EMULATED_MANY_SMS
};

/// The same with tiles grouped as over large caches.
pub const EMULATED_GROUPED_SOON: Subject = Subject {
    open: |seed| {
        emulated(seed, |device| {
            with(of_h200(device), grouping_soon(Thresholds::MEASURED))
        })
    },
    ..EMULATED_MANY_SMS
};

/// The same, and a launch of its own merges.
pub const EMULATED_GROUPED_APART: Subject = Subject {
    open: |seed| {
        emulated(seed, |device| {
            with(
                of_h200(device),
                merging_apart(grouping_soon(Thresholds::MEASURED)),
            )
        })
    },
    ..EMULATED_MANY_SMS
};

/// The emulator as a Hopper whose tiles are wide as those of thousands of queries.
pub const EMULATED_WIDE_SOON: Subject = Subject {
    open: |seed| emulated(seed, |device| with(device, WIDE_SOON)),
    ..EMULATED_MANY_SMS
};

/// The same, with so many SMs that flash3's backward pass divides query heads into shares.
pub const EMULATED_WIDE_SPLITS: Subject = Subject {
    open: |seed| {
        emulated(seed, |device| {
            with(of_sms(device, head_splits::N_SMS), WIDE_SOON)
        })
    },
    ..EMULATED_MANY_SMS
};

/// The emulator as a Hopper whose blocks share tiles as those of thousands of queries, one cluster at a time.
pub const EMULATED_PAIRED_SOON: Subject = Subject {
    open: |seed| emulated(seed, |device| with(device, PAIRED_SOON)),
    ..EMULATED_MANY_SMS
};

/// The same with several clusters: flash3's backward pass divides query heads into shares.
pub const EMULATED_PAIRED_SPLITS: Subject = Subject {
    open: |seed| {
        emulated(seed, |device| {
            with(of_sms(device, 2 * head_splits::N_SMS), PAIRED_SOON)
        })
    },
    ..EMULATED_MANY_SMS
};

/// The kernels on the first GPU.
pub const CUDA: Subject = Subject {
    backend: Backend::Cuda,
    open: |_| Device::cuda(0).map_err(|error| error.to_string()),
    n_random: 400,
    head_dims: &HEAD_DIMS,
    tiles: Tiles::Default,
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
    head_dims: &COMPACT_HEAD_DIMS,
    tiles: Tiles::CompactBackward,
    ..CUDA
};

/// The emulator as a Hopper, planned as one of few SMs: then the tiles of long sequences are wide.
pub const EMULATED_WIDE: Subject = Subject {
    tiles: Tiles::WideForward,
    ..EMULATED_HOPPER
};

/// The first GPU, whose SMs are so many that the tiles of small problems are compact.
pub const CUDA_SHORT: Subject = Subject {
    n_random: 100,
    tiles: Tiles::CompactForward,
    ..CUDA
};

/// The first GPU, planned as one of one SM: then the tiles of few queries are grouped.
pub const CUDA_GROUPED: Subject = Subject {
    open: |seed| cuda(seed, |device| of_sms(device, 1)),
    tiles: Tiles::GroupedForward,
    ..CUDA
};

/// The first GPU, planned as one of few SMs: then the tiles of small problems are the default ones.
pub const CUDA_OF_FEW_SMS: Subject = Subject {
    open: |seed| {
        cuda(seed, |device| {
            of_sms(device, DeviceInfo::emulated_hopper().n_sms)
        })
    },
    ..CUDA
};

/// The same with the SMs of [`EMULATED_ORDERS`].
pub const CUDA_ORDERS: Subject = Subject {
    open: |seed| cuda(seed, |device| of_sms(device, orders::N_SMS)),
    n_random: 100,
    tiles: Tiles::Any,
    ..CUDA
};

/// The same with the SMs of [`EMULATED_HEAD_SPLITS`].
pub const CUDA_HEAD_SPLITS: Subject = Subject {
    open: |seed| cuda(seed, |device| of_sms(device, head_splits::N_SMS)),
    ..CUDA_ORDERS
};

/// The same; the tiles of long sequences are wide.
pub const CUDA_WIDE: Subject = Subject {
    tiles: Tiles::WideForward,
    ..CUDA_OF_FEW_SMS
};

/// The first GPU, whatever its tiles.
pub const CUDA_MANY_SMS: Subject = Subject {
    tiles: Tiles::Any,
    ..CUDA_SHORT
};

/// The first GPU, planned as [`EMULATED_APART`] is.
pub const CUDA_APART: Subject = Subject {
    open: |seed| {
        cuda(seed, |device| {
            with(device, merging_apart(Thresholds::MEASURED))
        })
    },
    ..CUDA_MANY_SMS
};

/// The first GPU, planned as [`EMULATED_GROUPED_SOON`] is.
pub const CUDA_GROUPED_SOON: Subject = Subject {
    open: |seed| {
        cuda(seed, |device| {
            with(device, grouping_soon(Thresholds::MEASURED))
        })
    },
    ..CUDA_MANY_SMS
};

/// The first GPU, planned as [`EMULATED_GROUPED_APART`] is.
pub const CUDA_GROUPED_APART: Subject = Subject {
    open: |seed| {
        cuda(seed, |device| {
            with(device, merging_apart(grouping_soon(Thresholds::MEASURED)))
        })
    },
    ..CUDA_MANY_SMS
};

/// The first GPU, planned as [`EMULATED_WIDE_SOON`] is: with so few SMs that small problems fill them.
pub const CUDA_WIDE_SOON: Subject = Subject {
    open: |seed| {
        cuda(seed, |device| {
            let n_sms = DeviceInfo::emulated_hopper().n_sms;
            with(of_sms(device, n_sms), WIDE_SOON)
        })
    },
    ..CUDA_MANY_SMS
};

/// The same, planned as [`EMULATED_WIDE_SPLITS`] is.
pub const CUDA_WIDE_SPLITS: Subject = Subject {
    open: |seed| {
        cuda(seed, |device| {
            with(of_sms(device, head_splits::N_SMS), WIDE_SOON)
        })
    },
    ..CUDA_MANY_SMS
};

/// The first GPU, planned as [`EMULATED_PAIRED_SOON`] is.
pub const CUDA_PAIRED_SOON: Subject = Subject {
    open: |seed| {
        cuda(seed, |device| {
            let n_sms = DeviceInfo::emulated_hopper().n_sms;
            with(of_sms(device, n_sms), PAIRED_SOON)
        })
    },
    ..CUDA_MANY_SMS
};

/// The same, planned as [`EMULATED_PAIRED_SPLITS`] is.
pub const CUDA_PAIRED_SPLITS: Subject = Subject {
    open: |seed| {
        cuda(seed, |device| {
            with(of_sms(device, 2 * head_splits::N_SMS), PAIRED_SOON)
        })
    },
    ..CUDA_MANY_SMS
};

/// The first GPU, whatever tiles it takes: problems as large as a user's.
pub const CUDA_AS_IT_IS: Subject = Subject {
    n_random: 200,
    tiles: Tiles::Any,
    ..CUDA
};

/// The emulator as a Hopper, planned with these limits in place of its own.
fn emulated(seed: u64, limits: fn(DeviceInfo) -> DeviceInfo) -> Result<Device, String> {
    let options = EmulatorOptions::hopper(seed);
    Ok(Device::emulated(EmulatorOptions {
        device: limits(options.device),
        ..options
    }))
}

/// The first GPU, planned with these limits in place of its own.
fn cuda(seed: u64, limits: fn(DeviceInfo) -> DeviceInfo) -> Result<Device, String> {
    let device = (CUDA.open)(seed)?;
    let limits = limits(device.info().clone());
    Ok(device.planned_as(limits))
}

/// The device with an H200's SMs.
fn of_h200(device: DeviceInfo) -> DeviceInfo {
    of_sms(device, DeviceInfo::h200().n_sms)
}

/// The device with these thresholds.
fn with(device: DeviceInfo, thresholds: Thresholds) -> DeviceInfo {
    DeviceInfo {
        thresholds,
        ..device
    }
}

/// Tiles have no counters of splits.
const fn merging_apart(thresholds: Thresholds) -> Thresholds {
    Thresholds {
        arrivals: 0,
        ..thresholds
    }
}

/// Any cache is large enough for grouped tiles.
const fn grouping_soon(thresholds: Thresholds) -> Thresholds {
    Thresholds {
        grouped_bytes_per_sm: 0,
        ..thresholds
    }
}

/// Wide tiles for any number of queries, and of rows.
const WIDE_SOON: Thresholds = Thresholds {
    wide_rows_per_sm: 0,
    wide_queries_narrow: 0,
    wide_queries: 0,
    wide_queries_masked: 0,
    wide_queries_e4m3: 0,
    wide_queries_e4m3_masked: 0,
    wide_gradients_per_sm: 0,
    wide_gradients_listed_per_sm: 0,
    wide_gradients: 0,
    wide_gradients_by_columns: 0,
    ..Thresholds::MEASURED
};

/// The same, and in the backward pass paired ones where there are such.
const PAIRED_SOON: Thresholds = Thresholds {
    paired_gradients: 0,
    ..WIDE_SOON
};

/// The device with so many SMs.
fn of_sms(device: DeviceInfo, n_sms: u32) -> DeviceInfo {
    DeviceInfo { n_sms, ..device }
}

/// The compute capability that flash3's kernels run on.
const HOPPER: (u32, u32) = (9, 0);

/// Whether a device is one that an algorithm's kernels are made for, said a second time.
pub fn is_made_for(device: &Device, algorithm: Algorithm) -> bool {
    algorithm != Algorithm::Flash3 || device.info().compute_capability == HOPPER
}

impl Subject {
    /// The passes whose tiles it is there for.
    pub fn passes(&self) -> &'static [Pass] {
        match self.tiles {
            Tiles::Default => &[Pass::Forward, Pass::Backward],
            Tiles::CompactForward | Tiles::WideForward | Tiles::GroupedForward => &[Pass::Forward],
            Tiles::CompactBackward | Tiles::Any => &[Pass::Backward],
        }
    }

    /// Whether the backend is not there, or its device is none that the algorithm is made for; says so.
    pub fn cannot_run(&self, algorithm: Algorithm) -> bool {
        if self.is_absent() {
            return true;
        }
        let made_for = (self.open)(0).is_ok_and(|device| is_made_for(&device, algorithm));
        if !made_for {
            say(&format!(
                "[not run] {} {algorithm}: the device is no Hopper",
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
        say(&format!("[not run] {backend}: {reason}"));
        let required = std::env::var("REQUIRE")
            .is_ok_and(|names| names.split(',').any(|name| name == backend.name()));
        assert!(
            !required,
            "REQUIRE names {backend}, which cannot run: {reason}"
        );
        true
    }
}

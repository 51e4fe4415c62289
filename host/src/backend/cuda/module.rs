//! Kernels of one device: compiled by the driver when first wanted, ready to launch from then on.

use std::ffi::CString;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use ferroflash_driver::Version;
use ferroflash_driver::extra::function::{self, FunctionAttribute};
use ferroflash_driver::extra::module::{self, Image, JitLog};
use ferroflash_driver::sys::{CUfunction, CUmodule};
use ferroflash_kernels::variants::{VARIANTS, Variant};

use super::embedded;
use crate::error::DriverError;

/// A kernel, loaded.
#[derive(Debug)]
pub struct Kernel {
    variant: &'static Variant,
    module: CUmodule,
    function: CUfunction,
    statistics: Statistics,
}

/// What the driver's compiler made of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statistics {
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of local memory of a thread: stack and spilled registers.
    pub local_bytes: u32,
    /// Blocks that fit on one multiprocessor.
    pub blocks_per_sm: u32,
    /// How long it took: half a second for a kernel new to the driver, less than a millisecond from its cache.
    pub load_time: Duration,
    /// What the compiler said.
    pub log: JitLog,
}

// SAFETY: the driver lets every thread use a function; the handles are addresses that only the driver follows.
unsafe impl Send for Kernel {}
// SAFETY: as above; nothing changes after loading.
unsafe impl Sync for Kernel {}

impl Kernel {
    /// Its row in the list of kernels.
    pub fn variant(&self) -> &'static Variant {
        self.variant
    }

    /// What the driver's compiler made of it.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// The driver's handle.
    pub(super) fn function(&self) -> CUfunction {
        self.function
    }
}

/// The kernels of a device, a place for each variant in the order of the list.
pub(super) struct Kernels {
    driver_version: Version,
    loaded: Box<[OnceLock<Kernel>]>,
    loading: Mutex<()>,
}

impl Kernels {
    pub(super) fn new(driver_version: Version) -> Kernels {
        Kernels {
            driver_version,
            loaded: VARIANTS.iter().map(|_| OnceLock::new()).collect(),
            loading: Mutex::new(()),
        }
    }

    /// The kernel of a variant, if it has been loaded.
    pub(super) fn get(&self, variant: &Variant) -> Option<&Kernel> {
        self.place(variant)?.get()
    }

    /// Loads the kernel of a variant into the current context; once, whichever thread comes first.
    pub(super) fn load(&self, variant: &'static Variant) -> Result<&Kernel, DriverError> {
        let place = self.place(variant).ok_or(DriverError::NotEmbedded {
            kernel: variant.name,
        })?;
        let _loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = place.get() {
            return Ok(kernel);
        }
        let kernel = load(variant, self.driver_version)?;
        Ok(place.get_or_init(|| kernel))
    }

    /// Unloads all; the context is current.
    pub(super) fn unload(&mut self) {
        for kernel in self.loaded.iter_mut().filter_map(OnceLock::take) {
            // SAFETY: nobody holds the kernel, since `self` is borrowed exclusively, and the device has no work left.
            // An error can only be that of earlier work.
            let _ = unsafe { module::unload(kernel.module) };
        }
    }

    fn place(&self, variant: &Variant) -> Option<&OnceLock<Kernel>> {
        let idx = VARIANTS.iter().position(|row| row.name == variant.name)?;
        self.loaded.get(idx)
    }
}

/// Loads a kernel into the current context and allows it the shared memory of its footprint.
fn load(variant: &'static Variant, driver_version: Version) -> Result<Kernel, DriverError> {
    let start = Instant::now();
    let ptx = embedded::ptx(variant.name, variant.arch)?;
    if let Some(needed) = embedded::needed_by(&ptx).filter(|needed| driver_version < *needed) {
        return Err(too_old(driver_version, needed));
    }
    let name = CString::new(variant.name).map_err(|_| DriverError::NotEmbedded {
        kernel: variant.name,
    })?;
    let footprint = &variant.footprint;
    // SAFETY: the context of the device is current. The module is complete PTX, which the driver checks. The function
    // is asked for its attributes while its module is loaded.
    unsafe {
        let (module, log) = module::load(Image::Ptx(&ptx)).map_err(|source| DriverError::Load {
            kernel: variant.name,
            source: Box::new(source),
        })?;
        let ready = || -> Result<_, ferroflash_driver::DriverError> {
            let function = module::function(module, &name)?;
            function::allow_dynamic_shared(function, footprint.shared_bytes)?;
            let attribute =
                |which| function::attribute(function, which).map(|value| value.max(0) as u32);
            let statistics = Statistics {
                registers: attribute(FunctionAttribute::Registers)?,
                local_bytes: attribute(FunctionAttribute::LocalBytes)?,
                blocks_per_sm: function::blocks_per_multiprocessor(
                    function,
                    footprint.threads,
                    footprint.shared_bytes,
                )?,
                load_time: start.elapsed(),
                log,
            };
            Ok(Kernel {
                variant,
                module,
                function,
                statistics,
            })
        };
        ready().map_err(|error| {
            let _ = module::unload(module);
            error.into()
        })
    }
}

/// The driver is older than the kernels need.
pub(super) fn too_old(found: Version, needed: Version) -> DriverError {
    DriverError::DriverTooOld {
        found: (found.major, found.minor),
        needed: (needed.major, needed.minor),
    }
}

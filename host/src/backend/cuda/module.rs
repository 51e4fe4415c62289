//! Kernels of one device: compiled by the driver when first wanted, ready to launch from then on.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use ferroflash_driver::Version;
use ferroflash_driver::extra::function::{self, FunctionAttribute};
use ferroflash_driver::extra::module::{self, Image, JitLog};
use ferroflash_driver::sys::{CUfunction, CUmodule};
use ferroflash_kernels::expression::Kept;
use ferroflash_kernels::spec::Spec;
use ferroflash_kernels::spec::text::of_variant;
use ferroflash_kernels::variants::Variant;

use super::embedded;
use crate::error::DriverError;

/// A kernel, loaded.
#[derive(Debug)]
pub struct Kernel {
    variant: &'static Variant,
    spec: Spec,
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

    /// The constants that it is compiled with.
    pub fn spec(&self) -> Spec {
        self.spec
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

/// What a kernel is compiled from: the name of a variant, a spec, and an expression that edits scores.
type Source = (&'static str, Spec, Option<Kept>);

/// The kernels of a device.
pub(super) struct Kernels {
    driver_version: Version,
    loaded: RwLock<HashMap<Source, Arc<Kernel>>>,
    loading: Mutex<()>,
}

impl Kernels {
    pub(super) fn new(driver_version: Version) -> Kernels {
        Kernels {
            driver_version,
            loaded: RwLock::default(),
            loading: Mutex::new(()),
        }
    }

    /// The kernel of a variant with a spec and an expression, if it has been loaded.
    pub(super) fn get(
        &self,
        variant: &Variant,
        spec: Spec,
        edit: Option<Kept>,
    ) -> Option<Arc<Kernel>> {
        let loaded = self.loaded.read().unwrap_or_else(PoisonError::into_inner);
        loaded.get(&(variant.name, spec, edit)).cloned()
    }

    /// Loads the kernel of a variant with a spec and an expression into the current context; once, whichever thread comes first.
    pub(super) fn load(
        &self,
        variant: &'static Variant,
        spec: Spec,
        edit: Option<Kept>,
    ) -> Result<Arc<Kernel>, DriverError> {
        let _loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = self.get(variant, spec, edit) {
            return Ok(kernel);
        }
        let kernel = Arc::new(load(variant, spec, edit, self.driver_version)?);
        let mut loaded = self.loaded.write().unwrap_or_else(PoisonError::into_inner);
        loaded.insert((variant.name, spec, edit), Arc::clone(&kernel));
        Ok(kernel)
    }

    /// Unloads all; the context is current, and nobody launches a kernel of it any more.
    pub(super) fn unload(&mut self) {
        let loaded = self
            .loaded
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        for (_, kernel) in loaded.drain() {
            // SAFETY: launches hold the device, so there are none; it has no work left. An error can only be that of earlier
            // work.
            let _ = unsafe { module::unload(kernel.module) };
        }
    }
}

/// The text of a variant, with the constants of a spec and an expression that edits scores.
fn specialised(
    variant: &'static Variant,
    spec: Spec,
    edit: Option<Kept>,
    driver_version: Version,
) -> Result<CString, DriverError> {
    let ptx = embedded::ptx(variant.name, variant.arch)?;
    if let Some(needed) = embedded::needed_by(&ptx).filter(|needed| driver_version < *needed) {
        return Err(too_old(driver_version, needed));
    }
    let corrupt = || DriverError::CorruptKernel {
        kernel: variant.name,
    };
    let text = ptx.into_string().map_err(|_| corrupt())?;
    let text = of_variant(&text, variant, spec, edit.map(Kept::edit));
    let text = text.map_err(|source| DriverError::Specialise {
        kernel: variant.name,
        source,
    })?;
    CString::new(text).map_err(|_| corrupt())
}

/// Loads a kernel into the current context and allows it the shared memory of its footprint.
fn load(
    variant: &'static Variant,
    spec: Spec,
    edit: Option<Kept>,
    driver_version: Version,
) -> Result<Kernel, DriverError> {
    let start = Instant::now();
    let ptx = specialised(variant, spec, edit, driver_version)?;
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
        let ready = || -> Result<_, DriverError> {
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
            would_hang(variant, spec, &statistics)?;
            Ok(Kernel {
                variant,
                spec,
                module,
                function,
                statistics,
            })
        };
        ready().inspect_err(|_| {
            let _ = module::unload(module);
        })
    }
}

/// Refuses a kernel whose warpgroups or blocks would wait for each other without end: the driver's compiler is not the one that
/// the budgets of the list were held to.
fn would_hang(
    variant: &'static Variant,
    spec: Spec,
    found: &Statistics,
) -> Result<(), DriverError> {
    let footprint = &variant.footprint;
    let shares_out = footprint.launch_registers > 0;
    let registers = shares_out && found.registers != footprint.launch_registers;
    if registers || (shares_out && found.blocks_per_sm < footprint.blocks_per_sm) {
        return Err(DriverError::WouldHang {
            kernel: variant.name,
            spec,
            registers: found.registers,
            needed_registers: footprint.launch_registers,
            blocks_per_sm: found.blocks_per_sm,
            needed_blocks_per_sm: footprint.blocks_per_sm,
        });
    }
    Ok(())
}

/// The driver is older than the kernels need.
pub(super) fn too_old(found: Version, needed: Version) -> DriverError {
    DriverError::DriverTooOld {
        found: (found.major, found.minor),
        needed: (needed.major, needed.minor),
    }
}

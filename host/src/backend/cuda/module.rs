//! Kernels of one device: compiled by the driver when first wanted, ready to launch from then on.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use ferroflash_driver::Version;
use ferroflash_driver::extra::function::{self, FunctionAttribute};
use ferroflash_driver::extra::module::{self, Image, JitLog};
use ferroflash_driver::sys::{CUfunction, CUmodule};
use ferroflash_expression::Kept;
use ferroflash_kernels::spec::Spec;
use ferroflash_kernels::spec::text::of_variant;
use ferroflash_kernels::variants::Variant;

use super::embedded;
use super::kernel_cache::{KernelCache, Loaded, Origin, Target};
use crate::error::DriverError;

/// A kernel, loaded.
///
/// The [module](crate::backend::cuda) has an example.
#[derive(Debug)]
pub struct Kernel {
    variant: &'static Variant,
    spec: Spec,
    module: CUmodule,
    function: CUfunction,
    statistics: Statistics,
}

/// Properties of a compiled kernel.
///
/// The [module](crate::backend::cuda) has an example.
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
    /// The origin of its code.
    pub origin: Origin,
    /// The compiler's output; empty if nothing was compiled.
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

    /// Its compiled properties.
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

/// A slot for a kernel, empty until a thread has loaded it.
#[derive(Default)]
struct Slot {
    kernel: OnceLock<Arc<Kernel>>,
    /// Held by the thread that loads it. Other threads wait for this lock only if they want the same kernel.
    loading: Mutex<()>,
}

/// The kernels of a device.
pub(super) struct Kernels {
    target: Target,
    cache: RwLock<Option<Arc<KernelCache>>>,
    places: RwLock<HashMap<Source, Arc<Slot>>>,
}

impl Kernels {
    pub(super) fn new(target: Target) -> Kernels {
        Kernels {
            target,
            cache: RwLock::default(),
            places: RwLock::default(),
        }
    }

    /// The folder of compiled kernels, if there is one.
    pub(super) fn cache(&self) -> Option<Arc<KernelCache>> {
        let cache = self.cache.read().unwrap_or_else(PoisonError::into_inner);
        cache.clone()
    }

    /// From now on kernels come from here.
    pub(super) fn use_cache(&self, cache: KernelCache) {
        let mut place = self.cache.write().unwrap_or_else(PoisonError::into_inner);
        // That of the same folder goes on counting.
        let same = place
            .as_ref()
            .filter(|known| known.folder() == cache.folder());
        if let Some(known) = same {
            if known.ptxas() == cache.ptxas() {
                return;
            }
            *cache.so_far() = known.so_far().clone();
        }
        *place = Some(Arc::new(cache));
    }

    /// The kernel of a variant with a spec and an expression, if it has been loaded.
    pub(super) fn get(
        &self,
        variant: &Variant,
        spec: Spec,
        edit: Option<Kept>,
    ) -> Option<Arc<Kernel>> {
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        places
            .get(&(variant.name, spec, edit))?
            .kernel
            .get()
            .cloned()
    }

    /// Loads the kernel of a variant with a spec and an expression into the current context; once, whichever thread comes first. Threads that
    /// want different kernels load them at once. If it fails, the next thread tries again.
    pub(super) fn load(
        &self,
        variant: &'static Variant,
        spec: Spec,
        edit: Option<Kept>,
    ) -> Result<Arc<Kernel>, DriverError> {
        let place = {
            let mut places = self.places.write().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(places.entry((variant.name, spec, edit)).or_default())
        };
        let _loading = place.loading.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = place.kernel.get() {
            return Ok(Arc::clone(kernel));
        }
        let kernel = load(variant, spec, edit, self.target, self.cache().as_deref())?;
        Ok(Arc::clone(place.kernel.get_or_init(|| Arc::new(kernel))))
    }

    /// Unloads all; the context is current, and no kernel of it is launched afterwards.
    pub(super) fn unload(&mut self) {
        let places = self
            .places
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        let places = places.drain();
        for kernel in places.filter_map(|(_, place)| place.kernel.get().cloned()) {
            // SAFETY: launches hold the device, so there are none; it has no work left. An error can only be that of earlier
            // work.
            let _ = unsafe { module::unload(kernel.module) };
        }
    }
}

/// The text of a variant, with the constants of a spec and an expression that edits scores.
pub(super) fn specialised(
    variant: &'static Variant,
    spec: Spec,
    edit: Option<Kept>,
) -> Result<CString, DriverError> {
    let ptx = embedded::ptx(variant.name, variant.arch)?;
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

/// Loads a kernel into the current context and allows it the shared memory of its tile config.
fn load(
    variant: &'static Variant,
    spec: Spec,
    edit: Option<Kept>,
    target: Target,
    cache: Option<&KernelCache>,
) -> Result<Kernel, DriverError> {
    let start = Instant::now();
    let ptx = specialised(variant, spec, edit)?;
    let driver_version = target.driver_version;
    if let Some(needed) = embedded::needed_by(&ptx).filter(|needed| driver_version < *needed) {
        return Err(too_old(driver_version, needed));
    }
    let refused = |source| DriverError::Load {
        kernel: variant.name,
        source: Box::new(source),
    };
    // SAFETY: the context of the device is current. The module is complete PTX, which the driver checks, or the cache's.
    unsafe {
        let loaded = match cache {
            Some(cache) => cache.load(variant, &ptx, target),
            None => module::load(Image::Ptx(&ptx)).map(|(module, log)| Loaded {
                module,
                log,
                origin: Origin::Driver,
                by_ptxas: None,
            }),
        };
        let loaded = loaded.map_err(refused)?;
        let file = loaded.by_ptxas.clone();
        match (ready(variant, spec, loaded, start), cache, file) {
            // Another compiler may do better: the driver's has the last word.
            (Err(error @ DriverError::WouldHang { .. }), Some(cache), Some(file)) => {
                let detail = error.to_string();
                let loaded = cache.load_without_ptxas(variant, &ptx, target, file, detail);
                ready(variant, spec, loaded.map_err(refused)?, start)
            }
            (kernel, _, _) => kernel,
        }
    }
}

/// A loaded kernel, ready to be launched; it is unloaded if that fails.
///
/// # Safety
/// The context that it was loaded into is current.
unsafe fn ready(
    variant: &'static Variant,
    spec: Spec,
    loaded: Loaded,
    start: Instant,
) -> Result<Kernel, DriverError> {
    let tile_config = &variant.tile_config;
    let Loaded {
        module,
        log,
        origin,
        ..
    } = loaded;
    let ready = || -> Result<_, DriverError> {
        let name = CString::new(variant.name).map_err(|_| DriverError::NotEmbedded {
            kernel: variant.name,
        })?;
        // SAFETY: the function is asked for its attributes while its module is loaded.
        let (function, statistics) = unsafe {
            let function = module::function(module, &name)?;
            function::allow_dynamic_shared(function, tile_config.shared_bytes)?;
            let attribute =
                |which| function::attribute(function, which).map(|value| value.max(0) as u32);
            let statistics = Statistics {
                registers: attribute(FunctionAttribute::Registers)?,
                local_bytes: attribute(FunctionAttribute::LocalBytes)?,
                blocks_per_sm: function::blocks_per_multiprocessor(
                    function,
                    tile_config.threads,
                    tile_config.shared_bytes,
                )?,
                load_time: start.elapsed(),
                origin,
                log,
            };
            (function, statistics)
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
        // SAFETY: the module is loaded, its context current, and nothing uses it.
        let _ = unsafe { module::unload(module) };
    })
}

/// Refuses a kernel whose warpgroups or blocks would deadlock: the driver's compiler is not the one that the list's budgets were checked with.
fn would_hang(
    variant: &'static Variant,
    spec: Spec,
    found: &Statistics,
) -> Result<(), DriverError> {
    let tile_config = &variant.tile_config;
    let shares_out = tile_config.launch_registers > 0;
    let registers = shares_out && found.registers != tile_config.launch_registers;
    if registers || (shares_out && found.blocks_per_sm < tile_config.blocks_per_sm) {
        return Err(DriverError::WouldHang {
            kernel: variant.name,
            spec,
            registers: found.registers,
            needed_registers: tile_config.launch_registers,
            blocks_per_sm: found.blocks_per_sm,
            needed_blocks_per_sm: tile_config.blocks_per_sm,
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

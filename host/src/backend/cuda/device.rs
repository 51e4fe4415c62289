//! An open CUDA device: its context, its limits, its kernels.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ferroflash_driver::extra::device::Attribute;
use ferroflash_driver::sys::{CUcontext, CUdevice};
use ferroflash_driver::{Driver, Version, extra};
use ferroflash_expression::Kept;
use ferroflash_kernels::spec::Spec;
use ferroflash_kernels::variants::Variant;

use super::captures::Captures;
use super::context::{BorrowedContext, Context, Current, PrimaryContext};
use super::embedded;
use super::kernel_cache::{KernelCache, KernelCacheUse, Ptxas, Target};
use super::memory::Bytes;
use super::module::{Kernel, Kernels, too_old};
use super::tensor_map::TensorMaps;
use crate::error::DriverError;
use crate::plan::{DeviceInfo, Thresholds};

/// The devices that are open in this process, so that each is opened, and each kernel compiled, once.
static OPEN: Mutex<Vec<Weak<CudaDevice>>> = Mutex::new(Vec::new());

/// An open CUDA device. Buffers, streams and events keep it open.
///
/// The [module](crate::backend::cuda) has an example.
pub struct CudaDevice {
    kernels: Kernels,
    /// Memory without an owner that work may still use.
    retired: Mutex<Vec<Bytes>>,
    captures: Captures,
    tensor_maps: TensorMaps,
    context: Context,
    ordinal: u32,
    uuid: [u8; 16],
    driver_version: Version,
    info: DeviceInfo,
}

/// Memory of a device, in bytes.
///
/// The [module](crate::backend::cuda) has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Free now.
    pub free_bytes: u64,
    /// In all.
    pub total_bytes: u64,
}

impl CudaDevice {
    /// How many devices the driver reports.
    pub fn count() -> Result<u32, DriverError> {
        extra::device::count().map_err(DriverError::from)
    }

    /// The device with this ordinal; the same object while any handle to it lives.
    pub fn open(ordinal: u32) -> Result<Arc<CudaDevice>, DriverError> {
        let n_devices = CudaDevice::count()?;
        if n_devices <= ordinal {
            return Err(DriverError::NoDevice { ordinal, n_devices });
        }
        CudaDevice::shared(
            |device| device.ordinal == ordinal && device.context.is_primary(),
            || {
                let retain = |device| Ok(Context::Primary(PrimaryContext::retain(device)?));
                CudaDevice::open_new(ordinal, retain)
            },
        )
    }

    /// A device through a context that another library has made, primary or not; the same object while any handle to it lives. Everything made with
    /// it, and the kernels that it loads, belong to the context.
    ///
    /// # Safety
    /// The context lives as long as the device and everything made with it: buffers, queues, prepared calls, graphs. Tensors of calls are in memory
    /// that this context can access; it cannot access memory of another context of the same device.
    pub unsafe fn from_context(context: CUcontext) -> Result<Arc<CudaDevice>, DriverError> {
        // Starts the driver.
        let n_devices = CudaDevice::count()?;
        if context.is_null() {
            return Err(DriverError::NoContext);
        }
        CudaDevice::shared(
            |device| device.context.handle() == context,
            || {
                let device = {
                    let _current = Current::enter(context)?;
                    extra::context::device()?
                };
                let is_it = |&ordinal: &u32| extra::device::get(ordinal) == Ok(device);
                let ordinal = (0..n_devices).find(is_it).ok_or(DriverError::NoContext)?;
                let borrowed = Context::Borrowed(BorrowedContext::new(context));
                CudaDevice::open_new(ordinal, |_device| Ok(borrowed))
            },
        )
    }

    /// A device through the context that is current in this thread: see [`CudaDevice::from_context`].
    ///
    /// # Safety
    /// As for [`CudaDevice::from_context`].
    pub unsafe fn from_current_context() -> Result<Arc<CudaDevice>, DriverError> {
        CudaDevice::count()?;
        let context = extra::context::current()?;
        // SAFETY: as the caller promises.
        unsafe { CudaDevice::from_context(context) }
    }

    /// The open device that `is_it` accepts, or else the result of `make`.
    fn shared(
        is_it: impl Fn(&CudaDevice) -> bool,
        make: impl FnOnce() -> Result<CudaDevice, DriverError>,
    ) -> Result<Arc<CudaDevice>, DriverError> {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|device| 0 < device.strong_count());
        let mut alive = open.iter().filter_map(Weak::upgrade);
        if let Some(device) = alive.find(|device| is_it(device)) {
            return Ok(device);
        }
        let device = Arc::new(make()?);
        open.push(Arc::downgrade(&device));
        Ok(device)
    }

    fn open_new(
        ordinal: u32,
        context: impl FnOnce(CUdevice) -> Result<Context, DriverError>,
    ) -> Result<CudaDevice, DriverError> {
        let driver = Driver::get().map_err(|missing| DriverError::Call(missing.clone().into()))?;
        let driver_version = driver.version()?;
        // First: an old driver lacks functions that are called below.
        if let Some(needed) = embedded::needed_cuda().filter(|needed| driver_version < *needed) {
            return Err(too_old(driver_version, needed));
        }
        let device = extra::device::get(ordinal)?;
        let info = read_info(device)?;
        let uuid = extra::device::uuid(device)?;
        let context = context(device)?;
        let kernels = Kernels::new(Target {
            compute_capability: info.compute_capability,
            driver_version,
        });
        Ok(CudaDevice {
            kernels,
            retired: Mutex::default(),
            captures: Captures::default(),
            tensor_maps: TensorMaps::default(),
            context,
            ordinal,
            uuid,
            driver_version,
            info,
        })
    }

    /// Its limits, for planning.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Its index in the driver's list.
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// Its identity: the same in every process.
    pub fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// The newest version of CUDA that the driver supports.
    pub fn driver_version(&self) -> Version {
        self.driver_version
    }

    /// Its memory, as it is now.
    pub fn memory(&self) -> Result<MemoryInfo, DriverError> {
        let _current = self.enter()?;
        let (free, total) = extra::memory::info()?;
        Ok(MemoryInfo {
            free_bytes: free as u64,
            total_bytes: total as u64,
        })
    }

    /// Waits until all work on the device is done, and reports its errors. It first waits, at most two seconds, for captures that other threads have
    /// open ([`Queue::capture`](super::Queue::capture)). While this thread or another library captures a stream, the driver may refuse this and
    /// invalidate the capture.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        let _held = self.captures.hold_without_others();
        self.wait()
    }

    fn wait(&self) -> Result<(), DriverError> {
        let _current = self.enter()?;
        // Taken first: what is retired from here on may be used by work that is not waited for.
        let retired = std::mem::take(&mut *self.retired());
        match extra::context::synchronize() {
            Ok(()) => {
                drop(retired);
                Ok(())
            }
            Err(error) => {
                self.retired().extend(retired);
                Err(error.into())
            }
        }
    }

    /// Frees memory once no work can use it: now, if it is possible to wait for the device, or else at the next wait.
    pub(super) fn retire(&self, memory: Bytes) {
        if memory.n_bytes() > 0 {
            self.retired().push(memory);
            let held = self.captures.hold();
            if held.none_is_open() {
                // An error is that of earlier work, which is told to whoever waits for it, or of a capture of another library, which ends.
                let _ = self.wait();
            }
        }
    }

    /// The captures of its streams.
    pub(super) fn captures(&self) -> &Captures {
        &self.captures
    }

    /// The tensor maps of its launches.
    pub(super) fn tensor_maps(&self) -> &TensorMaps {
        &self.tensor_maps
    }

    fn retired(&self) -> MutexGuard<'_, Vec<Bytes>> {
        self.retired.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps compiled kernels in a folder. From now on a kernel is loaded from there if an earlier process has stored it, and is stored there if
    /// not. A kernel is found again if its PTX, the device's compute capability and the driver's version of CUDA are the same; one that a `ptxas`
    /// compiled, if PTX and compute capability are.
    ///
    /// Most of flash3's kernels are not stored if the driver compiles them: it returns cubins only as relocatable code, in which warpgroups cannot reallocate
    /// registers (`setmaxnreg`). [`CudaDevice::keep_kernels_by`], [`KernelCompiler`](super::KernelCompiler) and `ferroflash kernels compile` store
    /// all of them. The driver has a cache of its own for
    /// all kernels; the environment variable `CUDA_CACHE_PATH` names its folder.
    ///
    /// The folder is created if it does not exist; one that cannot be read or written is an error. A damaged file is compiled again and replaced,
    /// and a failure to write a file fails no call: [`CudaDevice::kernel_cache_use`] counts them. Nothing is ever removed; files may be deleted at
    /// any time. The code in the folder runs on the device: protect it as well as the program itself.
    ///
    /// A device is shared by the whole process, and so is its folder: a second folder replaces the first.
    pub fn keep_kernels_in(&self, folder: impl AsRef<Path>) -> Result<(), DriverError> {
        self.kernels
            .use_cache(KernelCache::open(folder.as_ref(), None)?);
        Ok(())
    }

    /// [`CudaDevice::keep_kernels_in`], but this `ptxas` compiles kernels that are not there yet, including flash3's. A kernel is found again if the
    /// same version of `ptxas` has compiled it. The driver compiles what `ptxas` does not, and kernels that it does not accept from `ptxas`, for
    /// instance if that is of a newer release of CUDA than the driver: [`CudaDevice::kernel_cache_use`] counts them and says why.
    pub fn keep_kernels_by(
        &self,
        ptxas: Ptxas,
        folder: impl AsRef<Path>,
    ) -> Result<(), DriverError> {
        self.kernels
            .use_cache(KernelCache::open(folder.as_ref(), Some(ptxas))?);
        Ok(())
    }

    /// The full path of the folder of [`CudaDevice::keep_kernels_in`], if there is one.
    pub fn kernel_cache(&self) -> Option<PathBuf> {
        let cache = self.kernels.cache()?;
        Some(cache.folder().to_owned())
    }

    /// Statistics of this folder so far; `None` without one.
    pub fn kernel_cache_use(&self) -> KernelCacheUse {
        let cache = self.kernels.cache();
        cache.map_or_else(KernelCacheUse::default, |cache| cache.so_far().clone())
    }

    /// The kernel of a variant with a spec; it is compiled when it is first asked for.
    pub fn kernel(
        &self,
        variant: &'static Variant,
        spec: Spec,
    ) -> Result<Arc<Kernel>, DriverError> {
        self.edited_kernel(variant, spec, None)
    }

    /// The same with an optional expression that edits the scores.
    pub fn edited_kernel(
        &self,
        variant: &'static Variant,
        spec: Spec,
        edit: Option<Kept>,
    ) -> Result<Arc<Kernel>, DriverError> {
        match self.kernels.get(variant, spec, edit) {
            Some(kernel) => Ok(kernel),
            None => {
                let _current = self.enter()?;
                self.kernels.load(variant, spec, edit)
            }
        }
    }

    /// Whether the device works in this context.
    pub(super) fn is_of(&self, context: CUcontext) -> bool {
        self.context.handle() == context
    }

    /// Makes the device's context current in this thread, until the guard is dropped.
    pub(super) fn enter(&self) -> Result<Current, DriverError> {
        Current::enter(self.context.handle())
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // Errors are those of earlier work, or of a context that is gone with all it held: nothing is left to do.
        if let Ok(_current) = self.enter() {
            let _ = extra::context::synchronize();
            drop(std::mem::take(&mut *self.retired()));
            self.kernels.unload();
        }
    }
}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            ordinal,
            uuid,
            driver_version,
            info,
            ..
        } = self;
        f.debug_struct("CudaDevice")
            .field("ordinal", ordinal)
            .field("uuid", uuid)
            .field("driver_version", driver_version)
            .field("info", info)
            .finish_non_exhaustive()
    }
}

fn read_info(device: CUdevice) -> Result<DeviceInfo, DriverError> {
    let attribute = |which| extra::device::attribute(device, which);
    Ok(DeviceInfo {
        name: extra::device::name(device)?,
        compute_capability: (
            attribute(Attribute::ComputeCapabilityMajor)?,
            attribute(Attribute::ComputeCapabilityMinor)?,
        ),
        n_sms: attribute(Attribute::MultiprocessorCount)?,
        shared_bytes_per_block: attribute(Attribute::MaxSharedBytesPerBlock)?,
        memory_bytes: extra::device::total_memory(device)? as u64,
        thresholds: Thresholds::MEASURED,
    })
}

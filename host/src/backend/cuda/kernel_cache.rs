//! Cubins in a folder: later processes load what one process has had compiled.
//!
//! A file lies under the name of its variant, the digest of its text and of the compute capability that it is for, and what compiled it (`source`). It begins with a
//! header: what it is, the format, the digest of all that (its key), and length and digest of the cubin that follows. A file that is damaged, or has
//! another key, is compiled again and replaced; it is never loaded. Files are written under a temporary name and renamed, so that processes may share a folder.
//!
//! If the program names a `ptxas` ([`Ptxas`]), it compiles all kernels. The driver compiles what `ptxas` does not, and those of its cubins that the
//! driver does not load; they are counted.
//!
//! Without one, cubins come from the driver's linker, the only part of the driver that returns them. It compiles every text as relocatable code, in
//! which `ptxas` ignores `setmaxnreg` ("Miscellaneous Instructions" of the PTX ISA): consumers of flash3 would spill registers that the producer
//! never gives back. So kernels with `setmaxnreg` are compiled as without a folder, and left to the driver's own cache, unless a `ptxas` has stored them before.

mod compiler;
mod file;
mod outcome;
mod ptxas;
mod source;

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ferroflash_driver::Version;
use ferroflash_driver::extra::module::{self, Image, JitLog, LoadError};
use ferroflash_driver::sys::CUmodule;
use ferroflash_kernels::variants::Variant;

pub use compiler::{CompiledKernel, KernelCompiler};
pub use file::Damage;
pub use outcome::{CacheFault, KernelCacheUse, Origin};
pub use ptxas::Ptxas;
use source::{Key, Source, of_driver};

use crate::error::DriverError;

/// The target of the code, and its compiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) compute_capability: (u32, u32),
    pub(super) driver_version: Version,
}

/// A kernel, loaded.
pub(super) struct Loaded {
    pub(super) module: CUmodule,
    pub(super) log: JitLog,
    pub(super) origin: Origin,
    /// The file of its cubin, if `ptxas` has made it.
    pub(super) by_ptxas: Option<PathBuf>,
}

/// What the driver returns for a cubin that it will never accept, such as one of a newer release of CUDA than its own: `CUDA_ERROR_INVALID_IMAGE`,
/// `_NO_BINARY_FOR_GPU`,
/// `_UNSUPPORTED_PTX_VERSION`, `_INVALID_SOURCE`.
const NEVER: [u32; 4] = [200, 209, 222, 300];

/// A folder of cubins.
#[derive(Debug)]
pub(super) struct KernelCache {
    folder: PathBuf,
    ptxas: Option<Ptxas>,
    /// Compilers whose cubins the driver does not accept.
    refused: Mutex<BTreeSet<String>>,
    so_far: Mutex<KernelCacheUse>,
}

impl KernelCache {
    /// A folder, which is created if it does not exist. It has to be readable and writable.
    pub(super) fn open(folder: &Path, ptxas: Option<Ptxas>) -> Result<KernelCache, DriverError> {
        let failed = |what| {
            move |error: std::io::Error| DriverError::KernelCache {
                folder: folder.to_owned(),
                needed: what,
                kind: error.kind(),
                detail: error.to_string(),
            }
        };
        fs::create_dir_all(folder).map_err(failed("made"))?;
        // The program may go to another folder later.
        let whole = fs::canonicalize(folder).map_err(failed("found"))?;
        fs::read_dir(&whole).map_err(failed("read"))?;
        temporary(&whole).map_err(failed("written to"))?;
        Ok(KernelCache {
            folder: whole,
            ptxas,
            refused: Mutex::default(),
            so_far: Mutex::default(),
        })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn ptxas(&self) -> Option<&Ptxas> {
        self.ptxas.as_ref()
    }

    /// Its statistics.
    pub(super) fn so_far(&self) -> MutexGuard<'_, KernelCacheUse> {
        self.so_far.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts something that went wrong.
    fn fault(&self, count: fn(&mut KernelCacheUse) -> &mut u64, fault: CacheFault) {
        let mut so_far = self.so_far();
        *count(&mut so_far) += 1;
        so_far.last_fault = Some(fault);
    }

    /// Loads a kernel into the current context: the cubin in the folder, or else one that is compiled now and stored there. Without `ptxas`, a
    /// kernel with `setmaxnreg` that is not there is left to the driver.
    ///
    /// # Safety
    /// A context is current, of a device of the target's compute capability.
    pub(super) unsafe fn load(
        &self,
        variant: &Variant,
        ptx: &CStr,
        target: Target,
    ) -> Result<Loaded, LoadError> {
        let source = Source::new(variant, ptx, target.compute_capability);
        let driver = of_driver(target.driver_version);
        // SAFETY: the caller's contract.
        unsafe {
            if let Some(ptxas) = &self.ptxas
                && let Some(loaded) = self.by_ptxas(ptxas, &source)
            {
                return Ok(loaded);
            }
            if !source.shares_registers_out()
                && let Some(loaded) = self.cached(&source, &driver)
            {
                return Ok(loaded);
            }
            let mut others = self.others(&source).into_iter();
            if let Some(loaded) = others.find_map(|compiler| self.cached(&source, &compiler)) {
                return Ok(loaded);
            }
            self.by_driver(&source, &driver)
        }
    }

    /// The same for a kernel whose cubin by `ptxas` is as `detail` says: the driver compiles it.
    ///
    /// # Safety
    /// As for [`KernelCache::load`].
    pub(super) unsafe fn load_without_ptxas(
        &self,
        variant: &Variant,
        ptx: &CStr,
        target: Target,
        file: PathBuf,
        detail: String,
    ) -> Result<Loaded, LoadError> {
        self.fault(
            |so_far| &mut so_far.n_fell_back,
            CacheFault::WouldHang { file, detail },
        );
        let source = Source::new(variant, ptx, target.compute_capability);
        // SAFETY: the caller's contract.
        unsafe { self.by_driver(&source, &of_driver(target.driver_version)) }
    }

    /// The kernel compiled by `ptxas`, now or earlier; `None` if it does not compile, or the driver does not accept the result.
    ///
    /// # Safety
    /// As for [`KernelCache::load`].
    unsafe fn by_ptxas(&self, ptxas: &Ptxas, source: &Source) -> Option<Loaded> {
        // SAFETY: the caller's contract.
        if let Some(loaded) = unsafe { self.cached(source, ptxas.label()) } {
            return Some(loaded);
        }
        let fell_back = |fault| self.fault(|so_far| &mut so_far.n_fell_back, fault);
        if self.is_refused(ptxas.label()) {
            self.so_far().n_fell_back += 1;
            return None;
        }
        let target = source.compute_capability;
        let assembled = ptxas.assemble(source.variant, source.ptx, target, &self.folder);
        let assembled = assembled.map_err(|error| fell_back(error.into())).ok()?;
        let file = self.folder.join(source.file_name(ptxas.label()));
        let bytes = file::with_header(source.key(ptxas.label()), &assembled.cubin);
        // Before the driver sees it: where it refuses it, the next process need not compile to know that.
        let written = self.written(&file, &bytes, Origin::Assembled);
        // SAFETY: the caller's contract; `ptxas` has just made the cubin and reported success.
        match unsafe { module::load(Image::Binary(&assembled.cubin)) } {
            Ok((module, _)) => Some(Loaded {
                module,
                log: JitLog {
                    info: assembled.said,
                    errors: String::new(),
                },
                origin: written,
                by_ptxas: Some(file),
            }),
            Err(error) => {
                self.refuse(ptxas.label(), &error);
                let source = Box::new(error);
                fell_back(CacheFault::Refused { file, source });
                None
            }
        }
    }

    /// The kernel compiled by the driver.
    ///
    /// # Safety
    /// As for [`KernelCache::load`].
    unsafe fn by_driver(&self, source: &Source, driver: &str) -> Result<Loaded, LoadError> {
        if source.shares_registers_out() {
            // SAFETY: the caller's contract.
            let (module, log) = unsafe { module::load(Image::Ptx(source.ptx)) }?;
            self.so_far().n_not_kept += 1;
            return Ok(Loaded {
                module,
                log,
                origin: Origin::NotKept,
                by_ptxas: None,
            });
        }
        // SAFETY: the caller's contract; the driver has just made the cubin.
        let (module, log, cubin) = unsafe {
            let (cubin, log) = module::compile(source.ptx)?;
            let (module, _) = module::load(Image::Binary(&cubin))?;
            (module, log, cubin)
        };
        let file = self.folder.join(source.file_name(driver));
        let bytes = file::with_header(source.key(driver), &cubin);
        Ok(Loaded {
            module,
            log,
            origin: self.written(&file, &bytes, Origin::Compiled),
            by_ptxas: None,
        })
    }

    /// The kernel of the file of a compiler, loaded, if there is one. A file that cannot be used is counted.
    ///
    /// # Safety
    /// As for [`KernelCache::load`].
    unsafe fn cached(&self, source: &Source, compiler: &str) -> Option<Loaded> {
        if self.is_refused(compiler) {
            return None;
        }
        let file = self.folder.join(source.file_name(compiler));
        // SAFETY: the caller's contract.
        match unsafe { load_file(&file, source.key(compiler)) } {
            Ok(None) => None,
            Ok(Some((module, log))) => {
                self.so_far().n_loaded += 1;
                Some(Loaded {
                    module,
                    log,
                    origin: Origin::Cache,
                    by_ptxas: Some(file).filter(|_| compiler.starts_with(ptxas::LABEL)),
                })
            }
            Err(fault) => {
                if let CacheFault::Refused { source, .. } = &fault {
                    self.refuse(compiler, source);
                }
                self.fault(|so_far| &mut so_far.n_unusable, fault);
                None
            }
        }
    }

    /// Other versions of `ptxas` than the program's own that have left a file of a kernel, by name.
    fn others(&self, source: &Source) -> BTreeSet<String> {
        // A folder that cannot be read has none.
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let named = entries.filter_map(|entry| source.compiler_of(entry.file_name().to_str()?));
        let own = self.ptxas.as_ref().map(Ptxas::label);
        named
            .filter(|name| name.starts_with(ptxas::LABEL) && Some(name.as_str()) != own)
            .collect()
    }

    /// Writes a file, and says where the kernel came from: as `origin` does where that succeeds.
    fn written(&self, file: &Path, bytes: &[u8], origin: Origin) -> Origin {
        match write(&self.folder, file, bytes) {
            Ok(()) => {
                self.so_far().n_written += 1;
                origin
            }
            Err(error) => {
                let fault = CacheFault::NotWritten {
                    file: file.to_owned(),
                    kind: error.kind(),
                    detail: error.to_string(),
                };
                self.fault(|so_far| &mut so_far.n_not_written, fault);
                Origin::NotWritten
            }
        }
    }

    fn is_refused(&self, compiler: &str) -> bool {
        self.refused().contains(compiler)
    }

    /// Stops using the cubins of a `ptxas`, if the driver says that it will never accept them.
    fn refuse(&self, compiler: &str, error: &LoadError) {
        let never = error
            .source
            .code()
            .is_some_and(|code| NEVER.contains(&code));
        if never && compiler.starts_with(ptxas::LABEL) {
            self.refused().insert(compiler.to_owned());
        }
    }

    fn refused(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The kernel of a file, loaded, if there is one.
///
/// # Safety
/// As for [`KernelCache::load`].
unsafe fn load_file(path: &Path, key: Key) -> Result<Option<(CUmodule, JitLog)>, CacheFault> {
    let file = || path.to_owned();
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Err(CacheFault::NotRead {
                file: file(),
                kind: error.kind(),
                detail: error.to_string(),
            });
        }
    };
    let cubin = file::cubin(key, &bytes).map_err(|damage| CacheFault::Damaged {
        file: file(),
        damage,
    })?;
    // SAFETY: the caller's contract. The cubin is whole: its digest is that which was written beside it.
    let loaded = unsafe { module::load(Image::Binary(cubin)) };
    loaded.map(Some).map_err(|source| CacheFault::Refused {
        file: file(),
        source: Box::new(source),
    })
}

/// A file of the folder under a name that no other has. It is gone when it is dropped.
fn temporary(folder: &Path) -> std::io::Result<tempfile::NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".").suffix(".partial");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // As other files: users may share a folder.
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(folder)
}

/// Writes a file, whole or not at all.
fn write(folder: &Path, to: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = temporary(folder)?;
    file.write_all(bytes)?;
    file.persist(to).map_err(|refused| refused.error)?;
    Ok(())
}

//! Cubins in a folder: what one process has had compiled, later ones load.
//!
//! A file lies under the name of its variant and the digest of all that it was compiled from (`Key`). It begins with a header: what it is, the
//! format, that digest again, and length and digest of the cubin behind it. A file that is not whole, or not of this key, is compiled anew and
//! replaced; it is never loaded. Files are written under a temporary name and renamed, so that processes may share a folder.
//!
//! Cubins come from the driver's linker: only it hands them out. It compiles every text as relocatable code, in which `ptxas` ignores `setmaxnreg`
//! ("Miscellaneous Instructions" of the PTX ISA): consumers of flash3 would spill registers that the producer never gives back. Kernels that share registers
//! out are therefore compiled as without a folder, and left to the driver's own cache.

mod file;

use std::ffi::CStr;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ferroflash_driver::Version;
use ferroflash_driver::extra::module::{self, Image, JitLog, LoadError};
use ferroflash_driver::sys::CUmodule;
use ferroflash_kernels::variants::Variant;
use sha2::{Digest, Sha256};

pub use file::Damage;

use crate::error::DriverError;

/// Where the code of a kernel came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The driver compiled it, or had it in a cache of its own; there was no kernel cache.
    Driver,
    /// The driver compiled it, and it lies in the kernel cache now.
    Compiled,
    /// The driver compiled it, and it could not be written to the kernel cache: [`KernelCacheUse::last_fault`] says why.
    NotWritten,
    /// The kernel cache had it: nothing was compiled.
    Cache,
    /// The driver compiled it, or had it in a cache of its own: a kernel cache holds no kernels whose warpgroups share registers out, as flash3's do.
    NotKept,
}

impl Origin {
    /// In words.
    pub fn in_words(self) -> &'static str {
        match self {
            Origin::Driver => "from the driver",
            Origin::Compiled => "compiled, and written to the kernel cache",
            Origin::NotWritten => "compiled; the kernel cache could not be written",
            Origin::Cache => "from the kernel cache",
            Origin::NotKept => {
                "from the driver; the kernel cache holds none that share registers out"
            }
        }
    }
}

/// What has come of a kernel cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelCacheUse {
    /// Kernels that it had.
    pub n_loaded: u64,
    /// Kernels that were compiled and written to it.
    pub n_written: u64,
    /// Kernels that were compiled and could not be written.
    pub n_not_written: u64,
    /// Kernels that it never holds: [`Origin::NotKept`].
    pub n_not_kept: u64,
    /// Files that could not be used: their kernels were compiled anew.
    pub n_unusable: u64,
    /// The last of what went wrong, if anything did.
    pub last_fault: Option<CacheFault>,
}

/// What went wrong with a file of a kernel cache. No call fails for it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CacheFault {
    /// It is no whole file of this cache.
    #[error("{}: {damage}", file.display())]
    Damaged {
        /// Which.
        file: PathBuf,
        /// What is wrong with it.
        damage: Damage,
    },
    /// It is whole, and the driver would not load it.
    #[error("{}: the driver refused it: {source}", file.display())]
    Refused {
        /// Which.
        file: PathBuf,
        /// What the driver said.
        source: Box<LoadError>,
    },
    /// It cannot be read.
    #[error("{} cannot be read: {detail}", file.display())]
    NotRead {
        /// Which.
        file: PathBuf,
        /// What the system says.
        kind: ErrorKind,
        /// The same in words.
        detail: String,
    },
    /// It cannot be written.
    #[error("{} cannot be written: {detail}", file.display())]
    NotWritten {
        /// Which.
        file: PathBuf,
        /// What the system says.
        kind: ErrorKind,
        /// The same in words.
        detail: String,
    },
}

/// What code is compiled for, and by what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) compute_capability: (u32, u32),
    pub(super) driver_version: Version,
}

/// The digest of all that a cubin is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key([u8; 32]);

impl Key {
    /// Of a text as the driver gets it.
    fn of(ptx: &CStr, target: Target) -> Key {
        let (major, minor) = target.compute_capability;
        let Version {
            major: driver_major,
            minor: driver_minor,
        } = target.driver_version;
        let mut digest = Sha256::new();
        for number in [file::FORMAT, major, minor, driver_major, driver_minor] {
            digest.update(number.to_le_bytes());
        }
        digest.update(ptx.to_bytes());
        Key(digest.finalize().into())
    }

    /// In hexadecimal digits.
    fn digits(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// A folder of cubins.
#[derive(Debug)]
pub(super) struct KernelCache {
    folder: PathBuf,
    so_far: Mutex<KernelCacheUse>,
}

impl KernelCache {
    /// A folder, which is made where there is none. It has to be readable and writable.
    pub(super) fn open(folder: &Path) -> Result<KernelCache, DriverError> {
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
            so_far: Mutex::default(),
        })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// What has come of it.
    pub(super) fn so_far(&self) -> MutexGuard<'_, KernelCacheUse> {
        self.so_far.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads a kernel into the current context: the cubin that lies in the folder, or else one that the driver compiles and that lies there
    /// from then on. One that shares registers out comes from the driver alone.
    ///
    /// # Safety
    /// A context is current, of a device of the target's compute capability.
    pub(super) unsafe fn load(
        &self,
        variant: &Variant,
        ptx: &CStr,
        target: Target,
    ) -> Result<(CUmodule, JitLog, Origin), LoadError> {
        if variant.footprint.launch_registers > 0 {
            // Its warpgroups share registers out.
            // SAFETY: the caller's contract.
            let (module, log) = unsafe { module::load(Image::Ptx(ptx)) }?;
            self.so_far().n_not_kept += 1;
            return Ok((module, log, Origin::NotKept));
        }
        let key = Key::of(ptx, target);
        let file = self
            .folder
            .join(format!("{}.{}.cubin", variant.name, key.digits()));
        // SAFETY: the caller's contract.
        match unsafe { cached(&file, key) } {
            Ok(Some((module, log))) => {
                self.so_far().n_loaded += 1;
                return Ok((module, log, Origin::Cache));
            }
            Ok(None) => {}
            Err(fault) => {
                let mut so_far = self.so_far();
                so_far.n_unusable += 1;
                so_far.last_fault = Some(fault);
            }
        }
        // SAFETY: the caller's contract; the driver has just made the cubin.
        let (module, log, cubin) = unsafe {
            let (cubin, log) = module::compile(ptx)?;
            let (module, _) = module::load(Image::Binary(&cubin))?;
            (module, log, cubin)
        };
        let written = write(&self.folder, &file, &file::with_header(key, &cubin));
        let mut so_far = self.so_far();
        let origin = match written {
            Ok(()) => {
                so_far.n_written += 1;
                Origin::Compiled
            }
            Err(error) => {
                so_far.n_not_written += 1;
                so_far.last_fault = Some(CacheFault::NotWritten {
                    file,
                    kind: error.kind(),
                    detail: error.to_string(),
                });
                Origin::NotWritten
            }
        };
        Ok((module, log, origin))
    }
}

/// The kernel of a file, loaded, if there is one.
///
/// # Safety
/// As for [`KernelCache::load`].
unsafe fn cached(path: &Path, key: Key) -> Result<Option<(CUmodule, JitLog)>, CacheFault> {
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

//! The statistics of a kernel cache: the origins of kernels, and errors with files.

use std::io::ErrorKind;
use std::path::PathBuf;

use ferroflash_driver::extra::module::LoadError;

use super::Damage;
use crate::error::PtxasError;

/// The origin of a kernel's code.
///
/// The [module](crate::backend::cuda) has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The driver compiled it, or had it in its own cache; there was no kernel cache.
    Driver,
    /// The driver compiled it, and it is in the kernel cache now.
    Compiled,
    /// `ptxas` compiled it, and it is in the kernel cache now.
    Assembled,
    /// It was compiled, and could not be written to the kernel cache: [`KernelCacheUse::last_fault`] says why.
    NotWritten,
    /// The kernel cache had it: nothing was compiled.
    Cache,
    /// The driver compiled it, or had it in its own cache: it uses `setmaxnreg`, as flash3's kernels do, and the kernel cache holds such kernels
    /// only if `ptxas` has compiled them.
    NotKept,
}

impl Origin {
    /// In words.
    pub fn in_words(self) -> &'static str {
        match self {
            Origin::Driver => "from the driver",
            Origin::Compiled => "compiled, and written to the kernel cache",
            Origin::Assembled => "compiled by ptxas, and written to the kernel cache",
            Origin::NotWritten => "compiled; the kernel cache could not be written",
            Origin::Cache => "from the kernel cache",
            Origin::NotKept => {
                "from the driver; without ptxas the kernel cache holds none that share registers out"
            }
        }
    }
}

/// The statistics of a kernel cache.
///
/// The [module](crate::backend::cuda) has an example.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelCacheUse {
    /// Kernels found in it.
    pub n_loaded: u64,
    /// Kernels that were compiled and written to it.
    pub n_written: u64,
    /// Kernels that were compiled and could not be written.
    pub n_not_written: u64,
    /// Kernels that it does not hold: [`Origin::NotKept`].
    pub n_not_kept: u64,
    /// Kernels that `ptxas` did not compile, or whose cubin the driver does not accept: the driver compiled them.
    pub n_fell_back: u64,
    /// Files that could not be used: their kernels were compiled again.
    pub n_unusable: u64,
    /// The last error, if there was one.
    pub last_fault: Option<CacheFault>,
}

/// An error with a file of a kernel cache. No call fails because of it.
///
/// The [module](crate::backend::cuda) has an example.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CacheFault {
    /// It is not a valid file of this cache.
    #[error("{}: {damage}", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        damage: Damage,
    },
    /// It is valid, and the driver did not load it.
    #[error("{}: the driver refused it: {source}", file.display())]
    Refused {
        /// The file.
        file: PathBuf,
        /// What the driver said.
        source: Box<LoadError>,
    },
    /// Its kernel, compiled by `ptxas`, would deadlock.
    #[error("{}: {detail}", file.display())]
    WouldHang {
        /// The file.
        file: PathBuf,
        /// What is wrong with the kernel.
        detail: String,
    },
    /// `ptxas` did not compile a kernel.
    #[error(transparent)]
    NotAssembled(#[from] PtxasError),
    /// It cannot be read.
    #[error("{} cannot be read: {detail}", file.display())]
    NotRead {
        /// The file.
        file: PathBuf,
        /// The system's error.
        kind: ErrorKind,
        /// The error as text.
        detail: String,
    },
    /// It cannot be written.
    #[error("{} cannot be written: {detail}", file.display())]
    NotWritten {
        /// The file.
        file: PathBuf,
        /// The system's error.
        kind: ErrorKind,
        /// The error as text.
        detail: String,
    },
}

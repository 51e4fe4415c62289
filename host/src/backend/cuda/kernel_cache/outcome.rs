//! What comes of a kernel cache: where kernels came from, and what went wrong with files.

use std::io::ErrorKind;
use std::path::PathBuf;

use ferroflash_driver::extra::module::LoadError;

use super::Damage;
use crate::error::PtxasError;

/// Where the code of a kernel came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The driver compiled it, or had it in a cache of its own; there was no kernel cache.
    Driver,
    /// The driver compiled it, and it lies in the kernel cache now.
    Compiled,
    /// `ptxas` compiled it, and it lies in the kernel cache now.
    Assembled,
    /// It was compiled, and could not be written to the kernel cache: [`KernelCacheUse::last_fault`] says why.
    NotWritten,
    /// The kernel cache had it: nothing was compiled.
    Cache,
    /// The driver compiled it, or had it in a cache of its own: its warpgroups share registers out, as flash3's do, and the kernel cache holds such kernels only where `ptxas` has
    /// compiled them.
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

/// What has come of a kernel cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelCacheUse {
    /// Kernels that it had.
    pub n_loaded: u64,
    /// Kernels that were compiled and written to it.
    pub n_written: u64,
    /// Kernels that were compiled and could not be written.
    pub n_not_written: u64,
    /// Kernels that it does not hold: [`Origin::NotKept`].
    pub n_not_kept: u64,
    /// Kernels that `ptxas` was to compile and did not, or whose cubin the driver does not take: the driver compiled them.
    pub n_fell_back: u64,
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
    /// Its kernel, compiled by `ptxas`, would wait without end.
    #[error("{}: {detail}", file.display())]
    WouldHang {
        /// Which.
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

//! Why `ptxas`, where a program names one, compiles nothing.

use std::io::ErrorKind;
use std::path::PathBuf;

use ferroflash_driver::Version;

/// Why `ptxas` made no cubin.
///
/// The [module](crate::error) has an example.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PtxasError {
    /// It cannot be started.
    #[error("{} cannot be run: {detail}", program.display())]
    NotRun {
        /// Which.
        program: PathBuf,
        /// What the system says.
        kind: ErrorKind,
        /// The same in words.
        detail: String,
    },
    /// It does not say, as `ptxas --version` does, of which release of CUDA it is.
    #[error("{} --version names no release of CUDA; it says {said:?}", program.display())]
    NoVersion {
        /// Which.
        program: PathBuf,
        /// What it says instead.
        said: String,
    },
    /// It is older than the PTX of a kernel.
    #[error("{} is of CUDA {release}; kernel {kernel} needs {needed}", program.display())]
    TooOld {
        /// Which.
        program: PathBuf,
        /// Of which release it is.
        release: Version,
        /// Name of the variant.
        kernel: &'static str,
        /// The oldest release that reads its PTX.
        needed: Version,
    },
    /// It fails, or says that the kernel would not be what it should be.
    #[error("{} does not compile kernel {kernel}: {said}", program.display())]
    Refused {
        /// Which.
        program: PathBuf,
        /// Name of the variant.
        kernel: &'static str,
        /// What it says.
        said: String,
    },
    /// A file that it needs cannot be written, or what it wrote cannot be read.
    #[error("a file for {} in {}: {detail}", program.display(), folder.display())]
    File {
        /// Which.
        program: PathBuf,
        /// Where the file was to be.
        folder: PathBuf,
        /// What the system says.
        kind: ErrorKind,
        /// The same in words.
        detail: String,
    },
}

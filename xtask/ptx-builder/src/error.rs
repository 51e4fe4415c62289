//! What can go wrong, one line each.

use std::io;
use std::path::{Path, PathBuf};

use ferroflash_kernels::spec::text::SpecialiseError;

/// Why the kernels were not built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No compiler with the sources of its `core` was found.
    #[error("no kernel compiler: {}", candidates.join("; "))]
    NoCompiler {
        /// Each candidate with the reason why it does not serve.
        candidates: Vec<String>,
    },
    /// The compiler that was asked for does not serve.
    #[error("the compiler {}: {reason}", rustc.display())]
    Unusable {
        /// The compiler.
        rustc: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The name of an architecture cannot be read.
    #[error("unknown architecture `{given}`; it is written like sm_80 or sm_90a")]
    UnknownArch {
        /// The name.
        given: String,
    },
    /// No row of the list is built for the architecture.
    #[error("no kernel of the list is built for `{given}`")]
    NoRows {
        /// The architecture.
        given: String,
    },
    /// rustc refused the source.
    #[error("rustc could not compile {what}:\n{message}")]
    Rustc {
        /// What was compiled.
        what: String,
        /// All that rustc said.
        message: String,
    },
    /// The entries of the PTX are not those of the list.
    #[error("the PTX and the list of kernels differ: missing [{}], not in the list [{}]", missing.join(", "), extra.join(", "))]
    Entries {
        /// Rows without an entry.
        missing: Vec<String>,
        /// Entries without a row.
        extra: Vec<String>,
    },
    /// A kernel does not ask for the constants that the list says.
    #[error("{entry}: {error}; `Kind::capabilities` says which constants a kernel asks for")]
    Constants {
        /// The kernel.
        entry: &'static str,
        /// What does not fit.
        error: SpecialiseError,
    },
    /// The PTX text has a form that is not known here.
    #[error("cannot read rustc's PTX: {reason}")]
    Ptx {
        /// What was found.
        reason: String,
    },
    /// A file or program could not be used.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file, folder or program.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}

/// Adds the path to an error of the system.
pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |error| Error::Io {
        path: path.to_owned(),
        error,
    }
}

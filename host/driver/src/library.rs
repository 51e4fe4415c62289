//! The driver library: opened once per process, never closed.

use std::ffi::{CStr, c_int};
use std::fmt;
use std::sync::OnceLock;

use libloading::Library;

use crate::entry::entry;
use crate::error::DriverError;

/// The file name of the driver, looked up by the dynamic linker's rules.
pub const LIBRARY: &str = "libcuda.so.1";

static OPENED: OnceLock<Result<Driver, MissingDriver>> = OnceLock::new();

/// Whether this machine has a CUDA driver library; it may have no devices.
pub fn driver_present() -> bool {
    Driver::get().is_ok()
}

/// The opened driver library.
#[derive(Debug)]
pub struct Driver {
    source: Source,
}

/// There is no driver library that can be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no CUDA driver: {library} could not be opened: {reason}")]
pub struct MissingDriver {
    /// The file that was looked for.
    pub library: String,
    /// The dynamic linker's error.
    pub reason: String,
}

/// A version of CUDA: of a driver, or required by a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// 13 of 13.1.
    pub major: u32,
    /// 1 of 13.1.
    pub minor: u32,
}

/// The source of functions.
#[derive(Debug)]
enum Source {
    /// A shared library.
    Library(Library),
    /// Functions of this process, in place of a library.
    #[cfg(any(test, feature = "fake"))]
    Functions(&'static [(&'static str, crate::entry::Address)]),
}

impl Driver {
    /// The driver of this machine, opened at the first call.
    pub fn get() -> Result<&'static Driver, &'static MissingDriver> {
        OPENED.get_or_init(|| Driver::open(LIBRARY)).as_ref()
    }

    /// Opens a driver library by its file name or path.
    fn open(library: &str) -> Result<Driver, MissingDriver> {
        // SAFETY: libcuda's initialisers may be run at any time and in any thread. A program that puts another
        // library of this name into the linker's path has replaced its driver, as with a library linked in.
        match unsafe { Library::new(library) } {
            Ok(library) => Ok(Driver {
                source: Source::Library(library),
            }),
            Err(error) => Err(MissingDriver {
                library: library.to_owned(),
                reason: reason(&error),
            }),
        }
    }

    /// The address of a function that the driver exports under exactly this name, version suffix included.
    ///
    /// `cuGetProcAddress` is not used: for a plain name it chooses a version, and with it other parameters.
    pub fn symbol(&self, name: &CStr) -> Option<*const ()> {
        match &self.source {
            Source::Library(library) => {
                // SAFETY: the symbol is taken as an address; who calls it gives it a type.
                let symbol = unsafe { library.get::<*const ()>(name.to_bytes_with_nul()) };
                symbol
                    .ok()
                    .map(|symbol| *symbol)
                    .filter(|address| !address.is_null())
            }
            #[cfg(any(test, feature = "fake"))]
            Source::Functions(functions) => {
                let found = functions
                    .iter()
                    .find(|(known, _)| known.as_bytes() == name.to_bytes());
                found.map(|(_, address)| address.0)
            }
        }
    }

    /// The newest version of CUDA that the driver supports.
    pub fn version(&self) -> Result<Version, DriverError> {
        let mut version: c_int = 0;
        let to = &raw mut version;
        entry!(cuDriverGetVersion(to: *mut c_int))?;
        Ok(Version::from_driver(version))
    }
}

impl Version {
    /// From the driver's encoding, 1000 · major + 10 · minor.
    pub fn from_driver(encoded: c_int) -> Version {
        let encoded = encoded.max(0) as u32;
        Version {
            major: encoded / 1000,
            minor: encoded % 1000 / 10,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The dynamic linker's words, which libloading keeps as the source of its error.
fn reason(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// The process already has its driver, or has looked for it.
#[cfg(any(test, feature = "fake"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the driver was opened before")]
pub(crate) struct AlreadyOpened;

/// Replaces the driver library by functions of this process; call it before anything else asks for the driver.
///
/// # Safety
/// Each function has the type that cuda.h gives to its name, returning `u32`.
#[cfg(any(test, feature = "fake"))]
pub(crate) unsafe fn install(
    functions: &'static [(&'static str, crate::entry::Address)],
) -> Result<(), AlreadyOpened> {
    OPENED
        .set(Ok(Driver {
            source: Source::Functions(functions),
        }))
        .map_err(|_| AlreadyOpened)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_reported_with_the_linkers_words() {
        let missing = Driver::open("libno-such-driver.so.1").unwrap_err();
        assert_eq!(missing.library, "libno-such-driver.so.1");
        assert!(missing.reason.contains("No such file"), "{missing}");
    }

    #[test]
    fn symbols_are_found_by_their_exact_name() {
        let library = Driver::open("libm.so.6").unwrap();
        assert!(library.symbol(c"cosf").is_some());
        assert!(library.symbol(c"cosf_v2").is_none());
    }

    #[test]
    fn versions_are_decoded_and_ordered() {
        let versions = [11040, 12000, 12090, 13000].map(Version::from_driver);
        assert_eq!(
            versions.map(|version| version.to_string()),
            ["11.4", "12.0", "12.9", "13.0"]
        );
        assert!(versions.is_sorted());
        assert_eq!(Version::from_driver(-1), Version { major: 0, minor: 0 });
    }
}

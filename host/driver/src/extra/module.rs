//! Code: compiled for the current context, and loaded into it.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;

use crate::error::DriverError;
use crate::sys::{CUfunction, CUlinkState, CUmodule};

calls! {
    unsafe fn load_data(
        image: *const c_void, n_options: c_uint, options: *mut c_int, values: *mut *mut c_void,
    ) -> CUmodule = cuModuleLoadDataEx(
        &mut, image: *const c_void, n_options: c_uint, options: *mut c_int, values: *mut *mut c_void
    );
    unsafe fn get_function(module: CUmodule, name: *const c_char) -> CUfunction =
        cuModuleGetFunction(&mut, module: CUmodule, name: *const c_char);
    unsafe fn create_linker(n_options: c_uint, options: *mut c_int, values: *mut *mut c_void) -> CUlinkState =
        cuLinkCreate_v2(n_options: c_uint, options: *mut c_int, values: *mut *mut c_void, &mut);
    unsafe fn add_ptx(state: CUlinkState, text: *mut c_void, n_bytes: usize) = cuLinkAddData_v2(
        state: CUlinkState, INPUT_PTX: c_int, text: *mut c_void, n_bytes: usize, NAME: *const c_char,
        NO_OPTIONS: c_uint, NO_NAMES: *mut c_int, NO_VALUES: *mut *mut c_void
    );
    unsafe fn complete(state: CUlinkState, cubin: *mut *mut c_void, n_bytes: *mut usize) =
        cuLinkComplete(state: CUlinkState, cubin: *mut *mut c_void, n_bytes: *mut usize);
    unsafe fn destroy_linker(state: CUlinkState) = cuLinkDestroy(state: CUlinkState);

    /// Unloads code.
    ///
    /// # Safety
    /// `module` is loaded, its context is current, and nothing uses its functions afterwards.
    pub unsafe fn unload(module: CUmodule) = cuModuleUnload(module: CUmodule);
}

/// Code for the driver to load.
#[derive(Clone, Copy, Debug)]
pub enum Image<'a> {
    /// PTX, to be compiled by the driver.
    Ptx(&'a CStr),
    /// A cubin or fatbin.
    Binary(&'a [u8]),
}

/// The logs of the driver's compiler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JitLog {
    /// Notes; empty when the result came from the driver's cache.
    pub info: String,
    /// Errors.
    pub errors: String,
}

/// The driver could not load code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{source}{}", log.suffix())]
pub struct LoadError {
    /// The code that it returned.
    pub source: DriverError,
    /// The logs of its compiler.
    pub log: JitLog,
}

impl JitLog {
    /// The errors as the end of a message: on their own lines, or nothing.
    fn suffix(&self) -> String {
        if self.errors.is_empty() {
            String::new()
        } else {
            format!("\n{}", self.errors)
        }
    }
}

/// Bytes kept of each of the compiler's two logs.
const LOG_BYTES: usize = 16 * 1024;

/// `CU_JIT_INPUT_PTX`.
const INPUT_PTX: c_int = 1;
/// The compiler's type of a text, and the options for it: none.
const NAME: *const c_char = c"kernel".as_ptr();
const NO_OPTIONS: c_uint = 0;
const NO_NAMES: *mut c_int = null_mut();
const NO_VALUES: *mut *mut c_void = null_mut();

/// The compiler's two logs, and the options with their addresses and sizes, each with its value.
struct LogOptions {
    options: [c_int; 4],
    values: [*mut c_void; 4],
    info: Vec<u8>,
    errors: Vec<u8>,
}

impl LogOptions {
    fn new() -> LogOptions {
        let [mut info, mut errors] = [(); 2].map(|()| vec![0_u8; LOG_BYTES]);
        let size = LOG_BYTES as *mut c_void;
        let places = [info.as_mut_ptr(), errors.as_mut_ptr()].map(<*mut u8>::cast);
        LogOptions {
            // CU_JIT_INFO_LOG_BUFFER, its size, CU_JIT_ERROR_LOG_BUFFER, its size.
            options: [3, 4, 5, 6],
            values: [places[0], size, places[1], size],
            info,
            errors,
        }
    }

    /// The number of options, and the addresses of the options and their values.
    fn places(&mut self) -> (c_uint, *mut c_int, *mut *mut c_void) {
        let n = self.options.len() as c_uint;
        (n, self.options.as_mut_ptr(), self.values.as_mut_ptr())
    }

    /// The written logs, once no call writes to them.
    fn read(&self) -> JitLog {
        JitLog {
            info: text(&self.info),
            errors: text(&self.errors),
        }
    }
}

/// Loads code into the current context, and returns the logs of the driver's compiler.
///
/// # Safety
/// A context is current. A binary image is complete: the driver trusts the sizes in its headers.
pub unsafe fn load(image: Image<'_>) -> Result<(CUmodule, JitLog), LoadError> {
    let mut logs = LogOptions::new();
    let data: *const c_void = match image {
        Image::Ptx(text) => text.as_ptr().cast(),
        Image::Binary(bytes) => bytes.as_ptr().cast(),
    };
    let (n, options, values) = logs.places();
    // SAFETY: a context is current and the image is whole, as the caller promises; PTX ends in a null byte by its
    // type; each option has its value, and the logs are as long as the sizes say.
    let loaded = unsafe { load_data(data, n, options, values) };
    let log = logs.read();
    match loaded {
        Ok(module) => Ok((module, log)),
        Err(source) => Err(LoadError { source, log }),
    }
}

/// A linker of the driver, destroyed when dropped. Any call may write to its logs, including its destruction.
struct Linker {
    state: CUlinkState,
    logs: LogOptions,
}

impl Linker {
    /// # Safety
    /// A context is current as long as the linker lives.
    unsafe fn new() -> Result<Linker, DriverError> {
        let mut logs = LogOptions::new();
        let (n, options, values) = logs.places();
        // SAFETY: a context is current; each option has its value, and the logs lie on the heap, are as long as the sizes say, and stay
        // until the state is destroyed.
        let state = unsafe { create_linker(n, options, values)? };
        Ok(Linker { state, logs })
    }

    /// The cubin of a PTX text.
    fn link(&mut self, ptx: &CStr) -> Result<Vec<u8>, DriverError> {
        let (mut cubin, mut n_bytes) = (null_mut::<c_void>(), 0);
        let bytes = ptx.to_bytes_with_nul();
        // SAFETY: the state is alive, and its context current. The driver reads the text, as long as it is, in this call. The cubin
        // belongs to the state; it is copied before the state is destroyed.
        unsafe {
            add_ptx(self.state, bytes.as_ptr().cast_mut().cast(), bytes.len())?;
            complete(self.state, &mut cubin, &mut n_bytes)?;
            Ok(std::slice::from_raw_parts(cubin.cast::<u8>(), n_bytes).to_vec())
        }
    }
}

impl Drop for Linker {
    fn drop(&mut self) {
        // SAFETY: the state is alive, and this is the last use. An error leaves nothing to do.
        let _ = unsafe { destroy_linker(self.state) };
    }
}

/// Compiles PTX for the device of the current context without loading it: a cubin for [`Image::Binary`], and the logs of the driver's compiler.
///
/// # Safety
/// A context is current.
pub unsafe fn compile(ptx: &CStr) -> Result<(Vec<u8>, JitLog), LoadError> {
    let failed = |source, log| LoadError { source, log };
    // SAFETY: a context is current until the linker is dropped, below.
    let mut linker = unsafe { Linker::new() }.map_err(|error| failed(error, JitLog::default()))?;
    let linked = linker.link(ptx);
    let log = linker.logs.read();
    match linked {
        Ok(cubin) => Ok((cubin, log)),
        Err(source) => Err(failed(source, log)),
    }
}

/// The text before the first null byte.
fn text(log: &[u8]) -> String {
    let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
    String::from_utf8_lossy(&log[..end]).trim_end().to_owned()
}

/// A function of a module, by its name in the PTX.
///
/// # Safety
/// `module` is loaded.
pub unsafe fn function(module: CUmodule, name: &CStr) -> Result<CUfunction, DriverError> {
    // SAFETY: as the caller promises.
    unsafe { get_function(module, name.as_ptr()) }
}

//! Loading code into the current context.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::ptr::null_mut;

use super::raw;
use crate::error::DriverError;
use crate::sys::{CUfunction, CUmodule};

/// Code for the driver to load.
#[derive(Clone, Copy, Debug)]
pub enum Image<'a> {
    /// PTX, to be compiled by the driver.
    Ptx(&'a CStr),
    /// A cubin or fatbin.
    Binary(&'a [u8]),
}

/// What the driver's compiler said.
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
    /// What it returned.
    pub source: DriverError,
    /// What its compiler said.
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

/// Loads code into the current context, keeping what the driver's compiler says.
///
/// # Safety
/// A context is current. A binary image is complete: the driver trusts the sizes in its headers.
pub unsafe fn load(image: Image<'_>) -> Result<(CUmodule, JitLog), LoadError> {
    // CU_JIT_INFO_LOG_BUFFER, its size, CU_JIT_ERROR_LOG_BUFFER, its size.
    let mut options: [c_int; 4] = [3, 4, 5, 6];
    let (mut info, mut errors) = (vec![0_u8; LOG_BYTES], vec![0_u8; LOG_BYTES]);
    let size = LOG_BYTES as *mut c_void;
    let mut values = [
        info.as_mut_ptr().cast(),
        size,
        errors.as_mut_ptr().cast(),
        size,
    ];
    let data: *const c_void = match image {
        Image::Ptx(text) => text.as_ptr().cast(),
        Image::Binary(bytes) => bytes.as_ptr().cast(),
    };
    let mut module = null_mut();
    // SAFETY: a context is current and the image is whole, as the caller promises; PTX ends in a null byte by its
    // type; each option has its value, and the logs are as long as the sizes say.
    let loaded = unsafe {
        raw::cuModuleLoadDataEx(
            &mut module,
            data,
            options.len() as c_uint,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    let log = JitLog {
        info: text(&info),
        errors: text(&errors),
    };
    match loaded {
        Ok(()) => Ok((module, log)),
        Err(source) => Err(LoadError { source, log }),
    }
}

/// The text before the first null byte.
fn text(log: &[u8]) -> String {
    let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
    String::from_utf8_lossy(&log[..end]).trim_end().to_owned()
}

/// Unloads code.
///
/// # Safety
/// `module` is loaded, its context is current, and nothing uses its functions afterwards.
pub unsafe fn unload(module: CUmodule) -> Result<(), DriverError> {
    // SAFETY: as the caller promises.
    unsafe { raw::cuModuleUnload(module) }
}

/// A function of a module, by its name in the PTX.
///
/// # Safety
/// `module` is loaded.
pub unsafe fn function(module: CUmodule, name: &CStr) -> Result<CUfunction, DriverError> {
    let mut function = null_mut();
    // SAFETY: as the caller promises; `function` is there to be written.
    unsafe { raw::cuModuleGetFunction(&mut function, module, name.as_ptr())? };
    Ok(function)
}

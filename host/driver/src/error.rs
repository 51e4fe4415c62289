//! Errors, with the driver's own description.

use std::cell::Cell;
use std::ffi::{CStr, c_char};

use crate::library::{Driver, MissingDriver};

/// A call of the driver that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// There is no driver.
    #[error(transparent)]
    NoDriver(#[from] MissingDriver),
    /// The driver is too old (or too new) to export a function.
    #[error("the CUDA driver does not export {symbol}")]
    NoSymbol {
        /// The function's exact name.
        symbol: &'static str,
    },
    /// The driver refused, or reports a failure of earlier asynchronous work.
    #[error("{call}: {text} ({name}, {code})")]
    Call {
        /// The function of the driver that was called.
        call: &'static str,
        /// The unchanged code that it returned.
        code: u32,
        /// The driver's name for the code, such as `CUDA_ERROR_OUT_OF_MEMORY`.
        name: String,
        /// The driver's description of the code.
        text: String,
    },
}

/// The last call that failed in a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The function of the driver.
    pub call: &'static str,
    /// The code that it returned, before the mapping to a code of `cust`.
    pub code: u32,
    /// The origin of the code.
    pub cause: Cause,
}

/// The origin of the code of a [`Failure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The driver.
    Driver,
    /// There is no driver.
    NoDriver,
    /// The driver does not export the function.
    NoSymbol,
}

thread_local! {
    static LAST: Cell<Option<Failure>> = const { Cell::new(None) };
}

/// The last driver call that failed in this thread, including calls by `cust`.
pub fn last_failure() -> Option<Failure> {
    LAST.get()
}

pub(crate) fn record(failure: Failure) {
    LAST.set(Some(failure));
}

impl DriverError {
    /// An error of `call` with a code of the driver.
    pub fn of_code(call: &'static str, code: u32) -> DriverError {
        let (name, text) = describe(code);
        DriverError::Call {
            call,
            code,
            name,
            text,
        }
    }

    /// The code that the driver returned, if it was the driver that failed.
    pub fn code(&self) -> Option<u32> {
        match self {
            DriverError::Call { code, .. } => Some(*code),
            DriverError::NoDriver(_) | DriverError::NoSymbol { .. } => None,
        }
    }
}

impl From<Failure> for DriverError {
    fn from(failure: Failure) -> DriverError {
        match (failure.cause, Driver::get()) {
            (Cause::NoDriver, Err(missing)) => DriverError::NoDriver(missing.clone()),
            (Cause::NoSymbol, _) => DriverError::NoSymbol {
                symbol: failure.call,
            },
            _ => DriverError::of_code(failure.call, failure.code),
        }
    }
}

/// Name and description of a code from the driver, for any code that it knows, newer ones included.
fn describe(code: u32) -> (String, String) {
    let name = ask(c"cuGetErrorName", code).map_or_else(|| format!("CUDA error {code}"), owned);
    let text = ask(c"cuGetErrorString", code)
        .map_or_else(|| "the driver has no description".to_owned(), owned);
    (name, text)
}

/// The driver's result of `cuGetErrorName` or `cuGetErrorString`; `None` without a driver and for codes that it does not know.
pub(crate) fn ask(function: &CStr, code: u32) -> Option<&'static CStr> {
    let address = Driver::get().ok()?.symbol(function)?;
    let mut answer: *const c_char = std::ptr::null();
    // SAFETY: both functions have this type in cuda.h, the code being any integer there; `answer` is there to be
    // written.
    let status = unsafe {
        std::mem::transmute::<*const (), unsafe extern "C" fn(u32, *mut *const c_char) -> u32>(
            address,
        )(code, &mut answer)
    };
    if status != 0 || answer.is_null() {
        return None;
    }
    // SAFETY: the driver gives a null-terminated string that lives as long as the process.
    Some(unsafe { CStr::from_ptr(answer) })
}

fn owned(text: &CStr) -> String {
    text.to_string_lossy().into_owned()
}

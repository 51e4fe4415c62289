//! One function of the driver: looked up at its first call, then cached.

use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::error::{Cause, Failure, record};
use crate::library::Driver;

/// Calls a function of the driver by its exact name, with the types that cuda.h gives it: `Result<(), Failure>`.
///
/// Use it in an `unsafe fn` whose caller upholds the function's own contract.
macro_rules! entry {
    ($name:ident($($argument:ident: $type:ty),*)) => {{
        const SYMBOL: &std::ffi::CStr =
            match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(symbol) => symbol,
                Err(_) => panic!("a name in Rust holds no null byte"),
            };
        static ENTRY: $crate::entry::Entry = $crate::entry::Entry::new(SYMBOL);
        ENTRY.call(|address| {
            // SAFETY: the driver exports a function of this type under this name. Its result is an integer: it may
            // be newer than the enum of this version of cuda.h. The caller keeps the function's own contract.
            unsafe {
                std::mem::transmute::<*const (), unsafe extern "C" fn($($type),*) -> u32>(address)($($argument),*)
            }
        })
    }};
}
pub(crate) use entry;

/// What a call returns without a driver: `CUDA_ERROR_STUB_LIBRARY`, which `cust` shows as an unknown error.
pub(crate) const NO_DRIVER: u32 = 34;
/// What a call returns if the driver does not export the function: `CUDA_ERROR_NOT_FOUND`.
pub(crate) const NO_SYMBOL: u32 = 500;

/// A function of the driver, by its exact name.
pub(crate) struct Entry {
    symbol: &'static CStr,
    name: &'static str,
    address: AtomicPtr<()>,
}

/// The address of a function of this process, for a driver made of such functions.
#[cfg(any(test, feature = "fake"))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address(pub(crate) *const ());

// SAFETY: the address of a function is valid in every thread.
#[cfg(any(test, feature = "fake"))]
unsafe impl Sync for Address {}

impl Entry {
    pub(crate) const fn new(symbol: &'static CStr) -> Entry {
        let name = match symbol.to_str() {
            Ok(name) => name,
            Err(_) => panic!("the driver's names are ASCII"),
        };
        Entry {
            symbol,
            name,
            address: AtomicPtr::new(null_mut()),
        }
    }

    /// Calls the function through `call`, which is given its address. A failure, or the function's absence, is
    /// returned and kept for [`crate::last_failure`].
    #[inline]
    pub(crate) fn call(&self, call: impl FnOnce(*const ()) -> u32) -> Result<(), Failure> {
        let known = self.address.load(Ordering::Relaxed).cast_const();
        let found = if known.is_null() {
            self.find()
        } else {
            Ok(known)
        };
        let failure = match found.map(call) {
            Ok(0) => return Ok(()),
            Ok(code) => Failure {
                call: self.name,
                code,
                cause: Cause::Driver,
            },
            Err(failure) => failure,
        };
        record(failure);
        Err(failure)
    }

    /// The address of the function. Concurrent threads find the same address, so the order of their stores does not matter.
    #[cold]
    fn find(&self) -> Result<*const (), Failure> {
        let absent = |code, cause| Failure {
            call: self.name,
            code,
            cause,
        };
        let driver = Driver::get().map_err(|_| absent(NO_DRIVER, Cause::NoDriver))?;
        let address = driver
            .symbol(self.symbol)
            .ok_or(absent(NO_SYMBOL, Cause::NoSymbol))?;
        self.address.store(address.cast_mut(), Ordering::Relaxed);
        Ok(address)
    }
}

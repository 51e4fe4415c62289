//! The forwarders beneath `cust`, with a driver made of functions of this file.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::sync::Once;

use cust::error::CudaError;

use crate::entry::Address;
use crate::{Cause, Driver, DriverError, Failure, Version, extra, last_failure, library};

thread_local! {
    /// What `cuInit` returns next in this thread.
    static ANSWER: Cell<u32> = const { Cell::new(0) };
}

extern "C" fn init(_flags: c_uint) -> u32 {
    ANSWER.get()
}

extern "C" fn driver_version(version: *mut c_int) -> u32 {
    // SAFETY: the caller gives a place to write to.
    unsafe { version.write(13010) };
    0
}

extern "C" fn error_name(code: u32, name: *mut *const c_char) -> u32 {
    answer(
        code,
        name,
        c"CUDA_ERROR_OUT_OF_MEMORY",
        c"CUDA_ERROR_CONTAINED",
    )
}

extern "C" fn error_string(code: u32, text: *mut *const c_char) -> u32 {
    answer(
        code,
        text,
        c"out of memory",
        c"invalidating exception, contained",
    )
}

/// The answer for the two codes that this driver can describe.
fn answer(code: u32, to: *mut *const c_char, of_2: &'static CStr, of_912: &'static CStr) -> u32 {
    let answer = match code {
        2 => of_2,
        912 => of_912,
        _ => return 1,
    };
    // SAFETY: the caller gives a place to write to.
    unsafe { to.write(answer.as_ptr()) };
    0
}

/// Installs the driver above, once in this process.
fn fake_driver() {
    static INSTALLED: Once = Once::new();
    static FUNCTIONS: [(&str, Address); 4] = [
        ("cuInit", Address(init as *const ())),
        ("cuDriverGetVersion", Address(driver_version as *const ())),
        ("cuGetErrorName", Address(error_name as *const ())),
        ("cuGetErrorString", Address(error_string as *const ())),
    ];
    INSTALLED.call_once(|| {
        // SAFETY: the functions have the types of cuda.h.
        let installed = unsafe { library::install(&FUNCTIONS) };
        installed.expect("nothing opens the driver earlier");
    });
}

/// What `cust` makes of a code that the driver returns.
fn init_with(code: u32) -> Result<(), CudaError> {
    fake_driver();
    ANSWER.set(code);
    cust::init(cust::CudaFlags::empty())
}

#[test]
fn cust_gets_an_error_for_every_code_and_the_code_is_kept() {
    assert_eq!(init_with(0), Ok(()));
    for code in 1..1100 {
        let error = init_with(code).unwrap_err();
        assert!(
            error as u32 == code || error == CudaError::UnknownError,
            "code {code} became {error:?}"
        );
        assert_eq!(
            last_failure(),
            Some(Failure {
                call: "cuInit",
                code,
                cause: Cause::Driver
            })
        );
        assert!(!error.to_string().is_empty());
    }
    assert_eq!(init_with(2), Err(CudaError::OutOfMemory));
    assert_eq!(CudaError::OutOfMemory.to_string(), "\"out of memory\"");
}

#[test]
fn a_code_newer_than_cust_keeps_the_drivers_words() {
    assert_eq!(init_with(912), Err(CudaError::UnknownError));
    let error = DriverError::from(last_failure().unwrap());
    assert_eq!(error.code(), Some(912));
    assert_eq!(
        error.to_string(),
        "cuInit: invalidating exception, contained (CUDA_ERROR_CONTAINED, 912)"
    );
}

#[test]
fn a_code_that_the_driver_cannot_describe_is_an_error_with_its_number() {
    assert_eq!(init_with(555), Err(CudaError::UnknownError));
    let error = DriverError::from(last_failure().unwrap());
    assert_eq!(
        error.to_string(),
        "cuInit: the driver has no description (CUDA error 555, 555)"
    );
}

#[test]
fn a_function_that_the_driver_lacks_is_named() {
    fake_driver();
    assert!(cust::device::Device::num_devices().is_err());
    let error = DriverError::from(last_failure().unwrap());
    assert_eq!(
        error,
        DriverError::NoSymbol {
            symbol: "cuDeviceGetCount"
        }
    );
    let absent = extra::context::current().unwrap_err();
    assert_eq!(
        absent.to_string(),
        "the CUDA driver does not export cuCtxGetCurrent"
    );
}

#[test]
fn the_version_comes_from_the_driver() {
    fake_driver();
    assert_eq!(
        Driver::get().unwrap().version(),
        Ok(Version {
            major: 13,
            minor: 1
        })
    );
}

#[test]
fn a_driver_is_installed_once() {
    fake_driver();
    // SAFETY: no function is given.
    let again = unsafe { library::install(&[]) };
    assert_eq!(again, Err(library::AlreadyOpened));
}

#[test]
fn failures_belong_to_their_thread() {
    init_with(2).unwrap_err();
    std::thread::spawn(|| assert_eq!(last_failure(), None))
        .join()
        .unwrap();
    assert_eq!(last_failure().map(|failure| failure.code), Some(2));
}

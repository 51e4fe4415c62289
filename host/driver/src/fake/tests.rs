//! The forwarders beneath `cust`, and the calls beside it, above a driver made of functions.

use cust::error::CudaError;

use crate::{Cause, Driver, DriverError, Failure, Version, fake, last_failure, library};

/// What `cust` makes of a code that the driver returns.
fn init_with(code: u32) -> Result<(), CudaError> {
    fake::install();
    fake::answer_init_with(code);
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
    fake::install();
    assert_eq!(
        cust::memory::UnifiedBuffer::new(&0_u8, 1).err(),
        Some(CudaError::NotFound)
    );
    let error = DriverError::from(last_failure().unwrap());
    assert_eq!(
        error,
        DriverError::NoSymbol {
            symbol: "cuMemAllocManaged"
        }
    );
    assert_eq!(
        error.to_string(),
        "the CUDA driver does not export cuMemAllocManaged"
    );
}

#[test]
fn the_version_comes_from_the_driver() {
    fake::install();
    assert_eq!(
        Driver::get().unwrap().version(),
        Ok(Version {
            major: 13,
            minor: 0
        })
    );
}

#[test]
fn a_driver_is_installed_once() {
    fake::install();
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

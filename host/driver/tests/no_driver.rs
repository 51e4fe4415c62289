//! On a machine without a CUDA driver: the program starts, every call is an error, and every error can be printed.

use std::io::Write;

use cust::memory::DeviceBuffer;
use cust::prelude::{Device, Module, Stream, StreamFlags};
use ferroflash_driver::{Cause, Driver, DriverError, LIBRARY, driver_present, extra, last_failure};

/// Whether this machine lacks a driver; says so where it does not.
fn driver_is_missing() -> bool {
    if driver_present() {
        // Not by a macro, whose text the harness keeps back.
        let line = b"[not run] missing driver: this machine has one\n";
        let _ = std::io::stderr().write_all(line);
    }
    !driver_present()
}

#[test]
fn the_missing_library_is_named_with_the_linkers_words() {
    if driver_is_missing() {
        let missing = Driver::get().unwrap_err();
        assert_eq!(missing.library, LIBRARY);
        assert!(
            missing
                .to_string()
                .starts_with("no CUDA driver: libcuda.so.1 could not be opened: libcuda.so.1:")
        );
    }
}

#[test]
fn each_call_of_cust_fails_with_an_error_that_prints() {
    if driver_is_missing() {
        let errors = [
            cust::init(cust::CudaFlags::empty()).unwrap_err(),
            Device::num_devices().unwrap_err(),
            DeviceBuffer::<u8>::zeroed(4).unwrap_err(),
            Module::from_ptx("", &[]).unwrap_err(),
            Stream::new(StreamFlags::DEFAULT, None).unwrap_err(),
            cust::quick_init().unwrap_err(),
        ];
        for error in errors {
            assert!(error.to_string().contains("no CUDA driver"), "{error}");
        }
    }
}

#[test]
fn the_failure_behind_an_error_of_cust_is_the_missing_driver() {
    if driver_is_missing() {
        cust::init(cust::CudaFlags::empty()).unwrap_err();
        let failure = last_failure().unwrap();
        assert_eq!((failure.call, failure.cause), ("cuInit", Cause::NoDriver));
        assert!(matches!(
            DriverError::from(failure),
            DriverError::NoDriver(_)
        ));
    }
}

#[test]
fn calls_beside_cust_fail_with_the_missing_driver() {
    if driver_is_missing() {
        assert!(matches!(
            extra::context::current(),
            Err(DriverError::NoDriver(_))
        ));
        assert!(matches!(
            extra::device::uuid(0),
            Err(DriverError::NoDriver(_))
        ));
    }
}

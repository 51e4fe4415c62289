//! Opens the CUDA driver at run time, so that one binary runs on machines with and without a GPU.
//!
//! `cust` is made to be linked against `libcuda.so`. This crate defines each driver function that `cust` calls, as a
//! forwarder that opens `libcuda.so.1` at the first call. A program that depends on both starts anywhere.
//!
//! | layer | what it is |
//! |---|---|
//! | [`Driver`] | the opened library: is there one, its version, the address of any function it exports |
//! | `forwarders` | the functions `cust` is linked against |
//! | [`extra`] | typed calls for what `cust` lacks |
//! | [`Failure`], [`DriverError`] | what went wrong, in the driver's own words |
//!
//! Newer drivers return error codes that `cust`'s enum does not know; a value outside an enum is undefined behaviour.
//! The forwarders turn them into `CUDA_ERROR_UNKNOWN` and keep the true code for [`last_failure`].
//!
//! # Linking
//! The build script of `cust` wants a CUDA toolkit. A build without one sets `CUDA_LIBRARY_PATH` to this crate's
//! folder `link`, whose `lib64/libcuda.so` is an empty linker script; the symbols themselves come from here.

mod entry;
mod error;
pub mod extra;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
#[cfg(test)]
mod fake_tests;
mod forwarders;
mod library;
mod result;

pub use cust_raw as sys;
pub use error::{Cause, DriverError, Failure, last_failure};
pub use library::{Driver, LIBRARY, MissingDriver, Version, driver_present};

//! Opens the CUDA driver at run time, so that one binary runs on machines with and without a GPU.
//!
//! Functions are looked up by name, at the first call of each. A program that depends on this crate starts on any machine, and defines none of the
//! driver's symbols: other libraries that call the driver are unaffected.
//!
//! | layer | contents |
//! |---|---|
//! | [`Driver`] | the opened library: whether there is one, its version, the address of any function it exports |
//! | [`extra`] | typed calls |
//! | [`sys`] | the driver's handles |
//! | `forwarders` | with the feature `cust`: the functions that `cust` is linked against |
//! | [`Failure`], [`DriverError`] | errors, with the driver's own description |
//!
//! # With `cust`
//! `cust` expects to be linked against `libcuda.so`. With the feature `cust` this crate defines each driver function that `cust` calls,
//! as a forwarder that opens `libcuda.so.1` at the first call.
//!
//! Newer drivers return error codes that `cust`'s enum does not know; a value outside an enum is undefined behaviour. The forwarders map them to
//! `CUDA_ERROR_UNKNOWN` and keep the original code for [`last_failure`].
//!
//! The build script of `cust` needs a CUDA toolkit. A build without one sets `CUDA_LIBRARY_PATH` to this crate's
//! folder `link`, whose `lib64/libcuda.so` is an empty linker script; the symbols themselves come from here.

mod entry;
mod error;
pub mod extra;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
#[cfg(feature = "cust")]
mod forwarders;
mod library;
#[cfg(feature = "cust")]
mod result;
pub mod sys;

pub use error::{Cause, DriverError, Failure, last_failure};
pub use library::{Driver, LIBRARY, MissingDriver, Version, driver_present};

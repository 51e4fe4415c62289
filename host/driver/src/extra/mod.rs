//! Typed calls of the driver.
//!
//! | file | what |
//! |---|---|
//! | [`module`] | compiling and loading code, with the log of the driver's compiler |
//! | [`function`] | attributes, occupancy, launches with a parameter struct |
//! | [`stream`] | streams that do not wait for the default stream; copies and fills on any stream |
//! | [`event`] | events on any stream |
//! | [`graph`] | capturing a stream's work and launching it again |
//! | [`context`] | a device's context, and which one is current |
//! | [`device`] | the devices, their names and limits |
//! | [`memory`] | memory of a device |
//! | [`tensor_map`] | tensors as Hopper's copy engine knows them |
//!
//! Functions are found by their exact suffixed name. Handles are the driver's own ([`crate::sys`]), and a call
//! is `unsafe` because the driver believes the handles and addresses that it is given.

pub mod context;
pub mod device;
pub mod event;
pub mod function;
pub mod graph;
pub mod memory;
pub mod module;
mod raw;
pub mod stream;
pub mod tensor_map;

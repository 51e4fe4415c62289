//! The backends that run a plan: a GPU, the CPU, or the emulator. They decide nothing: validation and planning have decided.

#[allow(unsafe_code)]
pub mod cuda;

pub(crate) mod staging;

pub(crate) mod fetch;

pub(crate) mod cpu;

#[cfg(feature = "emulator")]
pub mod emulated;

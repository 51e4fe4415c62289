//! What runs a plan: a GPU, the CPU, or the emulator. Each decides nothing: validation and planning have.

#[allow(unsafe_code)]
pub mod cuda;

pub(crate) mod staging;

pub(crate) mod fetch;

pub(crate) mod cpu;

#[cfg(feature = "emulator")]
pub mod emulated;

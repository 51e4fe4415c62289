//! What runs a plan: the CPU, a GPU, or the emulator. Each decides nothing: validation and planning have.

pub(crate) mod cpu;

#[cfg(feature = "emulator")]
pub mod emulated;

#[expect(unsafe_code, reason = "calls the CUDA driver")]
pub mod cuda;

//! ferroflash's kernels. The same sources are device code (`no_std`, compiled to PTX) and, with the
//! feature `emulator`, ordinary Rust that the CPU machine in [`emu`] runs in tests.
//!
//! Each layer knows only those below it:
//!
//! | layer | contents |
//! |---|---|
//! | [`variants`], [`params`], [`spec`] | the list of kernels, the parameter struct of each pass, the constants that are fixed when the driver compiles |
//! | `entry` | the list expanded into kernel entries |
//! | `kernels` | the algorithms, in the papers' notation |
//! | [`attention`] | masks, ranges of KV blocks, the order of tiles: arithmetic independent of hardware |
//! | `tile` | tiles as types and the verbs on them |
//! | `ptx` | one function = one PTX instruction: the only `asm!` of the workspace |
//! | `emu` | the machine that runs the CPU bodies of `ptx` |
//!
//! Below all of them is [`ferroflash_expression`]: custom scores and masks.
#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, asm_experimental_arch))]
// A loop over registers must unroll to constants: indices do, iterators over arrays have left stack frames behind.
#![allow(clippy::needless_range_loop)]

/// The folder of this crate, in which the builder of device code finds the sources.
#[cfg(not(target_arch = "nvptx64"))]
pub const MANIFEST_DIR: &str = env!("CARGO_MANIFEST_DIR");

pub mod variants;

pub mod params;

pub mod spec;

pub mod config;

#[cfg(any(target_arch = "nvptx64", feature = "emulator"))]
pub mod entry;

#[cfg(any(target_arch = "nvptx64", feature = "emulator"))]
pub mod kernels;

pub mod attention;

#[cfg(any(target_arch = "nvptx64", feature = "emulator"))]
pub mod tile;

#[cfg(any(target_arch = "nvptx64", feature = "emulator"))]
pub mod ptx;

#[cfg(all(not(target_arch = "nvptx64"), feature = "emulator"))]
pub mod emu;

#[cfg(target_arch = "nvptx64")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    ptx::special::trap()
}

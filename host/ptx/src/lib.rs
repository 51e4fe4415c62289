//! The kernels of `ferroflash-kernels` as PTX, so that a program needs no compiler for them.
//!
//! `cargo xtask prebuild` writes this crate's modules and [`SOURCES`], and `cargo xtask prebuild --check`, which CI runs, fails if the sources have
//! changed since. To compile the kernels in your own build, use `ferroflash` with the feature `build-kernels`.
#![no_std]
#![forbid(unsafe_code)]

mod modules;

/// Name, architecture (`sm_80`) and raw-deflated text of each module, the oldest architecture first. A module has the name of its only entry.
pub static MODULES: &[(&str, &str, &[u8])] = modules::MODULES;

/// SHA-256 of the sources that the modules were compiled from, in hexadecimal, and the compiler's version, a line each.
pub const SOURCES: &str = include_str!("../modules/sources.txt");

//! The kernels of `ferroflash-kernels` as PTX, so that a program needs no compiler for them.
//!
//! `cargo xtask prebuild` writes this crate's modules and [`SOURCES`], and `cargo xtask prebuild --check`, which CI runs, fails where the
//! sources have changed since. A program that wants to compile the kernels by itself takes `ferroflash` with the feature `build-kernels`.
#![no_std]
#![forbid(unsafe_code)]

mod modules;

/// Name, architecture (`sm_80`) and text of each module, raw-deflated, the oldest architecture first. A module has the name of its one
/// entry.
pub static MODULES: &[(&str, &str, &[u8])] = modules::MODULES;

/// SHA-256 of the sources that the modules were compiled from, in hexadecimal, and the compiler's version, a line each.
pub const SOURCES: &str = include_str!("../modules/sources.txt");

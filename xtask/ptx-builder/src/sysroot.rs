//! Compiles `core` for the GPU: a sysroot of two crates, kept per compiler.
//!
//! It is compiled for the oldest architecture of the list and serves all: what kernels use of `core` is generic or
//! inlined, and so compiled with the kernels, for their architecture.

use std::path::{Path, PathBuf};

use ferroflash_kernels::variants::{Arch, VARIANTS};

use crate::error::at;
use crate::{Error, Request, compile, digest};

/// rustc wants the crate `compiler_builtins` beside `core`. PTX has instructions for all that it would hold.
const COMPILER_BUILTINS: &str =
    "#![feature(compiler_builtins)]\n#![compiler_builtins]\n#![no_std]\n";

/// The folder to give to rustc as `--sysroot`; built where it is not there yet.
pub fn prepare(request: &Request) -> Result<PathBuf, Error> {
    let arch = oldest_arch();
    let name = format!("{arch}-{}", digest::compiler(request.compiler));
    let sysroot = request.out.join("sysroot").join(name);
    if sysroot.is_dir() {
        return Ok(sysroot);
    }
    // Built under another name, so that an interrupted build is never taken for a whole one.
    let unfinished = sysroot.with_extension("unfinished");
    if unfinished.is_dir() {
        std::fs::remove_dir_all(&unfinished).map_err(at(&unfinished))?;
    }
    let lib = unfinished
        .join("lib/rustlib")
        .join(compile::TARGET)
        .join("lib");
    std::fs::create_dir_all(&lib).map_err(at(&lib))?;

    let core = request.compiler.library.join("core");
    library(
        request,
        &unfinished,
        &lib,
        "core",
        &core.join("src/lib.rs"),
        &edition(&core)?,
    )?;
    let builtins = unfinished.join("compiler_builtins.rs");
    std::fs::write(&builtins, COMPILER_BUILTINS).map_err(at(&builtins))?;
    library(
        request,
        &unfinished,
        &lib,
        "compiler_builtins",
        &builtins,
        "2024",
    )?;

    std::fs::rename(&unfinished, &sysroot).map_err(at(&sysroot))?;
    Ok(sysroot)
}

/// The architecture that every other one of the list is newer than.
fn oldest_arch() -> &'static str {
    let oldest = VARIANTS.iter().map(|variant| variant.arch).min();
    oldest.map_or("sm_80", Arch::name)
}

fn library(
    request: &Request,
    sysroot: &Path,
    lib: &Path,
    name: &str,
    source: &Path,
    edition: &str,
) -> Result<(), Error> {
    let mut command = request.compiler.command();
    command.args([
        "--crate-name",
        name,
        "--crate-type",
        "rlib",
        "--edition",
        edition,
    ]);
    command
        .args(compile::flags(oldest_arch()))
        .arg("-Zforce-unstable-if-unmarked");
    command
        .arg("--sysroot")
        .arg(sysroot)
        .arg("--out-dir")
        .arg(lib)
        .arg(source);
    compile::run(command, name)
}

/// The edition that a crate's manifest names.
fn edition(folder: &Path) -> Result<String, Error> {
    let path = folder.join("Cargo.toml");
    let manifest = std::fs::read_to_string(&path).map_err(at(&path))?;
    let edition = manifest
        .lines()
        .find_map(|line| line.strip_prefix("edition = "));
    Ok(edition
        .map_or("2024", |text| text.trim_matches('"'))
        .to_owned())
}

//! Compiles `core` for the GPU: a sysroot of two crates, kept per compiler and architecture.

use std::path::{Path, PathBuf};

use crate::error::at;
use crate::{Error, Request, compile, digest};

/// rustc wants the crate `compiler_builtins` beside `core`. PTX has instructions for all that it would hold.
const COMPILER_BUILTINS: &str =
    "#![feature(compiler_builtins)]\n#![compiler_builtins]\n#![no_std]\n";

/// The folder to give to rustc as `--sysroot`; built where it is not there yet.
pub fn prepare(request: &Request) -> Result<PathBuf, Error> {
    let name = format!("{}-{}", request.arch, digest::compiler(request.compiler));
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
        .args(compile::flags(request.arch))
        .arg("-Zforce-unstable-if-unmarked");
    command
        .arg("--sysroot")
        .arg(sysroot)
        .arg("--out-dir")
        .arg(lib)
        .arg(source);
    compile::run(command, &format!("{name} for {}", request.arch))
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

//! The bindings to other frameworks: a workspace of their own, so that what they depend on stays out of the library's lock file.

use std::ffi::OsStr;
use std::process::Command;

use anyhow::Result;

use crate::test::{self, Counts};
use crate::workspace::Workspace;
use crate::{programs, python};

/// The manifest of the workspace.
pub const MANIFEST: &str = "bindings/Cargo.toml";

/// Its packages. Each is built by a call of cargo of its own, since in one call what they share gets the features that any of them asks for: Burn would be
/// tested with gemm's `rayon`, which is candle's.
pub const FOLDERS: [&str; 3] = ["bindings/candle", "bindings/burn", python::FOLDER];

/// A program that runs in one of them. What cargo builds there lies in a folder of its own: a build of the library, which goes on beside it in `ci`, would
/// have it wait.
pub fn command(workspace: &Workspace, folder: &str, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command
        .current_dir(workspace.root.join(folder))
        .env("CARGO_TARGET_DIR", workspace.target.join("bindings"));
    command
}

/// Has clippy compile the packages of the workspace in place of rustc, as `cargo clippy` does, and refuse what it finds fault with. So what they
/// depend on, which takes minutes, is compiled once, and not checked besides.
pub fn under_clippy(command: &mut Command) {
    command
        .env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver")
        // As `cargo clippy` hands on what follows `--`.
        .env(
            "CLIPPY_ARGS",
            "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__",
        );
}

/// What burn-ferroflash has without its default features is looked at in one run of so many: Burn, which has other features then, is compiled once more for it.
const ALONE_ONE_IN: u64 = 4;

/// Compiles the tests that need no GPU, and fails where clippy finds fault with a package, with its default features or, as the seed says, with none.
pub fn build(workspace: &Workspace, folder: &str, seed: u64) -> Result<()> {
    if folder == python::FOLDER {
        return python::build_tested(workspace).map(|_wheel| ());
    }
    programs::run(&mut tests(workspace, folder, "--no-run"))?;
    if folder == "bindings/burn" && seed.is_multiple_of(ALONE_ONE_IN) {
        let alone = [
            "clippy",
            "--no-default-features",
            "--lib",
            "--",
            "-D",
            "warnings",
        ];
        programs::run(command(workspace, folder, workspace.cargo()).args(alone))?;
    }
    Ok(())
}

/// The tests that need no GPU. With candle-ferroflash goes what stands in for candle-flash-attn, without its default features, which want a CUDA toolkit.
fn tests(workspace: &Workspace, folder: &str, flag: &str) -> Command {
    let mut tests = command(workspace, folder, workspace.cargo());
    tests.args(["test", flag]);
    if folder == "bindings/candle" {
        let packages = ["-p", "candle-ferroflash", "-p", "candle-flash-attn"];
        tests.args(packages).arg("--no-default-features");
    }
    under_clippy(&mut tests);
    tests
}

/// Runs the tests that need no GPU. The seed decides which random problems they take.
pub fn count(workspace: &Workspace, seed: u64) -> Result<Counts> {
    let mut counts = Counts::default();
    for folder in FOLDERS {
        counts.add(count_of(workspace, folder, seed)?);
    }
    Ok(counts)
}

/// Runs those of one of them.
pub fn count_of(workspace: &Workspace, folder: &str, seed: u64) -> Result<Counts> {
    eprintln!("the tests of {folder}");
    match folder {
        python::FOLDER => python::count(workspace, seed),
        _ => test::run(tests(workspace, folder, "--no-fail-fast")),
    }
}

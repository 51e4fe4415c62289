//! The bindings to other frameworks: workspaces of their own, so that what they depend on stays out of the library's lock file.

use std::process::Command;

use anyhow::Result;

use crate::test::{self, Counts};
use crate::workspace::Workspace;
use crate::{programs, python};

/// The workspaces.
pub const FOLDERS: [&str; 3] = ["bindings/candle", "bindings/burn", python::FOLDER];

/// A command of cargo in one of them.
fn cargo(workspace: &Workspace, folder: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(workspace.cargo());
    command
        .current_dir(workspace.root.join(folder))
        .args(arguments);
    in_one_folder(workspace, &mut command);
    command
}

/// Has cargo compile what several of them depend on once.
pub fn in_one_folder(workspace: &Workspace, command: &mut Command) {
    command.env("CARGO_TARGET_DIR", workspace.target.join("bindings"));
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

/// Whether the sources are formatted.
pub fn fmt(workspace: &Workspace, folder: &str) -> Result<()> {
    programs::run(&mut cargo(workspace, folder, &["fmt", "--all", "--check"]))
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
        programs::run(&mut cargo(workspace, folder, &alone))?;
    }
    Ok(())
}

/// The tests of what builds without a CUDA toolkit, which the default features of some packages want.
fn tests(workspace: &Workspace, folder: &str, flag: &str) -> Command {
    let selection: &[&str] = match folder {
        "bindings/burn" => &[],
        _ => &["--workspace", "--no-default-features"],
    };
    let arguments = [&["test", flag], selection].concat();
    let mut tests = cargo(workspace, folder, &arguments);
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

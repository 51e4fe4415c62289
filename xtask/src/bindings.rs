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
    command
}

/// Whether the sources are formatted.
pub fn fmt(workspace: &Workspace, folder: &str) -> Result<()> {
    programs::run(&mut cargo(workspace, folder, &["fmt", "--all", "--check"]))
}

/// Whether clippy finds nothing in what builds without a CUDA toolkit: the package with its default features, and every member of the
/// workspace with none, since those of some want a toolkit.
pub fn clippy(workspace: &Workspace, folder: &str) -> Result<()> {
    for selection in selections(folder) {
        let arguments = [&["clippy"], *selection, &["--", "-D", "warnings"]].concat();
        programs::run(&mut cargo(workspace, folder, &arguments))?;
    }
    Ok(())
}

/// What clippy looks at. Where the default features are none, one look is enough.
fn selections(folder: &str) -> &'static [&'static [&'static str]] {
    match folder {
        "bindings/burn" => &[&["--all-targets"], &["--no-default-features"]],
        _ => &[&["--workspace", "--all-targets", "--no-default-features"]],
    }
}

/// Runs the tests that need no GPU.
pub fn count(workspace: &Workspace) -> Result<Counts> {
    let mut counts = Counts::default();
    for folder in FOLDERS {
        counts.add(count_of(workspace, folder)?);
    }
    Ok(counts)
}

/// Runs those of one of them.
pub fn count_of(workspace: &Workspace, folder: &str) -> Result<Counts> {
    eprintln!("the tests of {folder}");
    match folder {
        python::FOLDER => python::count(workspace),
        _ => test::run(cargo(workspace, folder, &["test", "--no-fail-fast"])),
    }
}

//! `plots`: the pictures of `docs/`, drawn by the package `ferroflash-book`. It is a program of its own, so that xtask compiles without what
//! draws.

use std::process::Command;

use anyhow::Result;

use crate::codegen::Mode;
use crate::programs;
use crate::workspace::Workspace;

/// Renews or checks the pictures.
pub fn plots(workspace: &Workspace, mode: Mode) -> Result<()> {
    let arguments: &[&str] = match mode {
        Mode::Check => &["plots", "--check"],
        Mode::Write => &["plots"],
    };
    run(workspace, arguments)
}

fn run(workspace: &Workspace, arguments: &[&str]) -> Result<()> {
    let mut command = Command::new(workspace.cargo());
    command
        .current_dir(&workspace.root)
        .args(["run", "--quiet", "--profile", "xtask"])
        .args(["--package", "ferroflash-book", "--"])
        .args(arguments);
    programs::run(&mut command)
}

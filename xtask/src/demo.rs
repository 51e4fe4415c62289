//! `demo`: from a fresh checkout to attention on real input, forward and backward, in one command.

use std::process::Command;

use anyhow::{Result, bail};

use crate::ptx::{self, BuildPtx};
use crate::workspace::Workspace;

/// Activations of a small transformer on real text: two query heads per key head, causal.
const INPUT: &str = "tests/data/causal_gqa_d64.safetensors";

/// Builds the PTX and the command, and runs it.
pub fn demo(workspace: &Workspace) -> Result<()> {
    eprintln!("1/3 the kernels, from Rust to PTX");
    ptx::build_ptx(workspace, &BuildPtx::plain())?;
    eprintln!("2/3 the command `ferroflash`, in release");
    let select = [
        "--release",
        "--package",
        "ferroflash",
        "--features",
        "cli",
        "--bin",
        "ferroflash",
    ];
    let mut build = Command::new(workspace.cargo());
    if !build
        .current_dir(&workspace.root)
        .arg("build")
        .args(select)
        .status()?
        .success()
    {
        bail!("the command did not compile");
    }
    eprintln!("3/3 ferroflash run {INPUT} --pass both");
    let mut run = Command::new(workspace.cargo());
    run.current_dir(&workspace.root)
        .args(["run", "--quiet"])
        .args(select);
    if run
        .args(["--", "run", INPUT, "--pass", "both"])
        .status()?
        .success()
    {
        Ok(())
    } else {
        bail!("ferroflash run failed")
    }
}

//! `demo`: from a fresh checkout to attention on real input, forward and backward, in one command.

use anyhow::Result;

use crate::programs;
use crate::ptx::{self, BuildPtx};
use crate::workspace::Workspace;

/// Activations of a small transformer on real text: two query heads per key head, causal.
const INPUT: &str = "tests/data/causal_gqa_d64.safetensors";

/// Builds the PTX and the command, and runs it.
pub fn demo(workspace: &Workspace) -> Result<()> {
    eprintln!("1/3 the kernels, from Rust to PTX");
    ptx::build_ptx(workspace, &BuildPtx::plain())?;
    eprintln!("2/3 the command `ferroflash`, in release");
    programs::run(&mut workspace.ferroflash("build"))?;
    eprintln!("3/3 ferroflash run {INPUT} --pass both");
    let mut run = workspace.ferroflash("run");
    run.args(["--quiet", "--", "run", INPUT, "--pass", "both"]);
    programs::run(&mut run)
}

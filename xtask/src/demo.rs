//! `demo`: from a fresh checkout to attention on real input, forward and backward, in one command.

use anyhow::Result;

use crate::programs;
use crate::workspace::Workspace;

/// Activations of a small transformer on real text: two query heads per key head, causal.
const INPUT: &str = "tests/data/causal_gqa_d64.safetensors";

/// Builds the command with the kernels that the repository brings, as users get them, and runs it. Compiling these takes minutes: `cargo xtask build-ptx`.
pub fn demo(workspace: &Workspace) -> Result<()> {
    eprintln!("1/2 the command `ferroflash`, in release");
    programs::run(&mut workspace.ferroflash("build", &[]))?;
    eprintln!("2/2 ferroflash run {INPUT} --pass both");
    let mut run = workspace.ferroflash("run", &[]);
    run.args(["--quiet", "--", "run", INPUT, "--pass", "both"]);
    programs::run(&mut run)
}

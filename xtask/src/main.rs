//! `cargo xtask`: builds, checks, measures and packs the workspace.
#![forbid(unsafe_code)]

mod assemble;
mod bundle;
mod ptx;
mod tools;
mod workspace;

use std::process::ExitCode;

use clap::Parser;

use workspace::Workspace;

/// Builds, checks, measures and packs the workspace.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Command {
    /// Compiles the kernels to PTX, one module per variant, and checks what ptxas makes of them.
    BuildPtx(ptx::BuildPtx),
    /// Unpacks NVIDIA's assembler and disassemblers, as published on PyPI, under target/tools.
    Tools,
    /// Collects stripped test binaries, the command, PTX and data, to run on a GPU machine without Rust.
    Bundle(bundle::Bundle),
}

fn main() -> ExitCode {
    match run(Command::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    let workspace = Workspace::find()?;
    match command {
        Command::BuildPtx(options) => ptx::build_ptx(&workspace, &options),
        Command::Bundle(options) => bundle::bundle(&workspace, &options),
        Command::Tools => tools::install(&workspace).map(|_programs| ()),
    }
}

//! `cargo xtask`: builds, checks, measures and packs the workspace.
#![forbid(unsafe_code)]

mod api;
mod assemble;
mod bench;
mod bindings;
mod book;
mod bundle;
mod candle;
mod ci;
mod codegen;
mod demo;
mod digest;
mod packages;
mod parts;
mod prebuild;
mod programs;
mod ptx;
mod python;
mod release;
mod seen;
mod test;
mod tidy;
mod times;
mod tools;
mod workspace;

use std::process::ExitCode;

use clap::Parser;

use codegen::Mode;
use workspace::Workspace;

/// Builds, checks, measures and packs the workspace.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Command {
    /// From a fresh checkout to attention on real input, forward and backward.
    Demo,
    /// Runs everything that needs no GPU: the PTX, every test with the emulated kernels, doctests.
    Test(test::Test),
    /// Compiles the kernels to PTX, one module per variant, and checks what ptxas makes of them.
    BuildPtx(ptx::BuildPtx),
    /// Compiles the kernels for `host/ptx`, which brings them to programs without a compiler for them.
    Prebuild(prebuild::Prebuild),
    /// Unpacks NVIDIA's assembler and disassemblers, as published on PyPI, under target/tools.
    Tools,
    /// Measures with `ferroflash bench` and appends the lines to a record under tests/benches/record.
    Bench(bench::Bench),
    /// Collects stripped test binaries, the command, PTX and data, to run on a GPU machine without Rust.
    Bundle(bundle::Bundle),
    /// Builds the tests and the examples of the candle binding with CUDA, for a GPU machine without Rust.
    Candle(candle::Candle),
    /// Builds the wheel of the Python package, for every Linux with glibc 2.17 or newer.
    Wheel(python::Wheel),
    /// Renews what is generated from the list of kernels: the support matrix of the book.
    Codegen {
        /// Fails where something is stale instead of renewing it.
        #[arg(long)]
        check: bool,
    },
    /// Renews the list of the library's public items, host/public-api.txt.
    Api {
        /// Fails where the list is stale instead of renewing it.
        #[arg(long)]
        check: bool,
    },
    /// Draws the pictures of docs/src/pictures from the record of measurements, and renews the code that texts quote.
    Plots {
        /// Fails where a picture or a quote is stale instead of renewing it.
        #[arg(long)]
        check: bool,
    },
    /// Checks pictures and links of docs/, and builds the book under target/book.
    Book,
    /// Builds and checks all that a release publishes, and publishes nothing.
    Release(release::Release),
    /// Checks the invariants that the compiler does not.
    Tidy,
    /// Everything that must hold: formatting, lints, tidy, documentation, assembled PTX, tests.
    Ci,
}

fn main() -> ExitCode {
    match run(Command::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether all is well; what is not has been said.
fn run(command: Command) -> anyhow::Result<bool> {
    let workspace = Workspace::find()?;
    let done = match command {
        Command::Test(options) => return test::test(&workspace, &options),
        Command::Ci => return ci::ci(&workspace),
        Command::Demo => demo::demo(&workspace),
        Command::BuildPtx(options) => ptx::build_ptx(&workspace, &options),
        Command::Prebuild(options) => prebuild::prebuild(&workspace, &options),
        Command::Tools => tools::install(&workspace).map(|_programs| ()),
        Command::Bench(options) => bench::bench(&workspace, &options),
        Command::Bundle(options) => bundle::bundle(&workspace, &options),
        Command::Candle(options) => candle::candle(&workspace, &options),
        Command::Wheel(options) => python::wheel(&workspace, &options),
        Command::Codegen { check } => codegen::codegen(&workspace, Mode::of(check)),
        Command::Api { check } => api::api(&workspace, Mode::of(check)),
        Command::Plots { check } => book::plots(&workspace, Mode::of(check)),
        Command::Book => book::book(&workspace),
        Command::Release(options) => release::release(&workspace, &options),
        Command::Tidy => tidy::tidy(&workspace),
    };
    done.map(|()| true)
}

//! The command `ferroflash`: attention on a file, what this machine can run, and how fast.
#![forbid(unsafe_code)]

mod arguments;
mod bench;
mod compare;
mod device;
mod estimate;
mod expressions;
mod failure;
mod info;
mod input;
mod kernels;
mod mask;
mod output;
mod posed;
mod print;
mod profile;
mod run;
mod tensors;
mod weights;
mod words;

use std::process::ExitCode;

use arguments::{Arguments, Command};
use clap::Parser;

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Run(arguments) => run::run(&arguments),
        Command::Weights(arguments) => weights::weights(&arguments),
        Command::Info(arguments) => info::info(&arguments),
        Command::Bench(arguments) => bench::bench(&arguments),
        Command::Estimate(arguments) => estimate::estimate(&arguments),
        Command::Profile(arguments) => profile::profile(&arguments),
        Command::Kernels { command } => kernels::kernels(&command),
    };
    match done {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("error: {failure}");
            failure.exit_code()
        }
    }
}

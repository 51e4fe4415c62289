//! The command `ferroflash`: attention on a file, what this machine can run, and how fast.
#![forbid(unsafe_code)]

mod arguments;
mod bench;
mod compare;
mod demo;
mod device;
mod estimate;
mod expressions;
mod failure;
mod info;
mod input;
mod kernels;
mod manual;
mod mask;
mod output;
mod plot;
mod posed;
mod print;
mod profile;
mod run;
mod tensors;
mod timeline;
mod weights;
mod words;

use std::process::ExitCode;

use arguments::{Arguments, Command};
use clap::Parser;

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Demo(arguments) => demo::demo(&arguments),
        Command::Run(arguments) => run::run(&arguments),
        Command::Weights(arguments) => weights::weights(&arguments),
        Command::Info(arguments) => info::info(&arguments),
        Command::Bench(arguments) => bench::bench(&arguments),
        Command::Estimate(arguments) => estimate::estimate(&arguments),
        Command::Profile(arguments) => profile::profile(&arguments),
        Command::Plot(arguments) => plot::plot(&arguments),
        Command::Timeline(arguments) => timeline::timeline(&arguments),
        Command::Kernels { command } => kernels::kernels(&command),
        Command::Completions(arguments) => manual::completions(&arguments),
        Command::Man(arguments) => manual::man(&arguments),
    };
    match done {
        Ok(code) => code,
        Err(failure) => {
            print::error(&failure);
            failure.exit_code()
        }
    }
}

//! The command line.

#[cfg(test)]
mod tests;

use clap::{Parser, Subcommand};

use crate::bench::arguments::BenchArguments;
use crate::estimate::EstimateArguments;
use crate::info::InfoArguments;
use crate::kernels::KernelsCommand;
use crate::profile::ProfileArguments;
use crate::run::RunArguments;
use crate::weights::WeightsArguments;

/// The end of `--help`.
const EXIT_CODES: &str = "Exit codes: 0 done; 1 results differ from the stored ones beyond the tolerance; 2 bad input \
or options; 3 nothing here can run it (no such device, no kernel for the problem, the driver refused).";

/// Exact attention on this machine: on a GPU with kernels written in Rust, or on all cores of the processor.
#[derive(Debug, Parser)]
#[command(version, after_help = EXIT_CODES)]
pub struct Arguments {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommand.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs attention on q, k, v (and d_o, d_lse) of a safetensors file and compares with the results stored in it.
    #[command(after_help = EXIT_CODES)]
    Run(RunArguments),
    /// Shows rows of the attention weights of one head: the strongest keys of each row, all weights, or a picture. The processor computes only these rows.
    #[command(after_help = EXIT_CODES)]
    Weights(WeightsArguments),
    /// Shows what this machine has, and what would run for a problem and why.
    #[command(after_help = EXIT_CODES)]
    Info(InfoArguments),
    /// Measures time, TFLOP/s, GB/s and extra memory on random inputs.
    #[command(after_help = EXIT_CODES)]
    Bench(Box<BenchArguments>),
    /// Predicts FLOPs, bytes, memory and time of standard attention, FlashAttention and its successors on a GPU, which this machine need not have.
    #[command(after_help = EXIT_CODES)]
    Estimate(EstimateArguments),
    /// Measures a problem kernel by kernel, and compares it with the estimate and a simulation of the schedule.
    #[command(after_help = EXIT_CODES)]
    Profile(Box<ProfileArguments>),
    /// Compiles kernels before their first use, or measures the cost of that use.
    #[command(after_help = EXIT_CODES)]
    Kernels {
        /// Compile or measure.
        #[command(subcommand)]
        command: KernelsCommand,
    },
}

//! The command line.

#[cfg(test)]
mod tests;

use std::fmt::Write;

use clap::builder::StyledStr;
use clap::{Parser, Subcommand};

use crate::bench::arguments::BenchArguments;
use crate::demo::DemoArguments;
use crate::estimate::EstimateArguments;
use crate::failure::EXIT_CODES;
use crate::info::InfoArguments;
use crate::kernels::KernelsCommand;
use crate::manual::{CompletionsArguments, ManArguments};
use crate::plot::PlotArguments;
use crate::print::{LITERAL, OF_HELP};
use crate::profile::ProfileArguments;
use crate::run::RunArguments;
use crate::timeline::TimelineArguments;
use crate::weights::WeightsArguments;

/// What `--help` says at its end: examples, a command and what it does, and the exit codes.
pub fn at_end(examples: &[(&str, &str)]) -> StyledStr {
    let heading = OF_HELP.get_header();
    let mut text = StyledStr::new();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{heading}Examples:{heading:#}");
    for (command, what) in examples {
        let _ = writeln!(text, "  {LITERAL}{command}{LITERAL:#}\n      {what}");
    }
    let _ = writeln!(text, "\n{heading}Exit codes:{heading:#}");
    for (code, meaning) in EXIT_CODES {
        let _ = writeln!(text, "  {LITERAL}{code}{LITERAL:#}  {meaning}");
    }
    text
}

/// Exact attention on this machine: on a GPU with kernels written in Rust, or on all cores of the processor.
#[derive(Debug, Parser)]
#[command(name = "ferroflash", version, styles = OF_HELP, after_help = at_end(&[
    ("ferroflash demo", "Runs attention here, checks it against float64 and measures it."),
    ("ferroflash info --seqlen 4096 --head-dim 128 --causal", "Says which kernel would run, and why."),
]))]
pub struct Arguments {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommand.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs attention on what this machine has, without any file: checks both passes against float64, and measures a longer input.
    #[command(after_help = at_end(&[
        ("ferroflash demo", "On the GPU where there is one, else on the processor."),
        ("ferroflash demo --backend cpu", "On the processor."),
    ]))]
    Demo(DemoArguments),
    /// Runs attention on q, k, v (and d_o, d_lse) of a safetensors file and compares with the results stored in it.
    #[command(after_help = at_end(&[
        ("ferroflash run qkv.safetensors", "Runs what the file holds, and compares."),
        ("ferroflash run qkv.safetensors --output o.safetensors --pass both --causal", "Writes o, lse and the gradients."),
    ]))]
    Run(RunArguments),
    /// Shows rows of the attention weights of one head: the strongest keys of each row, all weights, or a picture. The processor computes
    /// only these rows.
    #[command(after_help = at_end(&[
        ("ferroflash weights qkv.safetensors --head 3 --rows 0..64 --svg weights.svg", "Prints the strongest keys and draws a heat map."),
    ]))]
    Weights(WeightsArguments),
    /// Shows what this machine has, and what would run for a problem and why.
    #[command(after_help = at_end(&[
        ("ferroflash info", "Lists devices and kernels, and plans a usual problem."),
        ("ferroflash info --seqlen 4096 --head-dim 128 --causal --dtype f16", "Plans this problem."),
    ]))]
    Info(InfoArguments),
    /// Measures time, TFLOP/s, GB/s and extra memory on random inputs.
    #[command(after_help = at_end(&[
        ("ferroflash bench --seqs 512..4096 --hdims 128 --causal 1", "Every schedule that can run, at four lengths."),
        ("ferroflash bench --seqs 512..4096 --hdims 128 --report report.html", "The same as a page to send: chart, table, machine."),
        ("ferroflash bench --compare standard,flash2,flash3 --seqs 512..16384 --svg compare.svg", "Measurements with predictions, drawn."),
        ("ferroflash bench --decode --batch 1,8 --seqlen-k 8192 --json > rows.jsonl", "Few queries over a cache, for ferroflash plot."),
    ]))]
    Bench(Box<BenchArguments>),
    /// Draws what `ferroflash bench --json` has printed: in the terminal, and as SVG.
    #[command(after_help = at_end(&[
        ("ferroflash plot rows.jsonl --svg speed.svg", "Bars in the terminal, and a chart by length."),
        ("ferroflash bench --json | ferroflash plot -", "Measures and draws."),
    ]))]
    Plot(PlotArguments),
    /// Predicts FLOPs, bytes, memory and time of standard attention, FlashAttention and its successors on a GPU, which this machine need not have.
    #[command(after_help = at_end(&[
        ("ferroflash estimate --gpu H200 --seqlen 8192 --heads 16 --head-dim 128", "One problem: times, and what binds them."),
        ("ferroflash estimate --gpu A100 --seqs 512..16384 --svg times.svg", "A sweep, printed and drawn."),
    ]))]
    Estimate(EstimateArguments),
    /// Draws the schedule of a kernel: which block of threads works on which tile when, by simulation. It needs no GPU.
    #[command(after_help = at_end(&[
        ("ferroflash timeline --sms 8 --seqlen 2048 --heads 4 --causal", "The forward pass on eight SMs of an H200, in the terminal."),
        ("ferroflash timeline --pass bwd --steps --sms 8 --seqlen 512 --heads 2 --svg timeline.svg", "Every step of the backward pass, drawn."),
    ]))]
    Timeline(TimelineArguments),
    /// Measures a problem kernel by kernel, and compares it with the estimate and a simulation of the schedule.
    #[command(after_help = at_end(&[
        ("ferroflash profile --seqlen 8192 --head-dim 128 --causal", "Every launch on the GPU that is here."),
        ("ferroflash profile --predict --gpu H200 --svg timeline.svg", "What is known without a GPU."),
    ]))]
    Profile(Box<ProfileArguments>),
    /// Compiles kernels before their first use, or measures the cost of that use.
    #[command(after_help = at_end(&[
        ("ferroflash kernels compile --for 'forward bf16 128 causal' --folder kernels --compute-capability 9.0", "Ahead, without a GPU."),
    ]))]
    Kernels {
        /// Compile or measure.
        #[command(subcommand)]
        command: KernelsCommand,
    },
    /// Prints completions of this command for a shell.
    #[command(after_help = at_end(&[
        ("ferroflash completions bash > ~/.local/share/bash-completion/completions/ferroflash", "For bash, from the next shell on."),
        ("ferroflash completions zsh > ~/.zfunc/_ferroflash", "For zsh, where ~/.zfunc is in fpath."),
    ]))]
    Completions(CompletionsArguments),
    /// Prints the manual page of this command, or of one of its subcommands.
    #[command(after_help = at_end(&[
        ("ferroflash man > ~/.local/share/man/man1/ferroflash.1", "Installs the page for `man ferroflash`."),
        ("ferroflash man bench | man -l -", "Reads the page of a subcommand."),
    ]))]
    Man(ManArguments),
}

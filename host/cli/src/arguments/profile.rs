//! Options of `profile`.

use std::path::PathBuf;

use clap::Args;

use super::{AlgorithmName, BenchPass, DtypeName, OrderName, SizeWords};

/// Options of `profile`: a problem, and what is to be known of it.
#[derive(Debug, Args)]
pub struct ProfileArguments {
    /// Sizes and mask of the problem.
    #[command(flatten)]
    pub sizes: SizeWords,
    /// Type of the elements.
    #[arg(long, default_value = "bf16")]
    pub dtype: DtypeName,
    /// Which passes.
    #[arg(long, value_delimiter = ',', default_value = "fwd,bwd")]
    pub passes: Vec<BenchPass>,
    /// The schedule; one that cannot serve is an error.
    #[arg(long, default_value = "auto")]
    pub algorithm: AlgorithmName,
    /// Order of the backward pass's sums.
    #[arg(long, default_value = "deterministic")]
    pub order: OrderName,
    /// Touches no GPU: launches, work, bytes, the predicted time and the idle share of the schedule on --gpu.
    #[arg(long, conflicts_with = "ncu")]
    pub predict: bool,
    /// The GPU that the estimate is of, as `ferroflash estimate` takes it. Unless given: the one that is measured; with --predict H200.
    #[arg(long)]
    pub gpu: Option<String>,
    /// Milliseconds of measuring.
    #[arg(long, default_value_t = 60)]
    pub rep: u64,
    /// Milliseconds of running before that. A GPU that has rested is faster than one that has worked for a while.
    #[arg(long, default_value_t = 15)]
    pub warm_up: u64,
    /// Runs this command once more under `ncu`, which has to be on PATH: the share of cycles in which tensor cores are busy, and bytes of the memory,
    /// of each kernel.
    #[arg(long)]
    pub ncu: bool,
    /// What `ncu` runs: each pass once, and nothing is printed.
    #[arg(long, hide = true, conflicts_with_all = ["ncu", "predict", "json", "svg"])]
    pub once: bool,
    /// Prints one JSON object a pass instead of tables.
    #[arg(long)]
    pub json: bool,
    /// Draws which block of threads works on which tile when: by time stamps, where the main kernel has a copy that writes them, and by the simulator; with
    /// --predict by the simulator alone. An existing file is replaced.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

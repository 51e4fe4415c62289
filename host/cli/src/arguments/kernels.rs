//! Options of `kernels`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand};
use ferroflash::ahead::CallKind;

/// What to do with kernels.
#[derive(Debug, Subcommand)]
pub enum KernelsCommand {
    /// Compiles kernels into a folder, where --kernel-cache and programs find them. Without --compute-capability for the GPU that is here, by `ptxas` or else by its
    /// driver; with it no GPU is needed, but `ptxas` is.
    Compile(CompileArguments),
    /// Measures how long the first use of each kernel takes: without a folder, with an empty one, and with that folder filled. The driver has a cache of its own, which
    /// CUDA_CACHE_DISABLE=1 switches off.
    Time(TimeArguments),
}

/// Options of `kernels compile`.
#[derive(Debug, Args)]
pub struct CompileArguments {
    /// Which kernels.
    #[command(flatten)]
    pub calls: CallWords,
    /// The folder, which is made where there is none. Kernels that are there are not compiled again.
    #[arg(long)]
    pub folder: PathBuf,
    /// For GPUs of this compute capability.
    #[arg(long, value_name = "MAJOR.MINOR")]
    pub compute_capability: Option<ComputeCapability>,
}

/// Options of `kernels time`.
#[derive(Debug, Args)]
pub struct TimeArguments {
    /// Which kernels.
    #[command(flatten)]
    pub calls: CallWords,
}

/// Which kernels, and what compiles them.
#[derive(Debug, Args)]
pub struct CallWords {
    /// Calls whose kernels are meant; once for each kind. The pass, the element type, head_dim (or head_dim/head_dim_v), then any of: causal, window, prefix; packed, seqused;
    /// pages, e4m3, values-in-keys; block-mask, sinks, dropout; fastest, full; flash1, flash2, flash3, standard. All sizes are meant unless
    /// batch=N, heads=N/N, seqlen=N, seqlen_k=N or page_size=N say one.
    #[arg(long = "for", value_name = "CALLS", required = true)]
    pub calls: Vec<CallKind>,
    /// NVIDIA's assembler. Unless given: the one on PATH, in /usr/local/cuda, or in Python's packages (nvidia-cuda-nvcc, triton).
    #[arg(long, value_name = "PROGRAM")]
    pub ptxas: Option<PathBuf>,
}

/// A compute capability, `9.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComputeCapability(pub u32, pub u32);

impl FromStr for ComputeCapability {
    type Err = String;

    fn from_str(text: &str) -> Result<ComputeCapability, String> {
        let numbers = text.split_once('.');
        match numbers.map(|(major, minor)| (major.parse(), minor.parse())) {
            Some((Ok(major), Ok(minor))) => Ok(ComputeCapability(major, minor)),
            _ => Err("allowed: two numbers, as 9.0".into()),
        }
    }
}

//! The command line.

mod bench;
mod device;
mod estimate;
mod kernels;
mod profile;
#[cfg(test)]
mod quoted;
mod weights;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use ferroflash::{Algorithm, Dtype, Order, Pass, Precision, Problem, ProblemBuilder};

pub use bench::{BenchArguments, BenchPass, CacheLengths, Heads, KvDtype};
pub use device::DeviceWords;
pub use estimate::{EstimateArguments, Sweep};
pub use kernels::{CompileArguments, ComputeCapability, KernelsCommand, TimeArguments};
pub use profile::ProfileArguments;
pub use weights::{Rows, WeightsArguments};

use crate::expressions::{MaskWord, ScoreWord};
use crate::failure::Failure;
use crate::mask::MaskWords;
use crate::posed::ProblemWords;

/// What `--help` says at its end.
const EXIT_CODES: &str = "Exit codes: 0 done; 1 results differ from the stored ones beyond the tolerance; 2 bad input \
or options; 3 nothing here can run it (no such device, no kernel for the problem, the driver refused).";

/// Exact attention on whatever this machine has: a GPU with kernels written in Rust, or all cores of the processor.
#[derive(Debug, Parser)]
#[command(version, after_help = EXIT_CODES)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs attention on q, k, v (and d_o, d_lse) of a safetensors file and compares with the results stored in it.
    #[command(after_help = EXIT_CODES)]
    Run(RunArguments),
    /// Shows rows of the attention weights of one head: the strongest keys of each row, all weights, or a picture. The processor computes
    /// these rows and no others.
    #[command(after_help = EXIT_CODES)]
    Weights(WeightsArguments),
    /// Says what this machine has, and what would run for a problem and why.
    #[command(after_help = EXIT_CODES)]
    Info(InfoArguments),
    /// Measures time, TFLOP/s, GB/s and extra memory on random inputs.
    #[command(after_help = EXIT_CODES)]
    Bench(Box<BenchArguments>),
    /// Predicts FLOPs, bytes, memory and time of standard attention, FlashAttention and its successors on a GPU that need not be here.
    #[command(after_help = EXIT_CODES)]
    Estimate(EstimateArguments),
    /// Measures a problem kernel by kernel, beside what the estimate and a simulation of the schedule say of it.
    #[command(after_help = EXIT_CODES)]
    Profile(Box<ProfileArguments>),
    /// Compiles kernels before their first use, or measures what that use costs.
    #[command(after_help = EXIT_CODES)]
    Kernels {
        /// Which of both.
        #[command(subcommand)]
        command: KernelsCommand,
    },
}

/// Options of `run`.
#[derive(Debug, Args)]
pub struct RunArguments {
    /// Tensors q, k, v and, for the backward pass, d_o: `[batch, seqlen, heads, head_dim]`, bf16, f16 or f32; beside d_o,
    /// if the loss depends on lse, d_lse: `[batch, heads_q, seqlen_q]`, f32. Sequences of different lengths: cu_seqlens_q and
    /// cu_seqlens_k beside packed tensors `[total, heads, head_dim]`, seqused_q, seqused_k and leftpad_k beside any, i32 or i64.
    /// A block mask: block_mask, `[batch or 1, heads_q or 1, blocks of queries, blocks of keys]`, u8, with metadata block_q and block_k
    /// (128 unless given). Sinks: sinks, `[heads_q]`. What expressions read, by its name.
    pub input: PathBuf,
    /// Where to write o, lse, d_q, d_k, d_v and d_sinks; an existing file is replaced when all is done.
    #[arg(long)]
    pub output: Option<PathBuf>,
    /// Which passes; `both` needs d_o. Unless given: both where the file has d_o.
    #[arg(long)]
    pub pass: Option<Passes>,
    /// What runs it.
    #[command(flatten)]
    pub on: DeviceWords,
    /// The schedule; one that cannot serve is an error.
    #[arg(long, default_value = "auto")]
    pub algorithm: AlgorithmName,
    /// The problem, as far as the file does not say it.
    #[command(flatten)]
    pub problem: ProblemWords,
    /// Order of the backward pass's sums.
    #[arg(long, default_value = "deterministic")]
    pub order: OrderName,
}

/// A problem in numbers: its sizes and its mask.
#[derive(Debug, Args)]
pub struct SizeWords {
    /// Number of batch entries.
    #[arg(long, default_value_t = 1)]
    pub batch: usize,
    /// Rows of q and, unless --seqlen-k says otherwise, of k and v.
    #[arg(long, default_value_t = 4096)]
    pub seqlen: usize,
    /// Rows of k and v.
    #[arg(long)]
    pub seqlen_k: Option<usize>,
    /// Heads of q and, unless --heads-k says otherwise, of k and v.
    #[arg(long, default_value_t = 16)]
    pub heads: usize,
    /// Heads of k and v.
    #[arg(long)]
    pub heads_k: Option<usize>,
    /// Columns of q and k and, unless --head-dim-v says otherwise, of v and o.
    #[arg(long, default_value_t = 128)]
    pub head_dim: usize,
    /// Columns of v and o.
    #[arg(long)]
    pub head_dim_v: Option<usize>,
    /// How exact products of f32 tensors are on a GPU: `tensor`, tf32; or `full`, three products of tf32 in place of one.
    #[arg(long, default_value = "tensor", value_name = "tensor|full")]
    pub precision: Precision,
    /// The mask.
    #[command(flatten)]
    pub mask: MaskWords,
}

impl SizeWords {
    /// The problem of these sizes, in this type.
    pub fn problem(&self, dtype: Dtype) -> Result<ProblemBuilder, Failure> {
        Ok(Problem::builder(dtype)
            .batch(self.batch)
            .seqlen_q(self.seqlen)
            .seqlen_k(self.seqlen_k.unwrap_or(self.seqlen))
            .heads_q(self.heads)
            .heads_k(self.heads_k.unwrap_or(self.heads))
            .head_dim(self.head_dim)
            .head_dim_v(self.head_dim_v.unwrap_or(self.head_dim))
            .precision(self.precision)
            .mask(self.mask.mask().map_err(Failure::Option)?))
    }
}

/// Options of `info`: a problem.
#[derive(Debug, Args)]
pub struct InfoArguments {
    /// Its sizes and its mask.
    #[command(flatten)]
    pub sizes: SizeWords,
    /// Type of the elements.
    #[arg(long, default_value = "bf16")]
    pub dtype: DtypeName,
    /// An expression in place of the scores: a name of `bench --score`, or the text of an expression. Prints its derivative and its PTX,
    /// and on a GPU what the driver's compiler makes of kernels with it.
    #[arg(long, value_name = "NAME|TEXT")]
    pub score: Option<ScoreWord>,
    /// An expression that hides keys beside the mask: a name of `bench --mask-expression`, or the text of an expression.
    #[arg(long, value_name = "NAME|TEXT")]
    pub mask_expression: Option<MaskWord>,
    /// Which passes.
    #[arg(long, default_value = "both")]
    pub pass: Passes,
    /// What would run it.
    #[command(flatten)]
    pub on: DeviceWords,
    /// The schedule.
    #[arg(long, default_value = "auto")]
    pub algorithm: AlgorithmName,
    /// Lists every kernel.
    #[arg(long)]
    pub kernels: bool,
}

/// Which passes to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Passes {
    /// o and lse.
    Forward,
    /// o, lse, and the gradients.
    Both,
}

impl Passes {
    /// The passes.
    pub fn list(self) -> &'static [Pass] {
        match self {
            Passes::Forward => &[Pass::Forward],
            Passes::Both => &[Pass::Forward, Pass::Backward],
        }
    }
}

/// A schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AlgorithmName {
    /// The fastest that can serve.
    Auto,
    /// Scores in memory.
    Standard,
    /// FlashAttention, the first paper's: only where it is named.
    Flash1,
    /// FlashAttention-2.
    Flash2,
    /// FlashAttention-3.
    Flash3,
    /// The CPU's.
    Tiled,
}

impl AlgorithmName {
    /// The algorithm, if it is one by name.
    pub fn algorithm(self) -> Option<Algorithm> {
        match self {
            AlgorithmName::Auto => None,
            AlgorithmName::Standard => Some(Algorithm::Standard),
            AlgorithmName::Flash1 => Some(Algorithm::Flash1),
            AlgorithmName::Flash2 => Some(Algorithm::Flash2),
            AlgorithmName::Flash3 => Some(Algorithm::Flash3),
            AlgorithmName::Tiled => Some(Algorithm::Tiled),
        }
    }
}

/// Order of the backward pass's sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OrderName {
    /// Bit-equal from run to run.
    Deterministic,
    /// As they come.
    Fastest,
}

impl From<OrderName> for Order {
    fn from(name: OrderName) -> Order {
        match name {
            OrderName::Deterministic => Order::Deterministic,
            OrderName::Fastest => Order::Fastest,
        }
    }
}

/// Type of the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DtypeName {
    /// bfloat16.
    Bf16,
    /// IEEE binary16.
    #[value(alias = "fp16")]
    F16,
    /// IEEE binary32.
    #[value(alias = "fp32")]
    F32,
}

impl From<DtypeName> for Dtype {
    fn from(name: DtypeName) -> Dtype {
        match name {
            DtypeName::Bf16 => Dtype::Bf16,
            DtypeName::F16 => Dtype::F16,
            DtypeName::F32 => Dtype::F32,
        }
    }
}

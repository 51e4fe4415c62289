//! `ferroflash estimate`: the predicted cost of attention on a GPU. It touches no device, except with `--device`.

mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ferroflash::{Device, Dtype, ProblemBuilder};
use ferroflash_lab::estimate::Gpu;
use ferroflash_lab::estimate::sweep::{self, Case};

use crate::failure::Failure;
use crate::output;
use crate::posed::SizeWords;
use crate::words::{InEightBits, Lens, Passes, dtype, fp8, passes, sweep};

/// Options of `estimate`: a GPU and a problem.
#[derive(Debug, Args)]
pub struct EstimateArguments {
    /// A GPU of the table: T4, V100, A100 (SXM, 80 GB), "A100 40GB", "A100 PCIe" (80 GB), L4, "RTX 4090", H100, H200, B200.
    #[arg(long, conflicts_with_all = ["device", "peak", "bandwidth", "sram", "sms"])]
    pub gpu: Option<String>,
    /// The present GPU. Its peak and bandwidth come from the table, or from --peak and --bandwidth.
    #[arg(long, conflicts_with_all = ["sram", "sms"])]
    pub device: bool,
    /// A custom GPU: its peak for dense products of the problem's type, TFLOP/s. With --bandwidth, --sram and --sms.
    #[arg(
        long,
        value_name = "TFLOPS",
        requires = "bandwidth",
        allow_negative_numbers = true
    )]
    pub peak: Option<f64>,
    /// Bandwidth of its memory, GB/s (10⁹ bytes). With --peak.
    #[arg(
        long,
        value_name = "GB/S",
        requires = "peak",
        allow_negative_numbers = true
    )]
    pub bandwidth: Option<f64>,
    /// Shared memory of one of its SMs, KB (1024 bytes). With --peak, --bandwidth and --sms. It decides which
    /// kernels fit, and so the tiles of the backward pass; it does not enter the formulas of bytes.
    #[arg(long, value_name = "KB", requires = "peak")]
    pub sram: Option<u32>,
    /// Its number of SMs. With --peak, --bandwidth and --sram.
    #[arg(long, value_name = "N", requires = "peak")]
    pub sms: Option<u32>,
    /// Sizes and mask of the problem.
    #[command(flatten)]
    pub sizes: SizeWords,
    /// A sweep: rows of q, k and v from the first number on, doubled up to the second.
    #[arg(long, value_name = "FIRST..LAST", value_parser = sweep, conflicts_with_all = ["seqlen", "seqlen_k"])]
    pub seqs: Option<Lens>,
    /// Type of the elements. Unless given: bf16, or f16 if the GPU's tensor cores have no bf16.
    #[arg(long, value_parser = dtype())]
    pub dtype: Option<Dtype>,
    /// q, k and v in e4m3, multiplied in 8 bits in the forward pass, on Hopper: which scales they have, and of how many levels sums over the keys are. o has the type
    /// of --dtype.
    #[arg(long, value_name = "two-levels|one-level|blocks", value_parser = fp8())]
    pub fp8: Option<InEightBits>,
    /// The passes.
    #[arg(long, default_value = "both", value_parser = passes())]
    pub pass: Passes,
    /// Prints one JSON object a line instead of a table.
    #[arg(long)]
    pub json: bool,
    /// Draws the times of a sweep, both axes logarithmic; an existing file is replaced.
    #[arg(long, value_name = "FILE", requires = "seqs")]
    pub svg: Option<PathBuf>,
}

/// Prints the predictions, and draws them if asked to.
pub fn estimate(arguments: &EstimateArguments) -> Result<ExitCode, Failure> {
    let gpu = gpu(arguments)?;
    let cases = cases(arguments, &gpu)?;
    if let Some(path) = &arguments.svg {
        output::replace(path, sweep::svg(&gpu, &cases)?.as_bytes())?;
    }
    match (arguments.json, &arguments.seqs) {
        (true, _) => table::print_json(&gpu, &cases),
        (false, Some(_)) => table::print_sweep(&gpu, &cases)?,
        (false, None) => table::print(&gpu, &cases)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The chosen GPU.
fn gpu(arguments: &EstimateArguments) -> Result<Gpu, Failure> {
    let given = match (arguments.peak, arguments.bandwidth) {
        (Some(peak), Some(bandwidth)) => Some((peak * 1e12, bandwidth * 1e9)),
        _ => None,
    };
    if arguments.device {
        let device = Device::cuda(0)?;
        return Ok(match given {
            Some((peak, bandwidth)) => Gpu::of_device_with(device.info(), peak, bandwidth)?,
            None => Gpu::of_device(device.info())?,
        });
    }
    if let Some(name) = &arguments.gpu {
        return Ok(Gpu::named(name)?);
    }
    match (given, arguments.sram, arguments.sms) {
        (Some((peak, bandwidth)), Some(sram), Some(n_sms)) => {
            Ok(Gpu::custom(peak, bandwidth, u64::from(sram) << 10, n_sms)?)
        }
        (Some(_), _, _) => Err(Failure::Option(
            "--peak and --bandwidth are given without --sram and --sms; allowed: all four, or both with --device".into(),
        )),
        (None, _, _) => Err(Failure::Option(format!(
            "no GPU is given; allowed: --gpu with one of {}; --device; or --peak, --bandwidth, --sram and --sms",
            Gpu::names()
        ))),
    }
}

fn cases(arguments: &EstimateArguments, gpu: &Gpu) -> Result<Vec<Case>, Failure> {
    let dtype = match arguments.dtype {
        Some(dtype) => dtype,
        None if gpu.bf16_flops.is_some() => Dtype::Bf16,
        None => Dtype::F16,
    };
    let builder = arguments.sizes.problem(dtype)?;
    let builder = match arguments.fp8 {
        Some((scales, sums)) => builder.fp8(scales).fp8_sums(sums),
        None => builder,
    };
    let builders = match &arguments.seqs {
        Some(lengths) => lengths.iter().map(|&n| builder.seqlen(n)).collect(),
        None => vec![builder],
    };
    let case = |builder: ProblemBuilder| Ok(Case::new(builder.build()?, gpu, arguments.pass)?);
    builders.into_iter().map(case).collect()
}

//! `ferroflash estimate`: what attention costs on a GPU, predicted. It touches no device, but for `--device`.

mod table;

use std::process::ExitCode;

use ferroflash::{Device, Dtype, ProblemBuilder};
use ferroflash_lab::estimate::Gpu;
use ferroflash_lab::estimate::sweep::{self, Case};

use crate::arguments::EstimateArguments;
use crate::failure::Failure;
use crate::output;

/// Prints the predictions, and draws them if that is asked for.
pub fn estimate(arguments: &EstimateArguments) -> Result<ExitCode, Failure> {
    let gpu = gpu(arguments)?;
    let cases = cases(arguments, &gpu)?;
    if let Some(path) = &arguments.svg {
        output::replace(path, sweep::svg(&gpu, &cases)?.as_bytes())?;
    }
    match (arguments.json, arguments.seqs) {
        (true, _) => table::print_json(&gpu, &cases),
        (false, Some(_)) => table::print_sweep(&gpu, &cases)?,
        (false, None) => table::print(&gpu, &cases)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The GPU that is meant.
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
        Some(dtype) => dtype.into(),
        None if gpu.bf16_flops.is_some() => Dtype::Bf16,
        None => Dtype::F16,
    };
    let builder = arguments.sizes.problem(dtype)?;
    let builders = match arguments.seqs {
        Some(sweep) => sweep
            .lengths()
            .into_iter()
            .map(|n| builder.seqlen(n))
            .collect(),
        None => vec![builder],
    };
    let case = |builder: ProblemBuilder| {
        let passes = arguments.pass.list();
        Ok(Case::new(builder.build()?, gpu, passes)?)
    };
    builders.into_iter().map(case).collect()
}

//! `ferroflash info`: what this machine has, and what would run for a problem and why.

mod edit;

use std::process::ExitCode;

use ferroflash::backend::cuda::{CudaDevice, missing_kernels, needed_cuda, origin_of_kernels};
use ferroflash::{Attention, Device, Problem};
use ferroflash_kernels::variants::VARIANTS;

use crate::arguments::InfoArguments;
use crate::expressions::{MaskWord, ScoreWord};
use crate::failure::Failure;
use crate::print::say;

/// Prints devices, kernels, and the plans of a problem.
pub fn info(arguments: &InfoArguments) -> Result<ExitCode, Failure> {
    print_driver();
    say!("processor  {}", Device::cpu());
    print_kernels(arguments);
    let problem = problem(arguments)?;
    let device = arguments.on.device()?;
    let mut attention = Attention::new(&device, problem)?;
    if let Some(algorithm) = arguments.algorithm.algorithm() {
        attention = attention.with_algorithm(algorithm);
    }
    edit::print(attention.problem())?;
    for &pass in arguments.pass.list() {
        let explanation = attention.explain(pass)?;
        say!("\n{}", explanation.to_string().trim_end());
        if let (Ok(plan), Some(cuda)) = (&explanation.plan, device.as_cuda()) {
            edit::print_compiled(plan, cuda)?;
        }
    }
    arguments.on.report_kernel_cache(&device);
    Ok(ExitCode::SUCCESS)
}

/// The driver and its devices, or why there are none.
fn print_driver() {
    let n_devices = match CudaDevice::count() {
        Ok(n_devices) => n_devices,
        Err(error) => {
            say!("GPU        {error}");
            return;
        }
    };
    if n_devices == 0 {
        say!("GPU        there is a CUDA driver, but it shows no device");
    }
    for ordinal in 0..n_devices {
        match CudaDevice::open(ordinal) {
            Err(error) => say!("GPU {ordinal}      {error}"),
            Ok(device) => {
                let (info, driver) = (device.info(), device.driver_version());
                let (major, minor) = info.compute_capability;
                say!(
                    "GPU {ordinal}      {}: compute capability {major}.{minor}, {} multiprocessors, {} bytes of memory, \
                     {} bytes of shared memory per block; the driver supports CUDA {}.{}",
                    info.name,
                    info.n_sms,
                    info.memory_bytes,
                    info.shared_bytes_per_block,
                    driver.major,
                    driver.minor
                );
            }
        }
    }
}

fn print_kernels(arguments: &InfoArguments) {
    match (missing_kernels(), needed_cuda()) {
        (Some(reason), _) => say!("kernels    none in this program: {reason}"),
        (None, Some(needed)) => {
            say!(
                "kernels    {} in this program, {}, for CUDA {}.{} and newer",
                VARIANTS.len(),
                origin_of_kernels(),
                needed.major,
                needed.minor
            );
        }
        (None, None) => say!(
            "kernels    {} in this program, {}",
            VARIANTS.len(),
            origin_of_kernels()
        ),
    }
    if arguments.kernels {
        for variant in VARIANTS {
            say!("           {:<32} {}", variant.name, variant.arch.name());
        }
    }
}

fn problem(arguments: &InfoArguments) -> Result<Problem, Failure> {
    let mut builder = arguments.sizes.problem(arguments.dtype.into())?;
    if let Some(ScoreWord(score)) = arguments.score {
        builder = builder.score(score);
    }
    if let Some(MaskWord(mask)) = arguments.mask_expression {
        builder = builder.mask_expression(mask);
    }
    Ok(builder.build()?)
}

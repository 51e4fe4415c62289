//! `ferroflash info`: what this machine has, and what would run for a problem and why.

mod edit;

use std::process::ExitCode;

use clap::Args;
use ferroflash::backend::cuda::{CudaDevice, missing_kernels, needed_cuda, origin_of_kernels};
use ferroflash::{Device, Dtype};
use ferroflash_kernels::variants::VARIANTS;

use crate::bench::scheduled;
use crate::device::DeviceWords;
use crate::failure::Failure;
use crate::posed::{EditWords, SizeWords};
use crate::print::say;
use crate::words::{Passes, Schedule, dtype, passes, schedule};

/// Options of `info`: a problem.
#[derive(Debug, Args)]
pub struct InfoArguments {
    /// Its sizes and its mask.
    #[command(flatten)]
    pub sizes: SizeWords,
    /// Type of the elements.
    #[arg(long, default_value = "bf16", value_parser = dtype())]
    pub dtype: Dtype,
    /// Its expressions. Prints their derivative and their PTX, and on a GPU the properties of kernels that the driver compiles with them.
    #[command(flatten)]
    pub edit: EditWords,
    /// The passes.
    #[arg(long, default_value = "both", value_parser = passes())]
    pub pass: Passes,
    /// The device.
    #[command(flatten)]
    pub on: DeviceWords,
    /// The schedule.
    #[arg(long, default_value = "auto", value_parser = schedule())]
    pub algorithm: Schedule,
    /// Lists every kernel.
    #[arg(long)]
    pub kernels: bool,
}

/// Prints devices, kernels, and the plans of a problem.
pub fn info(arguments: &InfoArguments) -> Result<ExitCode, Failure> {
    print_driver();
    say!("processor  {}", Device::cpu());
    print_kernels(arguments);
    let builder = arguments.sizes.problem(arguments.dtype)?;
    let problem = arguments.edit.put(builder).build()?;
    let device = arguments.on.device()?;
    let attention = scheduled(&device, problem, arguments.algorithm)?;
    edit::print(attention.problem())?;
    for &pass in arguments.pass {
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
    let needed = needed_cuda().map_or(String::new(), |needed| {
        format!(", for CUDA {}.{} and newer", needed.major, needed.minor)
    });
    let (n, origin) = (VARIANTS.len(), origin_of_kernels());
    match missing_kernels() {
        Some(reason) => say!("kernels    none in this program: {reason}"),
        None => say!("kernels    {n} in this program, {origin}{needed}"),
    }
    if arguments.kernels {
        for variant in VARIANTS {
            say!("           {:<32} {}", variant.name, variant.arch.name());
        }
    }
}

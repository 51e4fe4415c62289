//! `ferroflash kernels`: kernels compiled before their first use, and what that use costs.

mod time;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ferroflash::Device;
use ferroflash::ahead::{AheadKernel, Compiler, ReadyKernel, kernels as kernels_of, on_threads};
use ferroflash::backend::cuda::{KernelCompiler, Origin, Ptxas};
use ferroflash::error::DriverError;
use ferroflash::plan::DeviceInfo;
use indicatif::{ProgressBar, ProgressStyle};

use crate::arguments::{CompileArguments, ComputeCapability, KernelsCommand};
use crate::failure::{CANNOT_RUN, Failure};
use crate::print::say;
use crate::ptxas;

/// Compiles, or measures.
pub fn kernels(command: &KernelsCommand) -> Result<ExitCode, Failure> {
    match command {
        KernelsCommand::Compile(arguments) => compile(arguments),
        KernelsCommand::Time(arguments) => time::time(arguments),
    }
}

fn compile(arguments: &CompileArguments) -> Result<ExitCode, Failure> {
    let found = ptxas::find(arguments.calls.ptxas.as_deref())?;
    let by = match &found {
        Some(ptxas) => format!("ptxas ({ptxas})"),
        None => "the driver".to_owned(),
    };
    let device = match arguments.compute_capability {
        Some(_) => None,
        None => Some(here(found.clone(), &arguments.folder)?),
    };
    let cuda = device.as_ref().and_then(Device::as_cuda);
    let compiler = match (cuda, arguments.compute_capability) {
        (Some(cuda), _) => Compiler::Here(cuda),
        (None, given) => ahead(given, found, &arguments.folder)?,
    };
    let kernels = kernels_of(&arguments.calls.calls, compiler.info())?;
    let (major, minor) = compiler.info().compute_capability;
    say!(
        "kernels    {} for compute capability {major}.{minor}, by {by}, in {}",
        kernels.len(),
        arguments.folder.display()
    );
    let start = Instant::now();
    let bar = bar(kernels.len());
    let ready = on_threads(&kernels, |kernel| {
        let ready = compiler.compile(kernel);
        bar.set_message(kernel.to_string());
        bar.inc(1);
        ready
    });
    bar.finish_and_clear();
    let failed = print(&kernels, &ready, start.elapsed());
    if let Some(fault) = cuda.and_then(|cuda| cuda.kernel_cache_use().last_fault) {
        eprintln!("kernel cache: {fault}");
    }
    Ok(ExitCode::from(if failed { CANNOT_RUN } else { 0 }))
}

/// By `ptxas`, for a GPU that need not be here.
fn ahead(
    given: Option<ComputeCapability>,
    ptxas: Option<Ptxas>,
    folder: &Path,
) -> Result<Compiler<'static>, Failure> {
    let ComputeCapability(major, minor) = given.unwrap_or(ComputeCapability(0, 0));
    let Some(info) = DeviceInfo::of_compute_capability((major, minor)) else {
        return Err(Failure::Option(format!(
            "--compute-capability {major}.{minor}: no kernel runs there; allowed: 8.0, 8.6, 8.7, 8.9, 9.0, 10.0 and newer"
        )));
    };
    let Some(ptxas) = ptxas else {
        return Err(Failure::Option(
            "--compute-capability needs ptxas, and none is found on PATH, in /usr/local/cuda or in Python's packages; --ptxas names one \
             (`pip install nvidia-cuda-nvcc` brings it)"
                .into(),
        ));
    };
    let compiler = KernelCompiler::new(folder, ptxas, info.compute_capability)?;
    Ok(Compiler::Ahead(Box::new((compiler, info))))
}

/// The GPU that is here, with the folder.
fn here(ptxas: Option<Ptxas>, folder: &Path) -> Result<Device, Failure> {
    let device = Device::cuda(0)?;
    Ok(match ptxas {
        Some(ptxas) => device.with_kernel_cache_by(ptxas, folder)?,
        None => device.with_kernel_cache(folder)?,
    })
}

/// A line for each kernel and one for all; whether one has failed.
fn print(
    kernels: &[AheadKernel],
    ready: &[Result<ReadyKernel, DriverError>],
    elapsed: Duration,
) -> bool {
    let name = |kernel: &AheadKernel| kernel.to_string();
    let width = kernels.iter().map(|kernel| name(kernel).len()).max();
    let width = width.unwrap_or(0);
    let (mut n_there, mut n_failed) = (0, 0);
    for (kernel, ready) in kernels.iter().zip(ready) {
        let kernel = name(kernel);
        match ready {
            Ok(ready) => {
                n_there += usize::from(ready.origin == Origin::Cache);
                let registers = ready.registers.map_or("-".into(), |n| n.to_string());
                let seconds = ready.time.as_secs_f64();
                let origin = ready.origin.in_words();
                say!("{kernel:width$}  {registers:>4} registers  {seconds:6.3} s  {origin}");
            }
            Err(error) => {
                n_failed += 1;
                say!("{kernel:width$}  failed: {error}");
            }
        }
    }
    let n_compiled = kernels.len() - n_there - n_failed;
    say!(
        "{n_compiled} compiled, {n_there} there already, {n_failed} failed; {:.1} s",
        elapsed.as_secs_f64()
    );
    n_failed > 0
}

/// How far it is, on stderr where that is a terminal.
fn bar(n: usize) -> ProgressBar {
    let bar = ProgressBar::new(n as u64);
    match ProgressStyle::with_template("{bar:32} {pos}/{len} {elapsed} {wide_msg}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

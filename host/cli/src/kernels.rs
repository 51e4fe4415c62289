//! `ferroflash kernels`: kernels compiled before their first use, and the cost of that use.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use ferroflash::Device;
use ferroflash::ahead::{
    AheadKernel, CallKind, Compiler, ReadyKernel, kernels as kernels_of, on_threads,
};
use ferroflash::backend::cuda::Origin;
use ferroflash::backend::cuda::{KernelCompiler, Ptxas};
use ferroflash::error::DriverError;
use ferroflash::plan::DeviceInfo;
use indicatif::ProgressBar;

use crate::arguments::at_end;
use crate::device::{find_ptxas, keeping_kernels};
use crate::failure::{CANNOT_RUN, Failure};
use crate::print::{progress, say};
use crate::words::compute_capability;

/// The subcommand.
#[derive(Debug, Subcommand)]
pub enum KernelsCommand {
    /// Compiles kernels into a folder, in which --kernel-cache and programs find them. Without --compute-capability for the GPU of this machine, by `ptxas` or else by
    /// its driver; with it no GPU is needed, but `ptxas` is.
    #[command(after_help = at_end(&[
        ("ferroflash kernels compile --for 'forward bf16 128 causal' --folder kernels", "For the GPU of this machine."),
        ("ferroflash kernels compile --for 'backward bf16 64' --folder kernels --compute-capability 9.0", "For an H100 or H200 elsewhere."),
    ]))]
    Compile(CompileArguments),
    /// Measures how long the first use of each kernel takes: without a folder, with an empty one, and with that folder filled. The driver has its own cache, which
    /// CUDA_CACHE_DISABLE=1 switches off.
    #[command(after_help = at_end(&[
        ("ferroflash kernels time --for 'forward bf16 128 causal'", "Loads each kernel three times."),
    ]))]
    Time(CallWords),
}

/// Options of `kernels compile`.
#[derive(Debug, Args)]
pub struct CompileArguments {
    /// The kernels.
    #[command(flatten)]
    pub calls: CallWords,
    /// The folder, which is created if needed. Kernels that it already has are not compiled again.
    #[arg(long)]
    pub folder: PathBuf,
    /// For GPUs of this compute capability.
    #[arg(long, value_name = "MAJOR.MINOR", value_parser = compute_capability)]
    pub compute_capability: Option<(u32, u32)>,
}

/// The kernels, and their compiler.
#[derive(Debug, Args)]
pub struct CallWords {
    /// Calls whose kernels to compile; once for each kind. The pass, the element type, head_dim (or head_dim/head_dim_v), then any of: causal,
    /// window, prefix; packed, seqused;
    /// pages, e4m3, fp8, fp8-blocks, one-level, values-in-keys; block-mask, sinks, dropout; fastest, full; flash1, flash2, flash3, standard. It covers all sizes unless batch=N,
    /// heads=N/N, seqlen=N, seqlen_k=N or page_size=N sets one.
    #[arg(long = "for", value_name = "CALLS", required = true)]
    pub calls: Vec<CallKind>,
    /// NVIDIA's assembler. Unless given: the one on PATH, in /usr/local/cuda, or in Python's packages (nvidia-cuda-nvcc, triton).
    #[arg(long, value_name = "PROGRAM")]
    pub ptxas: Option<PathBuf>,
}

/// Compiles, or measures.
pub fn kernels(command: &KernelsCommand) -> Result<ExitCode, Failure> {
    match command {
        KernelsCommand::Compile(arguments) => compile(arguments),
        KernelsCommand::Time(calls) => time(calls),
    }
}

fn compile(arguments: &CompileArguments) -> Result<ExitCode, Failure> {
    let found = find_ptxas(arguments.calls.ptxas.as_deref())?;
    let by = match &found {
        Some(ptxas) => format!("ptxas ({ptxas})"),
        None => "the driver".to_owned(),
    };
    let device = match arguments.compute_capability {
        Some(_) => None,
        None => Some(keeping_kernels(
            Device::cuda(0)?,
            found.clone(),
            &arguments.folder,
        )?),
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
    let bar = progress(kernels.len());
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

/// By `ptxas`, for a GPU that this machine need not have.
fn ahead(
    given: Option<(u32, u32)>,
    ptxas: Option<Ptxas>,
    folder: &Path,
) -> Result<Compiler<'static>, Failure> {
    let (major, minor) = given.unwrap_or_default();
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

/// Prints a line for each kernel and one for all; returns whether one has failed.
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

/// Milliseconds of one kernel, and its origin.
type Loaded = (f64, Origin);

/// Loads every kernel three times.
fn time(calls: &CallWords) -> Result<ExitCode, Failure> {
    let ptxas = find_ptxas(calls.ptxas.as_deref())?;
    let device = Device::cuda(0)?;
    let kernels = kernels_of(&calls.calls, device.info())?;
    let gpu = device.to_string();
    // A device whose last handle is gone has unloaded all: the next one is as in a new process.
    drop(device);
    let folder = tempfile::tempdir().map_err(Failure::of_file(&std::env::temp_dir()))?;
    let with_folder = || keeping_kernels(Device::cuda(0)?, ptxas.clone(), folder.path());
    let bar = progress(3 * kernels.len());
    let without = first_uses(Device::cuda(0)?, &kernels, &bar)?;
    let empty = first_uses(with_folder()?, &kernels, &bar)?;
    let filled = first_uses(with_folder()?, &kernels, &bar)?;
    bar.finish_and_clear();
    let by = ptxas.as_ref().map_or("the driver".into(), Ptxas::to_string);
    say!("first use in ms, {gpu}; compiled by {by}");
    let names: Vec<String> = kernels.iter().map(AheadKernel::to_string).collect();
    let width = names.iter().map(String::len).max().unwrap_or(0);
    say!(
        "{:width$}  without a folder  empty folder  filled folder",
        ""
    );
    let mut slowest = [0f64; 3];
    for (at, name) in names.iter().enumerate() {
        let times = [&without, &empty, &filled].map(|loads| loads[at].0);
        slowest = [0, 1, 2].map(|which| slowest[which].max(times[which]));
        let [a, b, c] = times;
        let origin = filled[at].1.in_words();
        say!("{name:width$}  {a:16.1}  {b:12.1}  {c:13.1}  {origin}");
    }
    let [a, b, c] = slowest;
    say!("{:width$}  {a:16.1}  {b:12.1}  {c:13.1}", "the slowest");
    Ok(ExitCode::SUCCESS)
}

/// Loads each kernel, one after another, and closes the device.
fn first_uses(
    device: Device,
    kernels: &[AheadKernel],
    bar: &ProgressBar,
) -> Result<Vec<Loaded>, Failure> {
    let Some(cuda) = device.as_cuda() else {
        return Ok(Vec::new());
    };
    let mut loads = Vec::new();
    for kernel in kernels {
        bar.set_message(kernel.to_string());
        let ready = Compiler::Here(cuda).compile(kernel)?;
        bar.inc(1);
        loads.push((ready.time.as_secs_f64() * 1e3, ready.origin));
    }
    Ok(loads)
}

//! `ferroflash kernels time`: what the first use of a kernel costs, by where it comes from.

use std::process::ExitCode;

use ferroflash::Device;
use ferroflash::ahead::{AheadKernel, Compiler, kernels as kernels_of};
use ferroflash::backend::cuda::{Origin, Ptxas};

use crate::arguments::TimeArguments;
use crate::failure::Failure;
use crate::print::say;
use crate::ptxas;

/// Milliseconds of one kernel, and where it came from.
type Loaded = (f64, Origin);

/// Loads every kernel three times.
pub fn time(arguments: &TimeArguments) -> Result<ExitCode, Failure> {
    let ptxas = ptxas::find(arguments.calls.ptxas.as_deref())?;
    let device = Device::cuda(0)?;
    let kernels = kernels_of(&arguments.calls.calls, device.info())?;
    let gpu = device.to_string();
    // A device whose last handle is gone has unloaded all: the next one is as in a new process.
    drop(device);
    let folder = tempfile::tempdir().map_err(|source| Failure::Io {
        path: std::env::temp_dir(),
        source,
    })?;
    let with_folder = || -> Result<Device, Failure> {
        let device = Device::cuda(0)?;
        Ok(match ptxas.clone() {
            Some(ptxas) => device.with_kernel_cache_by(ptxas, folder.path())?,
            None => device.with_kernel_cache(folder.path())?,
        })
    };
    let without = first_uses(Device::cuda(0)?, &kernels)?;
    let empty = first_uses(with_folder()?, &kernels)?;
    let filled = first_uses(with_folder()?, &kernels)?;
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
fn first_uses(device: Device, kernels: &[AheadKernel]) -> Result<Vec<Loaded>, Failure> {
    let Some(cuda) = device.as_cuda() else {
        return Ok(Vec::new());
    };
    let mut loads = Vec::new();
    for kernel in kernels {
        let ready = Compiler::Here(cuda).compile(kernel)?;
        loads.push((ready.time.as_secs_f64() * 1e3, ready.origin));
    }
    Ok(loads)
}

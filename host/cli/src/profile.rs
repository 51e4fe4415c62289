//! `ferroflash profile`: a problem kernel by kernel, compared with the estimate and a simulation of the schedule; which block of threads worked on
//! which tile, and when.

mod ncu;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ferroflash::backend::cuda::CudaDevice;
use ferroflash::backend::cuda::module::Statistics;
use ferroflash::plan::{Backend, PlannedLaunch, plan};
use ferroflash::tensor::Location;
use ferroflash::validate::without_tensors;
use ferroflash::{Device, Dtype, Order, Pass, Problem};
use ferroflash_lab::estimate::Gpu;
use ferroflash_lab::profile::{OfPass, Profile};

use crate::bench::gpu::{self, Timed};
use crate::bench::{Effort, Variant};
use crate::failure::Failure;
use crate::output;
use crate::posed::SizeWords;
use crate::print::{say, waiting};
use crate::words::{Schedule, dtype, order, pass, schedule};
pub use ncu::{Ncu, NcuError};

/// The GPU of `--predict`, unless another is named.
const PREDICTED: &str = "H200";

/// Options of `profile`: a problem, and what to measure.
#[derive(Debug, Args)]
pub struct ProfileArguments {
    /// Sizes and mask of the problem.
    #[command(flatten)]
    pub sizes: SizeWords,
    /// Type of the elements.
    #[arg(long, default_value = "bf16", value_parser = dtype())]
    pub dtype: Dtype,
    /// The passes.
    #[arg(long, value_delimiter = ',', default_value = "fwd,bwd", value_parser = pass())]
    pub passes: Vec<Pass>,
    /// The schedule; one that cannot run the problem is an error.
    #[arg(long, default_value = "auto", value_parser = schedule())]
    pub algorithm: Schedule,
    /// Order of the backward pass's sums.
    #[arg(long, default_value = "deterministic", value_parser = order())]
    pub order: Order,
    /// Touches no GPU: launches, work, bytes, the predicted time and the idle share of the schedule on --gpu.
    #[arg(long, conflicts_with = "ncu")]
    pub predict: bool,
    /// The GPU of the estimate, as for `ferroflash estimate`. Unless given: the measured one; with --predict H200.
    #[arg(long)]
    pub gpu: Option<String>,
    /// How long a pass is measured.
    #[command(flatten)]
    pub effort: Effort,
    /// Runs this command once more under `ncu`, which has to be on PATH: the percentage of cycles in which tensor cores are busy, and the bytes
    /// through memory, of each kernel.
    #[arg(long)]
    pub ncu: bool,
    /// For the run under `ncu`: each pass once, and nothing is printed.
    #[arg(long, hide = true, conflicts_with_all = ["ncu", "predict", "json", "svg"])]
    pub once: bool,
    /// Prints one JSON object per pass instead of tables.
    #[arg(long)]
    pub json: bool,
    /// Draws which block of threads works on which tile, and when: by time stamps, if the main kernel has a copy that writes them, and by the
    /// simulator; with --predict only by the simulator. An existing file is replaced.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// Measures, or predicts, and prints.
pub fn profile(arguments: &ProfileArguments) -> Result<ExitCode, Failure> {
    let problem = problem(arguments)?;
    if arguments.once {
        gpu::times(&gpu_device()?, problem, &variants(arguments), None)?;
        return Ok(ExitCode::SUCCESS);
    }
    let ncu = match arguments.ncu {
        true => Some(ncu::Ncu::find()?),
        false => None,
    };
    let mut profile = match arguments.predict {
        true => predicted(arguments, problem)?,
        false => measured(arguments, problem)?,
    };
    if let Some(ncu) = ncu {
        let _bar = waiting("ncu counts");
        let kernels = profile.passes.iter_mut().flat_map(|pass| &mut pass.kernels);
        ncu.count(&mut kernels.collect::<Vec<_>>())?;
    }
    if let Some(path) = &arguments.svg {
        output::replace(path, profile.svg()?.as_bytes())?;
    }
    match arguments.json {
        true => profile.json().iter().for_each(|pass| say!("{pass}")),
        false => say!("{}", profile.to_string().trim_end()),
    }
    Ok(ExitCode::SUCCESS)
}

/// The problem of the options.
pub(crate) fn problem(arguments: &ProfileArguments) -> Result<Problem, Failure> {
    let builder = arguments.sizes.problem(arguments.dtype)?;
    Ok(builder.order(arguments.order).build()?)
}

fn variants(arguments: &ProfileArguments) -> Vec<Variant> {
    let passes = arguments.passes.iter();
    let variant = |&pass| Variant {
        pass,
        algorithm: arguments.algorithm,
        order: arguments.order,
    };
    passes.map(variant).collect()
}

/// The GPU of this machine.
fn gpu_device() -> Result<Device, Failure> {
    Device::cuda(0).map_err(Failure::NoGpu)
}

/// The predictions.
fn predicted(arguments: &ProfileArguments, problem: Problem) -> Result<Profile, Failure> {
    let name = arguments.gpu.as_deref().unwrap_or(PREDICTED);
    let gpu = Gpu::named(name)?;
    let device = gpu
        .device_info()
        .ok_or_else(|| Failure::Option(format!("gpu is {name:?}; allowed: {}", Gpu::names())))?;
    let mut passes = Vec::new();
    let _bar = waiting("simulates the schedules");
    for variant in variants(arguments) {
        let checked = without_tensors(&problem, variant.pass, Location::Cuda(0))?;
        let plan = plan(&checked, &device, Backend::Cuda, variant.algorithm);
        let plan = plan.map_err(ferroflash::Error::from)?;
        passes.push(OfPass::new(plan, Some(&gpu), &device));
    }
    Ok(Profile {
        device,
        gpu: Ok(gpu),
        problem,
        passes,
    })
}

/// The same, with measurements.
fn measured(arguments: &ProfileArguments, problem: Problem) -> Result<Profile, Failure> {
    let device = gpu_device()?;
    let info = device.info().clone();
    let gpu = match &arguments.gpu {
        Some(name) => Ok(Gpu::named(name)?),
        None => Gpu::of_device(&info),
    };
    let bar = waiting("compiles kernels at their first use, and measures");
    let timed = gpu::times(
        &device,
        problem,
        &variants(arguments),
        Some(arguments.effort),
    )?;
    let mut passes = Vec::new();
    for Timed {
        plan,
        launch_ms,
        call_ms,
        measured,
    } in timed
    {
        let mut pass = OfPass::new(plan, gpu.as_ref().ok(), &info);
        pass.call_ms = Some(call_ms);
        pass.measured = Some(measured);
        for (kernel, ms) in pass.kernels.iter_mut().zip(launch_ms) {
            kernel.ms = Some(ms);
            if let Some(cuda) = device.as_cuda() {
                kernel.compiled = Some(compiled(cuda, &kernel.launch)?);
            }
        }
        passes.push(pass);
    }
    bar.finish_and_clear();
    Ok(Profile {
        device: info,
        gpu,
        problem,
        passes,
    })
}

/// The compiled properties of a loaded kernel.
fn compiled(device: &CudaDevice, launch: &PlannedLaunch) -> Result<Statistics, Failure> {
    let kernel = device.edited_kernel(launch.variant, launch.spec, launch.edit)?;
    Ok(kernel.statistics().clone())
}

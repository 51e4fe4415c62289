//! Kernels before their first call: which ones calls of a kind launch, whatever their sizes, so that they can be compiled ahead.
//!
//! ```
//! use ferroflash::ahead::CallKind;
//! use ferroflash::plan::DeviceInfo;
//!
//! let calls: CallKind = "forward bf16 128 causal".parse()?;
//! for kernel in calls.kernels(&DeviceInfo::h200())? {
//!     println!("{kernel}");
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`KernelCompiler`](crate::backend::cuda::KernelCompiler) compiles them into a folder without a GPU, and [`CudaDevice::edited_kernel`](crate::backend::cuda::CudaDevice::edited_kernel)
//! loads one, which puts it there, too.

mod sizes;
mod words;

use std::fmt;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use ferroflash_kernels::expression::Kept;
use ferroflash_kernels::spec::Spec;
use ferroflash_kernels::variants::Variant;

pub use words::{CallKind, WordError};

use crate::error::Error;
use crate::plan::{Backend, DeviceInfo, PlannedLaunch, SpecialisedKernel, plan};
use crate::prepared::Layouts;
use crate::problem::Problem;
use crate::tensor::Place;
use crate::validate::{self, check};

/// A kernel that calls launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AheadKernel {
    /// Its row in the list of kernels.
    pub variant: &'static Variant,
    /// The constants that it is compiled with.
    pub spec: Spec,
    /// What it does to the scores, if that is put into its text.
    pub edit: Option<Kept>,
}

impl AheadKernel {
    fn of(launch: &PlannedLaunch) -> AheadKernel {
        AheadKernel {
            variant: launch.variant,
            spec: launch.spec,
            edit: launch.edit,
        }
    }
}

/// As plans name it: `forward_sm90a_bf16_d128 right_bound`.
impl fmt::Display for AheadKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, spec) = (self.variant.name, self.spec);
        SpecialisedKernel { name, spec }.fmt(f)
    }
}

impl CallKind {
    /// The kernels that such calls launch on a device with these limits, each once. Sizes that are not said are taken from a list: few queries and many, one sequence and
    /// many, heads of their own and shared ones. Tensors are contiguous. An error says why no size has a plan.
    pub fn kernels(&self, device: &DeviceInfo) -> Result<Vec<AheadKernel>, Error> {
        let mut kernels = Vec::new();
        let mut refused = None;
        let mut is_planned = false;
        for problem in self.problems() {
            match self.launches(&problem?, device) {
                Ok(launches) => {
                    is_planned = true;
                    for kernel in launches.iter().map(AheadKernel::of) {
                        if !kernels.contains(&kernel) {
                            kernels.push(kernel);
                        }
                    }
                }
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        match refused {
            Some(error) if !is_planned => Err(error),
            _ => Ok(kernels),
        }
    }

    fn launches(
        &self,
        problem: &Problem,
        device: &DeviceInfo,
    ) -> Result<Vec<PlannedLaunch>, Error> {
        validate::sizes(problem)?;
        let layouts = self
            .lengths()
            .iter()
            .fold(Layouts::contiguous(), |layouts, &length| {
                layouts.giving(length)
            });
        // Which device it is makes no difference to a plan.
        let arguments = layouts.arguments(problem, self.pass(), Place::Cuda(0))?;
        let checked = check(problem, self.pass(), arguments)?;
        Ok(plan(&checked, device, Backend::Cuda, self.algorithm())?.launches)
    }
}

/// Does something to each kernel, on as many threads as the machine has cores, and gives the results in the order of the kernels.
pub fn on_threads<T: Send>(
    kernels: &[AheadKernel],
    each: impl Fn(&AheadKernel) -> T + Sync,
) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(kernels.len()));
    let n_threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..n_threads.min(kernels.len()) {
            scope.spawn(|| {
                loop {
                    let nth = next.fetch_add(1, Ordering::Relaxed);
                    let Some(kernel) = kernels.get(nth) else {
                        break;
                    };
                    let result = each(kernel);
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    done.push((nth, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|&(nth, _)| nth);
    done.into_iter().map(|(_, result)| result).collect()
}

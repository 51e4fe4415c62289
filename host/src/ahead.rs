//! Kernels before their first call: which kernels the calls of a kind launch, for any sizes, so that they can be compiled ahead.
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
//! [`Compiler`] compiles them, into a folder and without a GPU where it has `ptxas`.

mod compiler;
mod sizes;
mod words;

use std::fmt;

use ferroflash_expression::Kept;
use ferroflash_kernels::spec::Spec;
use ferroflash_kernels::variants::Variant;
use rayon::prelude::*;

pub use compiler::{Compiler, ReadyKernel};
pub use words::{CallKind, WordError};

use crate::backend::cpu::pool;
use crate::error::Error;
use crate::plan::{Backend, DeviceInfo, PlannedLaunch, SpecialisedKernel, plan};
use crate::prepared::Layouts;
use crate::problem::Problem;
use crate::tensor::Location;
use crate::validate::{self, check};

/// A kernel that calls launch.
///
/// The [module](crate::ahead) has an example.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AheadKernel {
    /// Its row in the list of kernels.
    pub variant: &'static Variant,
    /// The constants that it is compiled with.
    pub spec: Spec,
    /// The score expression, if it is compiled into the kernel.
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

/// The kernels that any of these calls launch on a device with these limits, each once: see [`CallKind::kernels`].
pub fn kernels(calls: &[CallKind], device: &DeviceInfo) -> Result<Vec<AheadKernel>, Error> {
    let mut all = Vec::new();
    for calls in calls {
        for kernel in calls.kernels(device)? {
            if !all.contains(&kernel) {
                all.push(kernel);
            }
        }
    }
    Ok(all)
}

impl CallKind {
    /// The kernels that such calls launch on a device with these limits, each once. Sizes that are not given are taken from a list: few queries and
    /// many, one sequence and many, shared KV heads and not. Tensors are contiguous. An error says why no size has a plan.
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
        let arguments = layouts.arguments(problem, self.pass(), Location::Cuda(0))?;
        let checked = check(problem, self.pass(), arguments)?;
        Ok(plan(&checked, device, Backend::Cuda, self.algorithm())?.launches)
    }
}

/// Applies a function to each kernel, on all cores, and returns the results in the order of the kernels.
///
/// The [module](crate::ahead) has an example.
pub fn on_threads<T: Send>(
    kernels: &[AheadKernel],
    each: impl Fn(&AheadKernel) -> T + Sync + Send,
) -> Vec<T> {
    pool::install(|| kernels.par_iter().map(each).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pseudo-random numbers, the same at each run.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, end: u64) -> u64 {
            self.0 = self
                .0
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (self.0 >> 33) % end
        }

        /// As often small as large.
        fn size(&mut self, most_log2: u64) -> u64 {
            let most = 1 << self.below(most_log2 + 1);
            1 + self.below(most)
        }
    }

    const KINDS: [&str; 18] = [
        "forward bf16 128 causal",
        "backward bf16 128 causal",
        "forward f16 64",
        "backward f16 64",
        "forward bf16 64 window packed",
        "backward bf16 128 causal packed",
        "forward bf16 128 causal seqused pages",
        "forward bf16 192/128 causal",
        "backward bf16 192/128 causal",
        "forward bf16 96 dropout",
        "backward bf16 256 causal dropout sinks",
        "forward f32 64 causal full",
        "backward bf16 64 causal fastest",
        "forward bf16 128 block-mask",
        "forward bf16 128 causal fp8",
        "forward f16 96 fp8 one-level",
        "forward bf16 64 causal fp8-blocks",
        "backward bf16 128 causal fp8",
    ];

    /// Calls of any size find their kernels among those compiled ahead.
    #[test]
    fn kernels_of_a_kind_are_those_of_all_sizes() {
        let mut numbers = Numbers(46);
        let mut missing = Vec::new();
        for (nth, kind) in KINDS.into_iter().enumerate() {
            let calls: CallKind = kind.parse().unwrap();
            let others = [DeviceInfo::a100(), DeviceInfo::rtx4090()];
            for device in [DeviceInfo::h200()]
                .into_iter()
                .chain(others.get(nth).cloned())
            {
                let kernels = calls.kernels(&device).unwrap();
                for _ in 0..200 {
                    let (batch, seqlen) = (numbers.size(8), numbers.size(14));
                    let heads_k = 1 << numbers.below(5);
                    let heads_q = heads_k << numbers.below(5);
                    let mut text =
                        format!("{kind} batch={batch} heads={heads_q}/{heads_k} seqlen={seqlen}");
                    if kind.starts_with("forward") && numbers.below(2) == 0 {
                        text += &format!(" seqlen_k={}", seqlen + numbers.size(16));
                    }
                    let one: CallKind = text.parse().unwrap();
                    // What does not fit has no plan.
                    for kernel in one.kernels(&device).unwrap_or_default() {
                        if !kernels.contains(&kernel) {
                            missing.push(format!("{text} on {}: {kernel}", device.name));
                        }
                    }
                }
            }
        }
        assert!(missing.is_empty(), "{}", missing.join("\n"));
    }

    #[test]
    fn nothing_serves_what_no_kernel_does() {
        let of = |text: &str| {
            text.parse::<CallKind>()
                .unwrap()
                .kernels(&DeviceInfo::a100())
        };
        assert!(matches!(of("forward bf16 128 flash3"), Err(Error::Plan(_))));
        assert!(matches!(of("forward bf16 600"), Err(Error::Problem(_))));
        assert!(matches!(
            of("backward bf16 128 pages"),
            Err(Error::Problem(_))
        ));
    }

    #[test]
    fn results_are_in_the_order_of_kernels() {
        let calls: CallKind = KINDS[0].parse().unwrap();
        let kernels = calls.kernels(&DeviceInfo::h200()).unwrap();
        assert_eq!(on_threads(&kernels, |kernel| *kernel), kernels);
        assert_eq!(on_threads(&[], |kernel| *kernel), []);
    }
}

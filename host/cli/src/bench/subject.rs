//! What is measured: one problem's tensors, on a GPU or on the host, and the passes that run on them.

use std::time::{Duration, Instant};

use clap::Args;
use ferroflash::{Algorithm, Attention, Device, Order, Pass, Problem};

use crate::failure::Failure;
use crate::input::Bytes;
use crate::tensors::Written;

/// How long a round takes.
#[derive(Clone, Copy, Debug, Args)]
pub struct Effort {
    /// Milliseconds of measuring, of each variant and round.
    #[arg(long = "rep", value_name = "REP", default_value_t = 60)]
    pub rep_ms: u64,
    /// Milliseconds of running before each measurement. A GPU that has rested is faster than one that has worked for a
    /// while: beside programs that keep it busy, ask for 300.
    #[arg(long = "warm-up", value_name = "WARM_UP", default_value_t = 15)]
    pub warm_up_ms: u64,
}

/// The most elements of each result that are compared before anything is measured.
const COMPARED: usize = 4 << 20;

/// What is compared within a case.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    /// The pass.
    pub pass: Pass,
    /// The schedule; `None`: the one that planning prefers.
    pub algorithm: Option<Algorithm>,
    /// Order of the backward pass's sums.
    pub order: Order,
}

impl Variant {
    /// The problem on a device as this variant has it.
    pub fn attention(&self, device: &Device, problem: Problem) -> Result<Attention, Failure> {
        let problem = problem.to_builder().order(self.order).build()?;
        scheduled(device, problem, self.algorithm)
    }
}

/// The problem on a device, by this schedule if one is named.
pub fn scheduled(
    device: &Device,
    problem: Problem,
    algorithm: Option<Algorithm>,
) -> Result<Attention, Failure> {
    let attention = Attention::new(device, problem)?;
    Ok(match algorithm {
        Some(algorithm) => attention.with_algorithm(algorithm),
        None => attention,
    })
}

/// A variant that is ready to be measured.
pub struct Ready<C> {
    /// What runs.
    pub algorithm: Algorithm,
    /// Bytes of memory beside inputs and outputs.
    pub extra_bytes: u64,
    /// How it runs.
    pub call: C,
}

/// The tensors of one problem on a device, and what runs on them.
pub trait Subject<T: Bytes> {
    /// How a variant runs.
    type Call;

    /// Plans a variant and, on a GPU, loads its kernels and reserves its workspace.
    fn prepare(&mut self, variant: &Variant) -> Result<Ready<Self::Call>, Failure>;

    /// What a pass should give, as [`Subject::results`]: by the processor's own kernels, which are nobody's that is measured. `None` where the
    /// processor is, and where nobody else knows what calls read.
    fn reference(&self, pass: Pass) -> Result<Option<Written<T>>, Failure>;

    /// What one call writes.
    fn results(&mut self, call: &Self::Call) -> Result<Written<T>, Failure>;

    /// Milliseconds of one call: the median of as many as fit into the round.
    fn round(&mut self, call: &mut Self::Call, effort: Effort) -> Result<f64, Failure>;

    /// Microseconds that the host spends on enqueuing one call, where calls are enqueued.
    fn host_us(&mut self, _call: &Self::Call) -> Result<Option<f64>, Failure> {
        Ok(None)
    }

    /// Views of the cache that a graph's calls read; `None` where there is no graph.
    fn n_views(&self) -> Option<u64> {
        None
    }
}

/// What a call writes as f32, or what is compared of it.
pub type Results = Written<f32>;

/// What is compared of what a call writes: of very many elements one in so many, in every column, up to the last rows.
pub fn compared<T: Bytes>(written: Written<T>) -> Results {
    let of_result = |elements: Vec<T>| {
        // An odd distance meets all columns.
        let distance = elements.len().div_ceil(COMPARED) | 1;
        let some = elements.iter().step_by(distance);
        some.map(|element| element.to_f32()).collect()
    };
    let results = written.into_iter();
    results
        .map(|(name, elements)| (name, of_result(elements)))
        .collect()
}

/// How many calls of this length fit into `rep_ms`.
pub fn n_calls(one: Duration, rep_ms: u64) -> usize {
    let one_us = one.as_micros().max(1);
    ((u128::from(rep_ms) * 1000 / one_us) as usize).clamp(1, 10_000)
}

/// Runs for the time of warming up; how long one call took then.
pub fn warm_up(
    warm_up_ms: u64,
    mut call: impl FnMut() -> Result<(), Failure>,
) -> Result<Duration, Failure> {
    let start = Instant::now();
    let mut n_calls = 0;
    while n_calls == 0 || start.elapsed() < Duration::from_millis(warm_up_ms) {
        call()?;
        n_calls += 1;
    }
    Ok(start.elapsed() / n_calls.max(1))
}

/// The middle one; 0 of none.
pub fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(0.0)
}

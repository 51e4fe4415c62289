//! One problem's tensors, on a GPU or on the host, and the passes that run on them.

use std::time::{Duration, Instant};

use ferroflash::{Algorithm, Attention, Device, Order, Pass, Problem};
use rand::Rng;
use rand::rngs::SmallRng;

use super::host::Written;
use super::{decode, gpu, host};
use crate::expressions::Named;
use crate::failure::Failure;
use crate::input::Bytes;
use crate::lengths::Lengths;

/// How long a round takes.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Milliseconds of running before anything is measured.
    pub warm_up_ms: u64,
    /// Milliseconds of measuring.
    pub rep_ms: u64,
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
        let attention = Attention::new(device, problem)?;
        Ok(match self.algorithm {
            Some(algorithm) => attention.with_algorithm(algorithm),
            None => attention,
        })
    }
}

/// A variant that is ready to be measured.
pub struct Ready {
    /// What runs.
    pub algorithm: Algorithm,
    /// Bytes of memory beside inputs and outputs.
    pub extra_bytes: u64,
    /// How it runs.
    pub call: Call,
}

/// How a variant runs.
pub enum Call {
    /// Enqueued on a stream.
    Gpu(Box<gpu::Call>),
    /// Launched in a graph.
    Decode(Box<decode::Call>),
    /// Called directly.
    Host(Box<Attention>, Pass),
}

/// The tensors of one problem.
pub enum Subject<T: Bytes> {
    /// In the memory of a GPU.
    Gpu(Box<gpu::Tensors<T>>),
    /// The same, with views of a pool for keys and values.
    Decode(Box<decode::Tensors<T>>),
    /// In the memory of the host.
    Host(Box<host::Tensors<T>>),
}

impl<T: Bytes> Subject<T> {
    /// Random q, k, v and d_o; o and lse as the forward pass gives them.
    pub fn new(
        device: &Device,
        problem: Problem,
        lengths: Lengths,
        named: Named,
        random: &mut SmallRng,
    ) -> Result<Subject<T>, Failure> {
        Ok(match device.as_cuda() {
            Some(_) => Subject::Gpu(Box::new(gpu::Tensors::new(
                device, problem, &lengths, named, random,
            )?)),
            None => Subject::Host(Box::new(host::Tensors::new(
                device, problem, lengths, named, random,
            )?)),
        })
    }

    /// Plans a variant and, on a GPU, loads its kernels.
    pub fn prepare(&mut self, variant: &Variant) -> Result<Ready, Failure> {
        match self {
            Subject::Gpu(tensors) => tensors.prepare(variant),
            Subject::Decode(tensors) => tensors.prepare(variant),
            Subject::Host(tensors) => tensors.prepare(variant),
        }
    }

    /// What a pass should give, as [`Subject::results`]: by the processor's own kernels, which are nobody's that is measured. `None` where the
    /// processor is, and where nobody else knows what calls read.
    pub fn reference(&self, pass: Pass) -> Result<Option<Results>, Failure> {
        let written = match self {
            Subject::Gpu(tensors) => Some(tensors.reference(pass)?),
            Subject::Decode(tensors) => tensors.reference()?,
            Subject::Host(tensors) => tensors.reference(pass)?,
        };
        Ok(written.map(compared))
    }

    /// What one call writes, by name, as f32; of very many elements some from everywhere.
    pub fn results(&mut self, ready: &mut Ready) -> Result<Results, Failure> {
        let results = match (self, &mut ready.call) {
            (Subject::Gpu(tensors), Call::Gpu(call)) => tensors.results(call)?,
            (Subject::Decode(tensors), Call::Decode(call)) => tensors.results(call)?,
            (Subject::Host(tensors), Call::Host(attention, pass)) => {
                tensors.results(attention, *pass)?
            }
            _ => return Err(mixed()),
        };
        Ok(compared(results))
    }

    /// Milliseconds of one call: the median of as many as fit into the round.
    pub fn round(&mut self, ready: &mut Ready, effort: Effort) -> Result<f64, Failure> {
        match (self, &mut ready.call) {
            (Subject::Gpu(tensors), Call::Gpu(call)) => tensors.round(call, effort),
            (Subject::Decode(tensors), Call::Decode(call)) => tensors.round(call, effort),
            (Subject::Host(tensors), Call::Host(attention, pass)) => {
                tensors.round(attention, *pass, effort)
            }
            _ => Err(mixed()),
        }
    }

    /// Microseconds that the host spends on enqueuing one call, where calls are enqueued.
    pub fn host_us(&mut self, ready: &mut Ready) -> Result<Option<f64>, Failure> {
        match (self, &mut ready.call) {
            (Subject::Gpu(tensors), Call::Gpu(call)) => Ok(Some(tensors.host_us(call)?)),
            (Subject::Decode(tensors), Call::Decode(call)) => Ok(Some(tensors.host_us(call)?)),
            _ => Ok(None),
        }
    }
}

/// What a call writes: names and values.
pub type Results = Vec<(&'static str, Vec<f32>)>;

/// What is compared of what a call writes: of very many elements one in so many, in every column, up to the last rows.
fn compared<T: Bytes>(written: Written<T>) -> Results {
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

/// Tensors of one device and a call of another, which nobody makes.
fn mixed() -> Failure {
    Failure::Option("tensors and call are of different devices".into())
}

/// Random values that are not repeated. An odd number, so that no two rows of a power-of-two length are alike.
pub const BLOCK: usize = (1 << 20) + 7;

/// Values of a standard normal distribution; a block of them, repeated.
pub fn normal<T: Bytes>(n_elems: usize, random: &mut SmallRng) -> Result<Vec<T>, Failure> {
    let mut all = with_room(n_elems)?;
    let mut block = Vec::with_capacity(BLOCK.min(n_elems));
    while block.len() < BLOCK.min(n_elems) {
        // Box and Muller: two uniform numbers make a normal one.
        let (radius, angle) = (1.0 - random.random::<f32>(), random.random::<f32>());
        let value = (-2.0 * radius.ln()).sqrt() * (std::f32::consts::TAU * angle).cos();
        block.push(T::from_f32(value));
    }
    all.extend(block.iter().copied().cycle().take(n_elems));
    Ok(all)
}

/// Zeros.
pub fn zeros<T: Bytes>(n_elems: usize) -> Result<Vec<T>, Failure> {
    let mut all = with_room(n_elems)?;
    all.resize(n_elems, T::from_f32(0.0));
    Ok(all)
}

/// A vector with room for so many elements; where the host has no memory for them, an error.
fn with_room<T>(n_elems: usize) -> Result<Vec<T>, Failure> {
    let mut empty = Vec::new();
    match empty.try_reserve_exact(n_elems) {
        Ok(()) => Ok(empty),
        Err(_) => Err(Failure::Option(format!(
            "no memory for a tensor of {n_elems} elements of {} bytes",
            size_of::<T>()
        ))),
    }
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
pub fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(0.0)
}

//! For `ferroflash profile`: passes on a GPU, launch by launch.

use std::sync::Arc;

use ferroflash::backend::cuda::Event;
use ferroflash::plan::Plan;
use ferroflash::prepared::NotStamped;
use ferroflash::{Device, Dtype, Problem};
use ferroflash_lab::profile::NotMeasured;
use ferroflash_lab::timeline::Measured;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::{Call, Tensors, cuda};
use crate::bench::subject::{self, Effort, Variant, median, n_calls, warm_up};
use crate::expressions::Named;
use crate::failure::Failure;
use crate::input::Bytes;
use crate::lengths::Lengths;

/// Calls whose launches are timed, at most: each has as many events as launches, and one more.
const MOST_CALLS: usize = 300;

/// A pass that ran.
pub struct Timed {
    /// What runs.
    pub plan: Plan,
    /// Milliseconds of each launch of the plan, by events between them: medians.
    pub launch_ms: Vec<f64>,
    /// Milliseconds of a call without events between its launches: the median.
    pub call_ms: f64,
    /// Which block of threads worked on which tile when, in one call of the profiled copy of its main kernel.
    pub measured: Result<Measured, NotMeasured>,
}

/// Times passes of a problem on random tensors, launch by launch. Without an effort each runs once and nothing is timed; before them a forward pass runs
/// for the sake of its o and lse.
pub fn times(
    device: &Device,
    problem: Problem,
    variants: &[Variant],
    effort: Option<Effort>,
) -> Result<Vec<Timed>, Failure> {
    match problem.dtype() {
        Dtype::Bf16 => times_of::<half::bf16>(device, problem, variants, effort),
        Dtype::F16 => times_of::<half::f16>(device, problem, variants, effort),
        Dtype::F32 => times_of::<f32>(device, problem, variants, effort),
    }
}

fn times_of<T: Bytes>(
    device: &Device,
    problem: Problem,
    variants: &[Variant],
    effort: Option<Effort>,
) -> Result<Vec<Timed>, Failure> {
    let mut random = SmallRng::seed_from_u64(0);
    let mut tensors = Tensors::<T>::new(
        device,
        problem,
        &Lengths::default(),
        Named::default(),
        &mut random,
    )?;
    let mut timed = Vec::new();
    for variant in variants {
        let ready = tensors.prepare(variant)?;
        let subject::Call::Gpu(call) = ready.call else {
            continue;
        };
        match effort {
            Some(effort) => timed.push(Timed {
                plan: call.plan().clone(),
                launch_ms: tensors.launches(&call, effort)?,
                call_ms: tensors.round(&call, effort)?,
                // Last: the times are those of the kernels that every call runs.
                measured: tensors.profiled(&call)?,
            }),
            None => {
                tensors.enqueue(&call)?;
                tensors.synchronize()?;
            }
        }
    }
    Ok(timed)
}

impl<T: Bytes> Tensors<T> {
    /// What the profiled copy of the call's main kernel records, the L2 cache flushed before it, as before calls that are timed.
    fn profiled(&mut self, call: &Call) -> Result<Result<Measured, NotMeasured>, Failure> {
        let profiled = match call.profiled() {
            Ok(profiled) => profiled,
            Err(NotStamped::Driver(error)) => return Err(error.into()),
            Err(NotStamped::NoStamps(reason)) => return Ok(Err(reason.into())),
            Err(error) => return Err(Failure::Option(error.to_string())),
        };
        let plan = profiled.plan();
        // Once to load it and to get going.
        self.enqueue(&profiled)?;
        self.flush.zero(&self.queue)?;
        self.queue.clear_stamps(plan)?;
        self.enqueue(&profiled)?;
        let stamps = self.queue.read_stamps(plan)?;
        Ok(Measured::new(plan, self.device.info(), &stamps).map_err(NotMeasured::from))
    }

    /// Milliseconds of each launch: medians by events, the L2 cache flushed before each call.
    fn launches(&mut self, call: &Call, effort: Effort) -> Result<Vec<f64>, Failure> {
        let one = warm_up(effort.warm_up_ms, || {
            self.enqueue(call)?;
            self.synchronize()
        })?;
        let n_launches = call.plan().launches.len();
        let cuda = Arc::clone(cuda(&self.device)?);
        let mut marks = Vec::new();
        for _ in 0..n_calls(one, effort.rep_ms).min(MOST_CALLS) {
            let events = (0..=n_launches).map(|_| Event::new(&cuda));
            marks.push(events.collect::<Result<Arc<[Event]>, _>>()?);
        }
        for events in &marks {
            self.flush.zero(&self.queue)?;
            self.queue.mark_launches(Arc::clone(events))?;
            self.enqueue(call)?;
        }
        self.synchronize()?;
        let mut medians = Vec::new();
        for launch in 0..n_launches {
            let mut times = Vec::new();
            for events in &marks {
                if let [start, end, ..] = &events[launch..] {
                    times.push(f64::from(end.elapsed_ms(start)?));
                }
            }
            medians.push(median(&mut times));
        }
        Ok(medians)
    }
}

//! Passes that are enqueued on a stream of a GPU and timed by events; for `ferroflash profile`, launch by launch.

use std::sync::Arc;
use std::time::Instant;

use ferroflash::backend::cuda::{CudaDevice, DeviceBuffer, Event};
use ferroflash::plan::Plan;
use ferroflash::prepared::{Layouts, NotStamped};
use ferroflash::{Device, Order, Pass, PreparedBackward, PreparedForward, Problem, Queue};
use ferroflash_lab::profile::NotMeasured;
use ferroflash_lab::timeline::Measured;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::subject::{Effort, Ready, Subject, Variant, median, n_calls, warm_up};
use crate::expressions::Named;
use crate::failure::Failure;
use crate::input::{Bytes, Lengths, with_element};
use crate::tensors::{Tensors, Written};

/// Elements of a buffer larger than any L2 cache: clearing it before each call makes every call read its inputs from
/// memory, as the peers' measurement does.
const FLUSH_ELEMS: usize = 64 << 20;

/// Calls that are enqueued at once to measure the host's cost: with eight kernels each they still fit the driver's
/// queue, so that none waits for the device.
const ENQUEUED: u32 = 64;

/// Calls that are timed, at most; and those whose launches are, each of which has an event.
const MOST_CALLS: usize = 1000;
const MOST_CALLS_BY_LAUNCH: usize = 300;

/// The tensors of one problem.
pub struct OnGpu<T: Bytes> {
    device: Device,
    queue: Queue,
    flush: DeviceBuffer<f32>,
    tensors: Tensors<T>,
}

/// A prepared pass.
pub enum Call {
    Forward(PreparedForward),
    Backward(PreparedBackward),
}

impl Call {
    /// What runs.
    fn plan(&self) -> &Plan {
        match self {
            Call::Forward(prepared) => prepared.plan(),
            Call::Backward(prepared) => prepared.plan(),
        }
    }

    /// The same with the profiled copy of its main kernel.
    fn profiled(&self) -> Result<Call, NotStamped> {
        Ok(match self {
            Call::Forward(prepared) => Call::Forward(prepared.profiled()?),
            Call::Backward(prepared) => Call::Backward(prepared.profiled()?),
        })
    }
}

impl<T: Bytes> OnGpu<T> {
    /// Random inputs; o and lse as the forward pass gives them.
    pub fn new(
        device: &Device,
        problem: Problem,
        lengths: &Lengths,
        named: Named,
        random: &mut SmallRng,
    ) -> Result<OnGpu<T>, Failure> {
        let cuda = cuda(device)?;
        let queue = Queue::new(cuda)?;
        let mut subject = OnGpu {
            device: device.clone(),
            flush: DeviceBuffer::new(cuda, FLUSH_ELEMS)?,
            tensors: Tensors::random(problem, lengths, named, random, Some(&queue))?,
            queue,
        };
        let forward = subject.prepare(&Variant {
            pass: Pass::Forward,
            algorithm: None,
            order: Order::Deterministic,
        })?;
        subject.enqueue(&forward.call)?;
        subject.queue.synchronize()?;
        Ok(subject)
    }

    fn enqueue(&mut self, call: &Call) -> Result<(), Failure> {
        let (queue, tensors) = (&mut self.queue, &mut self.tensors);
        match call {
            Call::Forward(prepared) => {
                tensors.forward(|inputs, outputs| prepared.forward(queue, inputs, outputs))?;
            }
            Call::Backward(prepared) => {
                tensors.backward(|inputs, saved, of_output, gradients| {
                    prepared.backward(queue, inputs, saved, of_output, gradients)
                })?
            }
        }
        Ok(())
    }

    /// Warms up; so many events for each of the calls that fit the round.
    fn events(
        &mut self,
        call: &Call,
        effort: Effort,
        most: usize,
        n: usize,
    ) -> Result<Vec<Arc<[Event]>>, Failure> {
        let one = warm_up(effort.warm_up_ms, || {
            self.enqueue(call)?;
            Ok(self.queue.synchronize()?)
        })?;
        let of_call = |_| events(self.queue.device(), n);
        (0..n_calls(one, effort.rep_ms).min(most))
            .map(of_call)
            .collect()
    }

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
        let n_launches = call.plan().launches.len();
        let marks = self.events(call, effort, MOST_CALLS_BY_LAUNCH, n_launches + 1)?;
        for events in &marks {
            self.flush.zero(&self.queue)?;
            self.queue.mark_launches(Arc::clone(events))?;
            self.enqueue(call)?;
        }
        self.queue.synchronize()?;
        let of_calls = marks.iter().map(|events| between(events));
        let of_calls = of_calls.collect::<Result<Vec<_>, _>>()?;
        let of_launch =
            |launch: usize| median(of_calls.iter().map(|times| times[launch]).collect());
        Ok((0..n_launches).map(of_launch).collect())
    }
}

impl<T: Bytes> Subject<T> for OnGpu<T> {
    type Call = Call;

    fn prepare(&mut self, variant: &Variant) -> Result<Ready<Call>, Failure> {
        let operands = &self.tensors.operands;
        let attention = variant.attention(&self.device, operands.problem)?;
        let layouts = operands
            .lengths()
            .fold(Layouts::contiguous(), Layouts::giving);
        let call = match variant.pass {
            Pass::Backward => Call::Backward(attention.prepare_backward(&layouts)?),
            _ => Call::Forward(attention.prepare_forward(&layouts)?),
        };
        let plan = call.plan();
        self.queue.reserve(plan)?;
        Ok(Ready {
            algorithm: plan.algorithm,
            extra_bytes: plan.workspace.n_bytes(),
            call,
        })
    }

    fn reference(&self, pass: Pass) -> Result<Option<Written<T>>, Failure> {
        self.tensors.reference(pass, self.queue.stream()).map(Some)
    }

    fn results(&mut self, call: &Call) -> Result<Written<T>, Failure> {
        self.enqueue(call)?;
        self.tensors.written(call.plan().pass, self.queue.stream())
    }

    /// By events, the L2 cache flushed before each call.
    fn round(&mut self, call: &mut Call, effort: Effort) -> Result<f64, Failure> {
        let marks = self.events(call, effort, MOST_CALLS, 2)?;
        for events in &marks {
            self.flush.zero(&self.queue)?;
            events[0].record(&self.queue)?;
            self.enqueue(call)?;
            events[1].record(&self.queue)?;
        }
        self.queue.synchronize()?;
        let times = marks.iter().map(|events| between(events));
        Ok(median(times.collect::<Result<Vec<_>, _>>()?.concat()))
    }

    fn host_us(&mut self, call: &Call) -> Result<Option<f64>, Failure> {
        let cuda = Arc::clone(self.queue.device());
        host_us(&cuda, || self.enqueue(call)).map(Some)
    }
}

/// The GPU of tensors that lie on one.
pub fn cuda(device: &Device) -> Result<&Arc<CudaDevice>, Failure> {
    device
        .as_cuda()
        .ok_or_else(|| Failure::Option("this is not a GPU".into()))
}

/// So many events of a device.
pub fn events(device: &Arc<CudaDevice>, n: usize) -> Result<Arc<[Event]>, Failure> {
    let events = (0..n).map(|_| Event::new(device));
    Ok(events.collect::<Result<_, _>>()?)
}

/// Milliseconds from each event to the next one.
pub fn between(events: &[Event]) -> Result<Vec<f64>, Failure> {
    let pairs = events.windows(2);
    pairs
        .map(|pair| Ok(pair[1].elapsed_ms(&pair[0])?.into()))
        .collect()
}

/// Microseconds that the host spends on enqueuing a call, while the device is still busy with earlier ones.
pub fn host_us(
    device: &CudaDevice,
    mut enqueue: impl FnMut() -> Result<(), Failure>,
) -> Result<f64, Failure> {
    enqueue()?;
    device.synchronize()?;
    let start = Instant::now();
    for _ in 0..ENQUEUED {
        enqueue()?;
    }
    let elapsed = start.elapsed();
    device.synchronize()?;
    Ok(elapsed.as_secs_f64() * 1e6 / f64::from(ENQUEUED))
}

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
    with_element!(problem.dtype(), T => {
        let mut random = SmallRng::seed_from_u64(0);
        let (lengths, named) = (Lengths::default(), Named::default());
        let mut subject = OnGpu::<T>::new(device, problem, &lengths, named, &mut random)?;
        times_of(&mut subject, variants, effort)
    })
}

fn times_of<T: Bytes>(
    subject: &mut OnGpu<T>,
    variants: &[Variant],
    effort: Option<Effort>,
) -> Result<Vec<Timed>, Failure> {
    let mut timed = Vec::new();
    for variant in variants {
        let mut call = subject.prepare(variant)?.call;
        match effort {
            Some(effort) => timed.push(Timed {
                plan: call.plan().clone(),
                launch_ms: subject.launches(&call, effort)?,
                call_ms: subject.round(&mut call, effort)?,
                // Last: the times are those of the kernels that every call runs.
                measured: subject.profiled(&call)?,
            }),
            None => {
                subject.enqueue(&call)?;
                subject.queue.synchronize()?;
            }
        }
    }
    Ok(timed)
}

/// Milliseconds of one pass by the device's own clock, on random tensors of its memory; `None` where there is no GPU.
pub fn device_ms(
    device: &Device,
    problem: Problem,
    lengths: &Lengths,
    variant: &Variant,
) -> Result<Option<f64>, Failure> {
    if device.as_cuda().is_none() {
        return Ok(None);
    }
    let brief = Effort {
        warm_up_ms: 15,
        rep_ms: 20,
    };
    with_element!(problem.dtype(), T => {
        let mut random = SmallRng::seed_from_u64(0);
        let subject = OnGpu::<T>::new(device, problem, lengths, Named::default(), &mut random);
        let mut subject = subject?;
        let mut call = subject.prepare(variant)?.call;
        subject.round(&mut call, brief).map(Some)
    })
}

//! Tensors in the memory of a GPU, and passes that are enqueued on a stream and timed by events.

pub mod launches;

use std::sync::Arc;
use std::time::Instant;

use ferroflash::arguments::ByArgument;
use ferroflash::backend::cuda::{CudaDevice, DeviceBuffer, Event};
use ferroflash::plan::Plan;
use ferroflash::prepared::{Layouts, NotStamped};
use ferroflash::{
    Device, Gradients, Inputs, Layout, Order, OutputGradients, Outputs, Pass, PreparedBackward,
    PreparedForward, Problem, Queue, Saved, Tensor, TensorMut, Vector,
};
use rand::rngs::SmallRng;

use super::host::{self, Written};
use super::subject::{self, Effort, Ready, Variant, median, n_calls, normal, warm_up};
use crate::expressions::{Given, Named};
use crate::failure::Failure;
use crate::input::Bytes;
use crate::lengths::{self, Lengths};

/// Elements of a buffer larger than any L2 cache: clearing it before each call makes every call read its inputs from
/// memory, as the peers' measurement does.
const FLUSH_ELEMS: usize = 64 << 20;

/// Calls that are enqueued at once to measure the host's cost: with eight kernels each they still fit the driver's
/// queue, so that none waits for the device.
const ENQUEUED: u32 = 64;

/// The tensors of one problem.
pub struct Tensors<T: Bytes> {
    device: Device,
    problem: Problem,
    queue: Queue,
    flush: DeviceBuffer<f32>,
    lengths: ByArgument<Option<DeviceBuffer<i32>>>,
    given: Given,
    /// The same two on the host.
    on_host: (Lengths, Arc<Given>),
    q: DeviceBuffer<T>,
    k: DeviceBuffer<T>,
    v: DeviceBuffer<T>,
    o: DeviceBuffer<T>,
    lse: DeviceBuffer<f32>,
    d_o: DeviceBuffer<T>,
    d_q: DeviceBuffer<T>,
    d_k: DeviceBuffer<T>,
    d_v: DeviceBuffer<T>,
    /// Sinks and their gradients, where the problem has some.
    sinks: Option<[DeviceBuffer<f32>; 2]>,
}

/// A prepared pass.
pub enum Call {
    Forward(PreparedForward),
    Backward(PreparedBackward),
}

impl Call {
    /// What runs.
    pub fn plan(&self) -> &Plan {
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

impl<T: Bytes> Tensors<T> {
    /// Random inputs; o and lse as the forward pass gives them.
    pub fn new(
        device: &Device,
        problem: Problem,
        lengths: &Lengths,
        named: Named,
        random: &mut SmallRng,
    ) -> Result<Tensors<T>, Failure> {
        let cuda = cuda(device)?;
        let queue = Queue::new(cuda)?;
        let n_q = problem.shape_q().iter().product();
        let n_k = problem.shape_k().iter().product();
        let n_v = problem.shape_v().iter().product();
        let n_o = problem.shape_o().iter().product();
        let n_rows = problem.shape_lse().iter().product();
        let mut of_device = ByArgument::default();
        for (argument, vector) in lengths.iter() {
            of_device[argument] = Some(DeviceBuffer::from_slice(cuda, vector, &queue)?);
        }
        let mut filled = |n_elems| -> Result<_, Failure> {
            let numbers = normal(n_elems, random)?;
            Ok(DeviceBuffer::from_slice(cuda, &numbers, &queue)?)
        };
        let (q, k, v, d_o) = (filled(n_q)?, filled(n_k)?, filled(n_v)?, filled(n_o)?);
        let given_on_host = Given::new(named, &problem, random)?;
        let given = given_on_host.on_device(cuda, &queue)?;
        let sinks = match problem.has_sinks() {
            true => {
                let sinks = normal::<f32>(problem.heads_q(), random)?;
                let d_sinks = DeviceBuffer::new(cuda, problem.heads_q())?;
                Some([DeviceBuffer::from_slice(cuda, &sinks, &queue)?, d_sinks])
            }
            false => None,
        };
        let mut tensors = Tensors {
            device: device.clone(),
            problem,
            flush: DeviceBuffer::new(cuda, FLUSH_ELEMS)?,
            lengths: of_device,
            given,
            on_host: (lengths.clone(), Arc::new(given_on_host)),
            q,
            k,
            v,
            o: DeviceBuffer::new(cuda, n_o)?,
            lse: DeviceBuffer::new(cuda, n_rows)?,
            d_o,
            d_q: DeviceBuffer::new(cuda, n_q)?,
            d_k: DeviceBuffer::new(cuda, n_k)?,
            d_v: DeviceBuffer::new(cuda, n_v)?,
            sinks,
            queue,
        };
        let variant = Variant {
            pass: Pass::Forward,
            algorithm: None,
            order: Order::Deterministic,
        };
        if let subject::Call::Gpu(call) = tensors.prepare(&variant)?.call {
            tensors.enqueue(&call)?;
            tensors.synchronize()?;
        }
        Ok(tensors)
    }

    /// Plans a variant, loads its kernels, reserves its workspace.
    pub fn prepare(&mut self, variant: &Variant) -> Result<Ready, Failure> {
        let attention = variant.attention(&self.device, self.problem)?;
        let given = self.lengths.iter().filter(|(_, vector)| vector.is_some());
        let layouts = given.fold(Layouts::contiguous(), |layouts, (argument, _)| {
            layouts.giving(argument)
        });
        let call = match variant.pass {
            Pass::Backward => Call::Backward(attention.prepare_backward(&layouts)?),
            _ => Call::Forward(attention.prepare_forward(&layouts)?),
        };
        let plan = call.plan();
        self.queue.reserve(plan)?;
        let (algorithm, extra_bytes) = (plan.algorithm, plan.workspace.n_bytes());
        Ok(Ready {
            algorithm,
            extra_bytes,
            call: subject::Call::Gpu(Box::new(call)),
        })
    }

    /// What a pass should give: as the processor works it out.
    pub fn reference(&self, pass: Pass) -> Result<Written<T>, Failure> {
        let all = |buffer: &DeviceBuffer<T>| buffer.to_vec(&self.queue);
        let (lengths, given) = &self.on_host;
        let numbers = host::Numbers {
            lengths: lengths.clone(),
            given: Arc::clone(given),
            q: all(&self.q)?,
            k: all(&self.k)?,
            v: all(&self.v)?,
            d_o: all(&self.d_o)?,
            sinks: match &self.sinks {
                Some([sinks, _]) => Some(sinks.to_vec(&self.queue)?),
                None => None,
            },
        };
        host::on_processor(self.problem, numbers, pass)
    }

    /// What the pass writes, by name.
    pub fn results(&mut self, call: &Call) -> Result<Written<T>, Failure> {
        self.enqueue(call)?;
        let all = |buffer: &DeviceBuffer<T>| buffer.to_vec(&self.queue);
        Ok(match call {
            Call::Forward(_) => vec![("o", all(&self.o)?)],
            Call::Backward(_) => vec![
                ("d_q", all(&self.d_q)?),
                ("d_k", all(&self.d_k)?),
                ("d_v", all(&self.d_v)?),
            ],
        })
    }

    /// The median by events, the L2 cache flushed before each call.
    pub fn round(&mut self, call: &Call, effort: Effort) -> Result<f64, Failure> {
        let one = warm_up(effort.warm_up_ms, || {
            self.enqueue(call)?;
            self.synchronize()
        })?;
        let cuda = cuda(&self.device)?;
        let mut marks = Vec::new();
        for _ in 0..n_calls(one, effort.rep_ms).min(1000) {
            marks.push((Event::new(cuda)?, Event::new(cuda)?));
        }
        for (start, end) in &marks {
            self.flush.zero(&self.queue)?;
            start.record(&self.queue)?;
            self.enqueue(call)?;
            end.record(&self.queue)?;
        }
        self.synchronize()?;
        let mut times = Vec::new();
        for (start, end) in &marks {
            times.push(f64::from(end.elapsed_ms(start)?));
        }
        Ok(median(&mut times))
    }

    /// Microseconds of the host per call.
    pub fn host_us(&mut self, call: &Call) -> Result<f64, Failure> {
        let cuda = Arc::clone(cuda(&self.device)?);
        host_us(&cuda, || self.enqueue(call))
    }

    fn enqueue(&mut self, call: &Call) -> Result<(), Failure> {
        let (like_q, like_k) = (
            Layout::bshd(self.problem.shape_q())?,
            Layout::bshd(self.problem.shape_k())?,
        );
        let (like_v, like_o) = (
            Layout::bshd(self.problem.shape_v())?,
            Layout::bshd(self.problem.shape_o())?,
        );
        let inputs = Inputs::new(
            &Tensor::device(self.q.slice(), like_q)?,
            &Tensor::device(self.k.slice(), like_k)?,
            &Tensor::device(self.v.slice(), like_v)?,
        );
        let vector = |argument| {
            let buffer = self.lengths[argument].as_ref();
            buffer.map(|buffer| Vector::device(buffer.slice()))
        };
        let mut inputs = self.given.put(lengths::put(inputs, vector));
        if self.problem.dropout().is_some() {
            inputs = inputs.dropout_rng(0, 0);
        }
        let mut d_sinks = None;
        if let Some([sinks, gradients]) = &mut self.sinks {
            inputs = inputs.sinks(sinks.slice());
            d_sinks = Some(gradients.slice_mut().into());
        }
        match call {
            Call::Forward(prepared) => {
                let o = TensorMut::device(self.o.slice_mut(), like_o)?;
                let mut outputs = Outputs::new(o, self.lse.slice_mut());
                prepared.forward(&mut self.queue, &inputs, &mut outputs)?;
            }
            Call::Backward(prepared) => {
                let o = Tensor::device(self.o.slice(), like_o)?;
                let d_o = Tensor::device(self.d_o.slice(), like_o)?;
                let mut gradients = Gradients::new(
                    TensorMut::device(self.d_q.slice_mut(), like_q)?,
                    TensorMut::device(self.d_k.slice_mut(), like_k)?,
                    TensorMut::device(self.d_v.slice_mut(), like_v)?,
                );
                gradients.d_sinks = d_sinks;
                prepared.backward(
                    &mut self.queue,
                    &inputs,
                    &Saved::new(&o, self.lse.slice()),
                    &OutputGradients::new(&d_o),
                    &mut gradients,
                )?;
            }
        }
        Ok(())
    }

    fn synchronize(&mut self) -> Result<(), Failure> {
        Ok(self.queue.synchronize()?)
    }
}

/// The GPU of tensors that lie on one.
pub fn cuda(device: &Device) -> Result<&Arc<CudaDevice>, Failure> {
    device
        .as_cuda()
        .ok_or_else(|| Failure::Option("this is not a GPU".into()))
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

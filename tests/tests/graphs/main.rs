//! Graphs of prepared calls on a GPU: a replay gives the bits of the calls; packed ones serve other lengths under the same maxima; a
//! step of decoding, captured once, is every step. Profiled calls give the bits of the others.

mod decode;
mod model;
mod stamps;

use conformance::subject::CUDA;
use ferroflash::arguments::Argument;
use ferroflash::backend::cuda::{DeviceBuffer, Graph, Queue};
use ferroflash::plan::{Plan, PlannedLaunch, Stamp};
use ferroflash::prepared::Layouts;
use ferroflash::{
    Algorithm, Attention, Device, Dtype, Error, Gradients, Inputs, Layout, Mask, OutputGradients,
    Outputs, PreparedBackward, PreparedForward, Problem, Saved, Tensor, TensorMut,
};
use half::bf16;

/// Both passes of a problem, prepared, and all that they read and write.
struct Passes {
    forward: PreparedForward,
    backward: PreparedBackward,
    problem: Problem,
    queue: Queue,
    /// q, k, v and dO.
    inputs: [DeviceBuffer<bf16>; 4],
    o: DeviceBuffer<bf16>,
    lse: DeviceBuffer<f32>,
    /// dQ, dK and dV.
    gradients: [DeviceBuffer<bf16>; 3],
    /// Where sequences begin, of q as of k; none where they are padded.
    cu_seqlens: Option<DeviceBuffer<i32>>,
    /// What profiled passes recorded, forward and backward.
    recorded: [Vec<Stamp>; 2],
}

/// Bits of o, lse, dQ, dK and dV.
type Bits = [Vec<u32>; 5];

/// What no kernel writes.
const NEVER: f32 = 777.0;

impl Passes {
    fn new(device: &Device, problem: Problem, algorithm: Algorithm) -> Result<Passes, Error> {
        let cuda = device.as_cuda().unwrap();
        let mut layouts = Layouts::contiguous();
        let is_packed = problem.total_q().is_some();
        if is_packed {
            layouts = layouts
                .giving(Argument::CuSeqlensQ)
                .giving(Argument::CuSeqlensK);
        }
        let attention = Attention::new(device, problem)?.with_algorithm(algorithm);
        let forward = attention.prepare_forward(&layouts)?;
        let backward = attention.prepare_backward(&layouts)?;
        let mut queue = Queue::new(cuda)?;
        queue.reserve(forward.plan())?;
        queue.reserve(backward.plan())?;
        let (n_q, n_k) = (elements(problem.shape_q()), elements(problem.shape_k()));
        let rows = problem.shape_lse().iter().product();
        let filled = |n: usize, step: f32| {
            let waves: Vec<bf16> = (0..n)
                .map(|i| bf16::from_f32((i as f32 * step).sin()))
                .collect();
            DeviceBuffer::from_slice(cuda, &waves, &queue)
        };
        let inputs = [
            filled(n_q, 0.13)?,
            filled(n_k, 0.29)?,
            filled(n_k, 0.41)?,
            filled(n_q, 0.73)?,
        ];
        let cu_seqlens = match is_packed {
            true => Some(DeviceBuffer::new(cuda, problem.batch() + 1)?),
            false => None,
        };
        Ok(Passes {
            forward,
            backward,
            problem,
            inputs,
            o: DeviceBuffer::new(cuda, n_q)?,
            lse: DeviceBuffer::new(cuda, rows)?,
            gradients: [
                DeviceBuffer::new(cuda, n_q)?,
                DeviceBuffer::new(cuda, n_k)?,
                DeviceBuffer::new(cuda, n_k)?,
            ],
            cu_seqlens,
            queue,
            recorded: Default::default(),
        })
    }

    fn set_lengths(&mut self, lengths: &[i32]) -> Result<(), Error> {
        let mut ends = vec![0];
        for length in lengths {
            ends.push(ends.last().unwrap() + length);
        }
        let cu_seqlens = self.cu_seqlens.as_mut().unwrap();
        Ok(cu_seqlens.copy_from(&ends, &self.queue)?)
    }

    /// Runs with the queue and with what enqueues both passes.
    fn on_queue<R>(
        &mut self,
        run: impl FnOnce(&mut Queue, &mut dyn FnMut(&mut Queue) -> Result<(), Error>) -> R,
    ) -> R {
        let of_q = Layout::bshd(self.problem.shape_q()).unwrap();
        let of_k = Layout::bshd(self.problem.shape_k()).unwrap();
        let [q, k, v, d_o] = &self.inputs;
        let (q, k, v) = (tensor(q, of_q), tensor(k, of_k), tensor(v, of_k));
        let d_o = tensor(d_o, of_q);
        let mut inputs = Inputs::new(&q, &k, &v);
        if let Some(cu_seqlens) = &self.cu_seqlens {
            inputs = inputs
                .cu_seqlens_q(cu_seqlens.slice())
                .cu_seqlens_k(cu_seqlens.slice());
        }
        let [d_q, d_k, d_v] = &mut self.gradients;
        let mut gradients = Gradients::new(
            TensorMut::device(d_q.slice_mut(), of_q).unwrap(),
            TensorMut::device(d_k.slice_mut(), of_k).unwrap(),
            TensorMut::device(d_v.slice_mut(), of_k).unwrap(),
        );
        let (forward, backward) = (&self.forward, &self.backward);
        let (o, lse) = (&mut self.o, &mut self.lse);
        let [of_forward, of_backward] = &mut self.recorded;
        run(&mut self.queue, &mut |queue| {
            let written = TensorMut::device(o.slice_mut(), of_q).unwrap();
            begin_records(queue, forward.plan())?;
            forward.forward(queue, &inputs, &mut Outputs::new(written, lse.slice_mut()))?;
            end_records(queue, forward.plan(), of_forward)?;
            let read = Tensor::device(o.slice(), of_q).unwrap();
            let saved = Saved::new(&read, lse.slice());
            let of_output = OutputGradients::new(&d_o);
            begin_records(queue, backward.plan())?;
            backward.backward(queue, &inputs, &saved, &of_output, &mut gradients)?;
            end_records(queue, backward.plan(), of_backward)
        })
    }

    fn capture(&mut self) -> Result<Graph, Error> {
        self.on_queue(|queue, enqueue| queue.capture(enqueue))
    }

    /// The results of `run`, over values that no kernel writes.
    fn bits(&mut self, run: impl FnOnce(&mut Passes) -> Result<(), Error>) -> Result<Bits, Error> {
        let queue = &self.queue;
        self.lse.copy_from(&vec![NEVER; self.lse.len()], queue)?;
        let [d_q, d_k, d_v] = &mut self.gradients;
        for buffer in [&mut self.o, d_q, d_k, d_v] {
            buffer.copy_from(&vec![bf16::from_f32(NEVER); buffer.len()], queue)?;
        }
        run(self)?;
        let queue = &self.queue;
        let halves = |buffer: &DeviceBuffer<bf16>| -> Result<Vec<u32>, Error> {
            let values = buffer.to_vec(queue)?;
            Ok(values.iter().map(|x| x.to_bits().into()).collect())
        };
        let [d_q, d_k, d_v] = &self.gradients;
        let lse = self.lse.to_vec(queue)?;
        Ok([
            halves(&self.o)?,
            lse.iter().map(|x| x.to_bits()).collect(),
            halves(d_q)?,
            halves(d_k)?,
            halves(d_v)?,
        ])
    }

    /// The calls' bits, which are finite and were written.
    fn bits_of_calls(&mut self) -> Result<Bits, Error> {
        let bits = self.bits(|passes| passes.on_queue(|queue, enqueue| enqueue(queue)))?;
        let never = u32::from(bf16::from_f32(NEVER).to_bits());
        for of_tensor in [0, 2, 3, 4] {
            let written = bits[of_tensor].iter().all(|&x| {
                let value = bf16::from_bits(x as u16).to_f32();
                x != never && value.is_finite()
            });
            assert!(written, "the {of_tensor}-th result");
        }
        Ok(bits)
    }

    fn bits_of(&mut self, graph: &Graph) -> Result<Bits, Error> {
        self.bits(|passes| graph.launch(&mut passes.queue))
    }
}

/// Clears a profiled plan's records. Nothing else is done: a capture would refuse it.
fn begin_records(queue: &mut Queue, plan: &Plan) -> Result<(), Error> {
    match plan.stamps() {
        Some(_) => queue.clear_stamps(plan),
        None => Ok(()),
    }
}

/// Reads them.
fn end_records(queue: &mut Queue, plan: &Plan, to: &mut Vec<Stamp>) -> Result<(), Error> {
    if plan.stamps().is_some() {
        *to = queue.read_stamps(plan)?;
    }
    Ok(())
}

fn tensor(buffer: &DeviceBuffer<bf16>, layout: Layout) -> Tensor<'_> {
    Tensor::device(buffer.slice(), layout).unwrap()
}

fn elements(shape: [usize; 4]) -> usize {
    shape.iter().product()
}

/// The device and the algorithms that it runs.
fn subjects() -> Vec<(Device, Algorithm)> {
    let algorithms = [Algorithm::Flash2, Algorithm::Flash3, Algorithm::Standard];
    let runs = |algorithm: &Algorithm| !CUDA.cannot_run(*algorithm);
    let device = |algorithm| ((CUDA.open)(0).unwrap(), algorithm);
    algorithms.into_iter().filter(runs).map(device).collect()
}

const MASKS: [Mask; 4] = [
    Mask::Full,
    Mask::Causal,
    Mask::Window {
        left: Some(50),
        right: Some(0),
    },
    Mask::PrefixLm { prefix: 90 },
];

#[test]
fn a_graph_of_packed_calls_serves_other_lengths() {
    const LENGTHS: [[i32; 4]; 4] = [
        [300, 100, 0, 200],
        [1, 299, 250, 50],
        [150, 150, 150, 150],
        [300, 300, 0, 0],
    ];
    for (device, algorithm) in subjects() {
        for (mask, head_dim) in MASKS.into_iter().zip([64, 128, 64, 128]) {
            let sizes = Problem::builder(Dtype::Bf16)
                .batch(4)
                .seqlen(300)
                .packed_q(600)
                .packed_k(600)
                .heads_q(4)
                .heads_k(2)
                .head_dim(head_dim);
            let problem = sizes.mask(mask).build().unwrap();
            let mut passes = Passes::new(&device, problem, algorithm).unwrap();
            passes.set_lengths(&LENGTHS[0]).unwrap();
            passes.bits_of_calls().unwrap();
            let graph = passes.capture().unwrap();
            for lengths in LENGTHS.iter().chain(&LENGTHS[..1]) {
                passes.set_lengths(lengths).unwrap();
                let expected = passes.bits_of_calls().unwrap();
                let replayed = passes.bits_of(&graph).unwrap();
                assert!(replayed == expected, "{algorithm} {mask} {lengths:?}");
            }
        }
    }
}

/// Whether the main kernel takes its tiles in shifted order, for which all its blocks run at once.
fn is_shifted(backward: &PreparedBackward) -> bool {
    let mut launches = backward.plan().launches.iter();
    launches.any(PlannedLaunch::runs_together)
}

/// Those of flash3's backward pass in shifted order among them.
#[test]
fn a_graph_is_replayed_with_the_bits_of_the_calls() {
    for (device, algorithm) in subjects() {
        for (mask, head_dim) in MASKS.into_iter().zip([128, 64, 128, 64]) {
            let sizes = Problem::builder(Dtype::Bf16)
                .batch(2)
                .seqlen(1024)
                .heads_q(8)
                .heads_k(4)
                .head_dim(head_dim);
            let problem = sizes.mask(mask).build().unwrap();
            let mut passes = Passes::new(&device, problem, algorithm).unwrap();
            if algorithm == Algorithm::Flash3 && mask == Mask::Full {
                assert!(is_shifted(&passes.backward), "{}", passes.backward.plan());
            }
            let expected = passes.bits_of_calls().unwrap();
            let graph = passes.capture().unwrap();
            for _ in 0..3 {
                let replayed = passes.bits_of(&graph).unwrap();
                assert!(replayed == expected, "{algorithm} {mask}");
            }
        }
    }
}

//! Both passes in another library's context, on its stream and in its memory, on a GPU: called, captured into its graph, and replayed.

mod library;

use std::sync::Arc;
use std::time::Instant;

use conformance::subject::CUDA;
use ferroflash::backend::cuda::memory::{slice_from_raw, slice_from_raw_mut};
use ferroflash::backend::cuda::{CudaDevice, Queue};
use ferroflash::prepared::Layouts;
use ferroflash::{
    Algorithm, Attention, Device, Dtype, Element, Gradients, Inputs, Layout, Mask, OutputGradients,
    Outputs, PlanCache, Problem, Saved, Tensor, TensorMut,
};
use half::bf16;
use library::{Foreign, Kind};

/// What no kernel writes.
const NEVER: u8 = 0x43;

/// Everything of both passes, in the library's memory.
struct Passes<'a> {
    library: &'a Foreign,
    device: Device,
    cache: PlanCache,
    attention: Attention,
    /// q, k, v and dO.
    inputs: [u64; 4],
    /// o, lse, dQ, dK and dV, with their bytes.
    outputs: [(u64, usize); 5],
    workspace: u64,
    workspace_bytes: u64,
}

fn problem() -> Problem {
    Problem::builder(Dtype::Bf16)
        .batch(2)
        .seqlen_q(500)
        .seqlen_k(700)
        .heads_q(8)
        .heads_k(2)
        .head_dim(128)
        .mask(Mask::Causal)
        .build()
        .unwrap()
}

fn waves(shape: [usize; 4], step: f32) -> Vec<bf16> {
    (0..shape.iter().product())
        .map(|i: usize| bf16::from_f32((i as f32 * step).sin()))
        .collect()
}

fn bytes(values: &[bf16]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_ne_bytes()).collect()
}

impl<'a> Passes<'a> {
    fn new(library: &'a Foreign, algorithm: Algorithm) -> Passes<'a> {
        // SAFETY: the library keeps its context until the process ends.
        let cuda = unsafe { CudaDevice::from_context(library.context.cast()) }.unwrap();
        let device = Device::from_cuda(cuda).unwrap();
        let problem = problem();
        let (of_q, of_k) = (problem.shape_q(), problem.shape_k());
        let inputs = [(of_q, 0.13), (of_k, 0.29), (of_k, 0.41), (of_q, 0.73)]
            .map(|(shape, step)| library.upload(&bytes(&waves(shape, step))));
        let rows: usize = problem.shape_lse().iter().product();
        let elements = |shape: [usize; 4]| shape.iter().product::<usize>();
        let [q, k] = [2 * elements(of_q), 2 * elements(of_k)];
        let outputs =
            [q, 4 * rows, q, k, k].map(|n_bytes| (library.upload(&vec![NEVER; n_bytes]), n_bytes));
        let attention = Attention::new(&device, problem).unwrap();
        let mut passes = Passes {
            library,
            device,
            cache: PlanCache::new(4),
            attention: attention.with_algorithm(algorithm),
            inputs,
            outputs,
            workspace: 0,
            workspace_bytes: 0,
        };
        let layouts = Layouts::contiguous();
        let forward = passes.cache.forward(&passes.attention, &layouts).unwrap();
        let backward = passes.cache.backward(&passes.attention, &layouts).unwrap();
        let n_bytes = [forward.plan(), backward.plan()].map(|plan| plan.workspace.n_bytes());
        passes.workspace_bytes = n_bytes[0].max(n_bytes[1]);
        // Whatever the memory held before.
        let dirt = vec![NEVER; passes.workspace_bytes as usize];
        passes.workspace = library.upload(&dirt);
        passes
    }

    fn cuda(&self) -> &Arc<CudaDevice> {
        self.device.as_cuda().unwrap()
    }

    fn tensor(&self, address: u64, shape: [usize; 4]) -> Tensor<'_> {
        let n_elems = shape.iter().product::<usize>() as u64;
        // SAFETY: the memory stays until the process ends, and the stream keeps reads and writes apart.
        let slice = unsafe { slice_from_raw(self.cuda(), address, n_elems, bf16::DTYPE) };
        Tensor::device(slice, Layout::bshd(shape).unwrap()).unwrap()
    }

    fn tensor_mut(&self, address: u64, shape: [usize; 4]) -> TensorMut<'_> {
        let n_elems = shape.iter().product::<usize>() as u64;
        // SAFETY: as above.
        let slice = unsafe { slice_from_raw_mut(self.cuda(), address, n_elems, bf16::DTYPE) };
        TensorMut::device(slice, Layout::bshd(shape).unwrap()).unwrap()
    }

    fn queue(&self) -> Queue {
        let stream = self.library.stream.cast();
        // SAFETY: stream and workspace stay until the process ends, and the calls follow each other on the stream.
        let queue = unsafe {
            Queue::with_workspace(self.cuda(), stream, self.workspace, self.workspace_bytes)
        };
        queue.unwrap()
    }

    /// As a binding to a framework does: all looked up anew.
    fn enqueue(&self) {
        let problem = self.attention.problem();
        let (of_q, of_k) = (problem.shape_q(), problem.shape_k());
        let n_rows = problem.shape_lse().iter().product::<usize>() as u64;
        let [q, k, v, d_o] = self.inputs;
        let [o, lse, d_q, d_k, d_v] = self.outputs.map(|(address, _)| address);
        let (q, k, v) = (
            self.tensor(q, of_q),
            self.tensor(k, of_k),
            self.tensor(v, of_k),
        );
        let inputs = Inputs::new(&q, &k, &v);
        let layouts = Layouts::contiguous();

        let forward = self.cache.forward(&self.attention, &layouts).unwrap();
        // SAFETY: as for tensors.
        let written = unsafe { slice_from_raw_mut(self.cuda(), lse, n_rows, Dtype::F32) };
        let mut outputs = Outputs::new(self.tensor_mut(o, of_q), written);
        forward
            .forward(&mut self.queue(), &inputs, &mut outputs)
            .unwrap();

        let backward = self.cache.backward(&self.attention, &layouts).unwrap();
        // SAFETY: as for tensors.
        let read = unsafe { slice_from_raw(self.cuda(), lse, n_rows, Dtype::F32) };
        let saved = Saved::new(&self.tensor(o, of_q), read);
        let of_output = OutputGradients::new(&self.tensor(d_o, of_q));
        let mut gradients = Gradients::new(
            self.tensor_mut(d_q, of_q),
            self.tensor_mut(d_k, of_k),
            self.tensor_mut(d_v, of_k),
        );
        let mut queue = self.queue();
        backward
            .backward(&mut queue, &inputs, &saved, &of_output, &mut gradients)
            .unwrap();
    }

    fn forget(&self) {
        for (address, n_bytes) in self.outputs {
            self.library.write(address, &vec![NEVER; n_bytes]);
        }
    }

    fn results(&self) -> [Vec<u8>; 5] {
        self.outputs
            .map(|(address, n_bytes)| self.library.read(address, n_bytes))
    }
}

/// The same passes by the calls that wait, on memory of the host.
fn expected(device: &Device, algorithm: Algorithm) -> [Vec<u8>; 5] {
    let problem = problem();
    let (of_q, of_k) = (problem.shape_q(), problem.shape_k());
    let (q, k, v, d_o) = (
        waves(of_q, 0.13),
        waves(of_k, 0.29),
        waves(of_k, 0.41),
        waves(of_q, 0.73),
    );
    let (mut o, mut d_q) = (q.clone(), q.clone());
    let (mut d_k, mut d_v) = (k.clone(), k.clone());
    let mut lse = vec![0f32; problem.shape_lse().iter().product()];
    let attention = Attention::new(device, problem)
        .unwrap()
        .with_algorithm(algorithm);
    let (q, k, v) = (
        Tensor::bshd(&q, of_q).unwrap(),
        Tensor::bshd(&k, of_k).unwrap(),
        Tensor::bshd(&v, of_k).unwrap(),
    );
    let inputs = Inputs::new(&q, &k, &v);
    let mut outputs = Outputs::new(TensorMut::bshd(&mut o, of_q).unwrap(), &mut lse);
    attention.forward(&inputs, &mut outputs).unwrap();
    let mut gradients = Gradients::new(
        TensorMut::bshd(&mut d_q, of_q).unwrap(),
        TensorMut::bshd(&mut d_k, of_k).unwrap(),
        TensorMut::bshd(&mut d_v, of_k).unwrap(),
    );
    let saved = Saved::new(&Tensor::bshd(&o, of_q).unwrap(), &lse);
    let of_output = OutputGradients::new(&Tensor::bshd(&d_o, of_q).unwrap());
    attention
        .backward(&inputs, &saved, &of_output, &mut gradients)
        .unwrap();
    let lse = lse.iter().flat_map(|x| x.to_ne_bytes()).collect();
    [bytes(&o), lse, bytes(&d_q), bytes(&d_k), bytes(&d_v)]
}

fn check(library: &Foreign, kind: Kind, algorithm: Algorithm, expected: &[Vec<u8>; 5]) {
    let passes = Passes::new(library, algorithm);
    passes.enqueue();
    assert!(
        &passes.results() == expected,
        "{kind:?} {algorithm}: a call"
    );
    let graph = library.capture(|| passes.enqueue());
    for replay in 0..100 {
        passes.forget();
        library.launch(graph);
        assert!(
            &passes.results() == expected,
            "{kind:?} {algorithm}: replay {replay}"
        );
    }
    let start = Instant::now();
    (0..100).for_each(|_| passes.enqueue());
    let us = start.elapsed().as_secs_f64() * 1e4;
    eprintln!(
        "{kind:?} {algorithm}: both passes, looked up and enqueued, take the host {us:.1} us"
    );
    assert!(&passes.results() == expected);
}

/// Results are those of the library's own context, to the bit.
#[test]
fn another_librarys_context_stream_memory_and_graph_serve() {
    let algorithms = [Algorithm::Flash3, Algorithm::Flash2, Algorithm::Standard];
    for algorithm in algorithms
        .into_iter()
        .filter(|&algorithm| !CUDA.cannot_run(algorithm))
    {
        let expected = expected(&(CUDA.open)(0).unwrap(), algorithm);
        for kind in [Kind::Created, Kind::Primary] {
            let library = Foreign::new(kind).unwrap();
            check(&library, kind, algorithm, &expected);
            library.leave();
        }
    }
}

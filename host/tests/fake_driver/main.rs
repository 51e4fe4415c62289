//! The CUDA backend above a driver made of functions: what is enqueued, what is not, and what is said when it fails.
//!
//! Kernels do not run here, so entries without instructions stand in for them; that they compute the right thing is for the
//! emulator and for a GPU.

use std::mem::{offset_of, size_of};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ferroflash::backend::cuda::{
    CudaDevice, DeviceBuffer, Event, Queue, Stream, StreamRef, use_stand_ins,
};
use ferroflash::error::{Argument, DriverError, ProblemError};
use ferroflash::plan::Plan;
use ferroflash::prepared::Layouts;
use ferroflash::{
    Algorithm, Attention, Device, Dtype, Error, Gradients, Graph, Inputs, Layout, Mask,
    OutputGradients, Outputs, Pass, PreparedForward, Problem, Saved, Tensor, TensorMut, Vector,
};
use ferroflash_driver::fake::{self, Beginning, Call, CountingAllocator, Kind, Launch};
use ferroflash_kernels::params::{
    BackwardParams, ClearParams, ForwardParams, StandardParams, TileListParams, TmaBackwardParams,
    TmaForwardParams,
};
use ferroflash_kernels::variants;
use half::bf16;

mod append;
mod backward;
mod enqueue;
mod foreign;
mod graph;
mod host_time;
mod kept;
mod kernel_cache;
mod kernels;
mod marks;
mod merge;
mod prepared;
mod ptxas;
mod quantize;
mod queue;
mod resources;
mod scores;
mod stamps;
mod tensor_maps;
mod weights;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const SHAPE: [usize; 4] = [2, 200, 4, 64];

/// Bytes of the parameter of a kernel of the list.
fn params_bytes(kernel: &str) -> Option<usize> {
    Some(match variants::by_name(kernel)?.kind {
        variants::Kind::Forward | variants::Kind::ForwardE4m3 => size_of::<ForwardParams>(),
        variants::Kind::TmaForward | variants::Kind::TmaForwardMla => size_of::<TmaForwardParams>(),
        variants::Kind::Flash1Forward => {
            size_of::<ferroflash_kernels::params::Flash1ForwardParams>()
        }
        variants::Kind::TmaBackward => size_of::<TmaBackwardParams>(),
        variants::Kind::BackwardPreprocess
        | variants::Kind::Flash1Backward
        | variants::Kind::Backward
        | variants::Kind::BackwardPostprocess
        | variants::Kind::TmaBackwardPreprocess => size_of::<BackwardParams>(),
        variants::Kind::Clear => size_of::<ClearParams>(),
        variants::Kind::Combine => size_of::<ferroflash_kernels::params::CombineParams>(),
        variants::Kind::Merge => size_of::<ferroflash_kernels::params::MergeParams>(),
        variants::Kind::TensorGradient => {
            size_of::<ferroflash_kernels::params::TensorGradientParams>()
        }
        variants::Kind::SinkGradient => size_of::<ferroflash_kernels::params::SinkGradientParams>(),
        variants::Kind::Append | variants::Kind::AppendE4m3 => {
            size_of::<ferroflash_kernels::params::AppendParams>()
        }
        variants::Kind::Amax | variants::Kind::Quantize => {
            size_of::<ferroflash_kernels::params::QuantizeParams>()
        }
        variants::Kind::TileList | variants::Kind::TmaTileList => size_of::<TileListParams>(),
        _ => size_of::<StandardParams>(),
    })
}

/// Registers of a thread of a kernel of the list, as its budget has them.
fn registers(kernel: &str) -> i32 {
    let tile_config = variants::by_name(kernel).map(|variant| variant.tile_config);
    tile_config.map_or(128, |tile_config| tile_config.launch_registers as i32)
}

/// The driver is one per process: one test at a time, and each finds it as new.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    fake::install();
    use_stand_ins();
    let mut state = fake::state();
    state.params_bytes = params_bytes;
    state.registers = registers;
    state.version = 13000;
    state.compute_capability = (9, 0);
    state.load_answer = (0, c"");
    state.cubin_answer = 0;
    (state.compile_together, state.compiling) = (0, 0);
    state.calls = None;
    state.launches_left = None;
    state.synchronize_answer = 0;
    state.fill_answer = 0;
    turn
}

fn gpu(ordinal: u32) -> Device {
    Device::cuda(ordinal).expect("the driver has two devices")
}

fn problem() -> Problem {
    let [batch, seqlen, heads, head_dim] = SHAPE;
    let sizes = Problem::builder(Dtype::Bf16)
        .batch(batch)
        .seqlen(seqlen)
        .heads(heads)
        .head_dim(head_dim);
    sizes.mask(Mask::Causal).build().unwrap()
}

/// A forward pass with all it needs.
struct Forward {
    prepared: PreparedForward,
    q: DeviceBuffer<bf16>,
    k: DeviceBuffer<bf16>,
    v: DeviceBuffer<bf16>,
    o: DeviceBuffer<bf16>,
    lse: DeviceBuffer<f32>,
    queue: Queue,
}

impl Forward {
    /// With flash2: its parameters are plain views.
    fn new(device: &Device) -> Forward {
        Forward::with(device, Algorithm::Flash2)
    }

    /// Where q, k, v and o lie.
    fn addresses(&self) -> [u64; 4] {
        [&self.q, &self.k, &self.v, &self.o].map(|tensor| tensor.slice().address())
    }

    fn with(device: &Device, algorithm: Algorithm) -> Forward {
        let attention = Attention::new(device, problem()).unwrap();
        let attention = attention.with_algorithm(algorithm);
        let prepared = attention.prepare_forward(&Layouts::contiguous()).unwrap();
        let cuda = device.as_cuda().unwrap();
        let buffer = || DeviceBuffer::new(cuda, SHAPE.iter().product()).unwrap();
        let lse = DeviceBuffer::new(cuda, 2 * 4 * 200).unwrap();
        let mut queue = Queue::new(cuda).unwrap();
        queue.reserve(prepared.plan()).unwrap();
        Forward {
            prepared,
            q: buffer(),
            k: buffer(),
            v: buffer(),
            o: buffer(),
            lse,
            queue,
        }
    }

    fn enqueue(&mut self) -> Result<(), Error> {
        self.on_queue(|queue, enqueue| enqueue(queue))
    }

    /// A graph of one call.
    fn capture(&mut self) -> Result<Graph, Error> {
        self.on_queue(|queue, enqueue| queue.capture(enqueue))
    }

    /// Runs with the queue and with what enqueues the call.
    fn on_queue<R>(
        &mut self,
        run: impl FnOnce(&mut Queue, &mut dyn FnMut(&mut Queue) -> Result<(), Error>) -> R,
    ) -> R {
        let layout = Layout::bshd(SHAPE).unwrap();
        let [q, k, v] = [&self.q, &self.k, &self.v].map(|buffer| buffer.slice());
        let [q, k, v] = [q, k, v].map(|slice| Tensor::device(slice, layout).unwrap());
        let inputs = Inputs::new(&q, &k, &v);
        let o = TensorMut::device(self.o.slice_mut(), layout).unwrap();
        let mut outputs = Outputs::new(o, self.lse.slice_mut());
        let prepared = &self.prepared;
        run(&mut self.queue, &mut |queue| {
            prepared.forward(queue, &inputs, &mut outputs)
        })
    }
}

/// The calls of the driver that `run` makes.
fn calls_of(run: impl FnOnce()) -> Vec<Call> {
    fake::state().calls = Some(Vec::with_capacity(64));
    run();
    fake::state().calls.take().unwrap_or_default()
}

//! Calls in another library's context, on its stream and in its memory, workspace included: the only tests that promise a driver something.

use std::sync::Arc;

use super::*;
use ferroflash::backend::cuda::memory::{slice_from_raw, slice_from_raw_mut};
use ferroflash::backend::cuda::sys::{CUcontext, CUfunction, CUstream};
use ferroflash::error::Argument::Lse;
use ferroflash::plan::workspace::{ALIGNMENT_BYTES, COUNTER_BYTES};
use ferroflash::{PlanCache, PreparedBackward, raw};
use ferroflash_driver::extra::{self, function};

/// What another library has: a context that is current, a stream, memory. Taken away when this is dropped.
pub(super) struct Library {
    context: CUcontext,
    stream: CUstream,
    memory: u64,
}

/// Bytes of each tensor, and of everything else.
const PIECE: u64 = 1 << 20;

impl Library {
    pub(super) fn new(context: usize) -> Library {
        let context = context as CUcontext;
        // SAFETY: the driver knows the context; stream and memory are taken away with this.
        unsafe {
            extra::context::push(context).unwrap();
            Library {
                context,
                stream: extra::stream::create().unwrap(),
                memory: extra::memory::allocate(16 * PIECE as usize).unwrap(),
            }
        }
    }

    pub(super) fn device(&self) -> Device {
        // SAFETY: the context of the driver of functions is there for ever.
        let cuda = unsafe { CudaDevice::from_context(self.context) }.unwrap();
        Device::from_cuda(cuda).unwrap()
    }

    fn address(&self, piece: u64) -> u64 {
        self.memory + piece * PIECE
    }

    fn tensor<'a>(&self, device: &'a CudaDevice, piece: u64) -> Tensor<'a> {
        let n_elems = SHAPE.iter().product::<usize>() as u64;
        // SAFETY: the memory outlives what the tests enqueue, which is nothing that runs.
        let slice = unsafe { slice_from_raw(device, self.address(piece), n_elems, Dtype::Bf16) };
        Tensor::device(slice, Layout::bshd(SHAPE).unwrap()).unwrap()
    }

    fn tensor_mut<'a>(&self, device: &'a CudaDevice, piece: u64) -> TensorMut<'a> {
        let n_elems = SHAPE.iter().product::<usize>() as u64;
        // SAFETY: as above, and each piece is used once in a call.
        let slice =
            unsafe { slice_from_raw_mut(device, self.address(piece), n_elems, Dtype::Bf16) };
        TensorMut::device(slice, Layout::bshd(SHAPE).unwrap()).unwrap()
    }

    /// A queue in the last piece.
    fn queue(&self, device: &Arc<CudaDevice>, n_bytes: u64) -> Result<Queue, Error> {
        // SAFETY: stream and memory outlive the queue, which is the only one there.
        unsafe { Queue::with_workspace(device, self.stream, self.address(8), n_bytes) }
    }

    /// A forward pass as a binding to a framework calls it: o alone, in a workspace that is lent.
    pub(super) fn forward(&self, device: &Device, prepared: &PreparedForward) {
        let cuda = device.as_cuda().unwrap();
        let [q, k, v] = [0, 1, 2].map(|piece| self.tensor(cuda, piece));
        let inputs = Inputs::new(&q, &k, &v);
        let n_bytes = prepared.plan().workspace.n_bytes();
        let mut queue = self.queue(cuda, n_bytes).unwrap();
        let mut outputs = Outputs::without_lse(self.tensor_mut(cuda, 3));
        prepared.forward(&mut queue, &inputs, &mut outputs).unwrap();
    }

    /// A call on addresses, one piece for each of its arguments.
    pub(super) fn run(&self, call: &raw::Call) {
        let arguments = call.needs().map(|(argument, _)| argument);
        let addresses = arguments
            .zip((0..8).map(|piece| self.address(piece)))
            .collect();
        let cuda = call.device().as_cuda().unwrap();
        let mut queue = self.queue(cuda, call.workspace_bytes()).unwrap();
        // SAFETY: nothing runs.
        unsafe { call.run(&addresses, &raw::Values::default(), Some(&mut queue)) }.unwrap();
    }

    /// Both passes, as a binding to a framework calls them: o alone, then gradients.
    fn both_passes(&self, device: &Device, forward: &PreparedForward, backward: &PreparedBackward) {
        let cuda = device.as_cuda().unwrap();
        self.forward(device, forward);
        let [q, k, v, o] = [0, 1, 2, 3].map(|piece| self.tensor(cuda, piece));
        let inputs = Inputs::new(&q, &k, &v);
        let mut queue = self
            .queue(cuda, backward.plan().workspace.n_bytes())
            .unwrap();
        // SAFETY: as for tensors.
        let lse = unsafe { slice_from_raw(cuda, self.address(4), 2 * 4 * 200, Dtype::F32) };
        let saved = Saved::new(&o, lse);
        let of_output = OutputGradients::new(&o);
        let [d_q, d_k, d_v] = [5, 6, 7].map(|piece| self.tensor_mut(cuda, piece));
        let mut gradients = Gradients::new(d_q, d_k, d_v);
        backward
            .backward(&mut queue, &inputs, &saved, &of_output, &mut gradients)
            .unwrap();
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: made in `new`, in the context that is current again.
        unsafe {
            extra::stream::destroy(self.stream).unwrap();
            extra::memory::free(self.memory).unwrap();
        }
        extra::context::pop().unwrap();
    }
}

/// The forward pass without lse, and the backward pass.
fn prepared(cache: &PlanCache, device: &Device) -> (Arc<PreparedForward>, Arc<PreparedBackward>) {
    let attention = Attention::new(device, problem()).unwrap();
    let layouts = Layouts::contiguous();
    let forward = cache.forward(&attention, &layouts.without(Lse)).unwrap();
    (forward, cache.backward(&attention, &layouts).unwrap())
}

/// Nothing is allocated, freed, waited for or made: neither in the context of the caller nor in the primary one.
#[test]
fn both_passes_run_on_what_the_caller_has() {
    let _turn = turn();
    for context in [fake::OTHER_CONTEXT, fake::CONTEXTS[0], fake::CONTEXTS[1]] {
        let library = Library::new(context);
        let device = library.device();
        assert_eq!(
            device.as_cuda().unwrap().ordinal(),
            u32::from(context == fake::CONTEXTS[1])
        );
        let cache = PlanCache::new(8);
        let (forward, backward) = prepared(&cache, &device);
        let alive = fake::state().alive.clone();
        let calls = calls_of(|| library.both_passes(&device, &forward, &backward));
        assert_eq!(fake::state().alive, alive, "something was made");
        let mut n_fills = 0;
        for call in calls {
            match call {
                Call::Launch(launch) => assert_eq!(launch.stream, library.stream as usize),
                Call::EncodeTensorMap => {}
                Call::Fill {
                    address,
                    value: 0,
                    n_bytes,
                    stream,
                } => {
                    n_fills += 1;
                    assert_eq!(address as u64, library.address(8));
                    let counters = forward.plan().workspace.counter_bytes();
                    assert_eq!(n_bytes as u64, counters);
                    assert!(0 < counters && counters <= COUNTER_BYTES);
                    assert_eq!(stream, library.stream as usize);
                }
                other => panic!("{other:?}"),
            }
        }
        let counting = [forward.plan(), backward.plan()].map(|plan| plan.workspace.has_counter());
        assert_eq!(counting, [true, false]);
        assert_eq!(n_fills, 1, "counters are cleared for each call that counts");
        assert_eq!(fake::contexts(), [context]);
    }
}

/// Kernels are loaded into the context that launches them; the device with the same ordinal in its primary context is another one.
#[test]
fn a_context_has_kernels_of_its_own() {
    let _turn = turn();
    let library = Library::new(fake::OTHER_CONTEXT);
    let (of_library, primary) = (library.device(), gpu(0));
    assert!(!Arc::ptr_eq(
        of_library.as_cuda().unwrap(),
        primary.as_cuda().unwrap()
    ));
    assert!(Arc::ptr_eq(
        of_library.as_cuda().unwrap(),
        library.device().as_cuda().unwrap()
    ));
    let cache = PlanCache::new(8);
    let n_loads = |device: &Device| {
        let calls = calls_of(|| drop(prepared(&cache, device)));
        calls.iter().filter(|call| **call == Call::Load).count()
    };
    let n_kernels = n_loads(&of_library);
    assert_eq!((n_kernels, n_loads(&primary)), (3, 3));
    assert_eq!(cache.len(), 4);
    // Modules go into the context that they came from.
    drop((primary, of_library));
    let calls = calls_of(|| cache.clear());
    assert_eq!(
        calls.iter().filter(|call| **call == Call::Unload).count(),
        6
    );
}

#[test]
fn the_current_context_serves_and_none_is_an_error() {
    let _turn = turn();
    // SAFETY: there is no context to be alive.
    let none = unsafe { CudaDevice::from_current_context() };
    assert_eq!(none.err(), Some(DriverError::NoContext));
    let library = Library::new(fake::OTHER_CONTEXT);
    // SAFETY: the context of the driver of functions is there for ever.
    let current = unsafe { CudaDevice::from_current_context() }.unwrap();
    assert!(Arc::ptr_eq(&current, library.device().as_cuda().unwrap()));
}

#[test]
fn a_workspace_that_does_not_fit_is_refused() {
    let _turn = turn();
    let library = Library::new(fake::OTHER_CONTEXT);
    let device = library.device();
    let cuda = device.as_cuda().unwrap();
    let (forward, _) = prepared(&PlanCache::new(1), &device);
    let needed = forward.plan().workspace.n_bytes();
    let [q, k, v] = [0, 1, 2].map(|piece| library.tensor(cuda, piece));
    let mut outputs = Outputs::without_lse(library.tensor_mut(cuda, 3));
    for given in [0, 4, needed - 1] {
        let mut queue = library.queue(cuda, given).unwrap();
        let calls = calls_of(|| {
            let refused = forward.forward(&mut queue, &Inputs::new(&q, &k, &v), &mut outputs);
            let too_small = ProblemError::WorkspaceTooSmall { given, needed };
            assert_eq!(refused, Err(too_small.into()));
        });
        assert_eq!(calls, []);
    }
    let address = library.address(8) + 16;
    // SAFETY: nothing is enqueued on the queue, if there is one.
    let refused = unsafe { Queue::with_workspace(cuda, library.stream, address, needed) };
    let alignment = ALIGNMENT_BYTES;
    let misaligned = ProblemError::WorkspaceMisaligned { address, alignment };
    assert_eq!(refused.err(), Some(misaligned.into()));
}

/// Between two calls the caller may have had the memory for something else.
#[test]
fn a_lent_workspace_is_cleared_before_each_call_that_counts() {
    let _turn = turn();
    let library = Library::new(fake::CONTEXTS[0]);
    let device = library.device();
    let cuda = device.as_cuda().unwrap();
    let (forward, _) = prepared(&PlanCache::new(1), &device);
    let [q, k, v] = [0, 1, 2].map(|piece| library.tensor(cuda, piece));
    let mut outputs = Outputs::without_lse(library.tensor_mut(cuda, 3));
    let n_bytes = forward.plan().workspace.n_bytes();
    let mut queue = library.queue(cuda, n_bytes).unwrap();
    for _ in 0..2 {
        let calls = calls_of(|| {
            forward
                .forward(&mut queue, &Inputs::new(&q, &k, &v), &mut outputs)
                .unwrap();
        });
        let fill = calls
            .iter()
            .position(|call| matches!(call, Call::Fill { .. }));
        let launch = calls
            .iter()
            .position(|call| matches!(call, Call::Launch(_)));
        assert!(fill.is_some() && fill < launch, "{calls:?}");
    }
}

/// lse is written where the plan says; nobody who was told so gives a place of his own.
#[test]
fn an_lse_that_was_left_out_is_a_piece_of_the_workspace() {
    let _turn = turn();
    let mut forward = Forward::new(&gpu(0));
    let attention = Attention::new(&gpu(0), problem()).unwrap();
    let attention = attention.with_algorithm(Algorithm::Flash2);
    let without = Layouts::contiguous().without(Lse);
    forward.prepared = attention.prepare_forward(&without).unwrap();
    let not_taken = ProblemError::NotTaken { argument: Lse };
    assert_eq!(forward.enqueue(), Err(not_taken.into()));
    let pieces = forward.prepared.plan().workspace.pieces();
    let lse = pieces.iter().find(|piece| piece.name == "lse").unwrap();
    assert_eq!(lse.n_bytes, 2 * 4 * 200 * 4);
    // The backward pass has to be given it.
    let missing = ProblemError::Missing { argument: Lse };
    assert_eq!(
        attention.prepare_backward(&without).err(),
        Some(missing.into())
    );
}

/// The second look-up plans nothing, and allocates nothing on the host either; the oldest calls make room.
#[test]
fn a_call_is_planned_once() {
    let _turn = turn();
    let device = gpu(0);
    let cache = PlanCache::new(2);
    let attention = |seqlen| {
        let problem = problem().to_builder().seqlen(seqlen).build().unwrap();
        Attention::new(&device, problem).unwrap()
    };
    let layouts = Layouts::contiguous();
    let first = cache.forward(&attention(200), &layouts).unwrap();
    let again = attention(200);
    let allocated = fake::allocations();
    let second = cache.forward(&again, &layouts).unwrap();
    assert_eq!(fake::allocations(), allocated, "host memory was allocated");
    assert!(Arc::ptr_eq(&first, &second));

    let scaled = problem().to_builder().softmax_scale(0.5).build().unwrap();
    let scaled = Attention::new(&device, scaled).unwrap();
    let by_name = attention(200).with_algorithm(Algorithm::Flash2);
    let bhsd = layouts.with(Argument::Q, Layout::bhsd([2, 4, 200, 64]).unwrap());
    for (attention, layouts) in [
        (&scaled, layouts),
        (&by_name, layouts),
        (&attention(201), layouts),
        (&attention(200), bhsd),
        (&attention(200), layouts.without(Lse)),
        (&attention(200), layouts),
    ] {
        let other = cache.forward(attention, &layouts).unwrap();
        assert!(!Arc::ptr_eq(&first, &other));
    }
    assert_eq!(cache.len(), 2);
    let refused = cache.forward(&attention(200), &layouts.giving(Argument::DO));
    let not_taken = ProblemError::NotTaken {
        argument: Argument::DO,
    };
    assert_eq!(refused.err(), Some(not_taken.into()));
    assert_eq!(cache.len(), 2, "a refusal is not kept");
}

/// What a binding pays for a call that it has made before: looked up, given a queue, enqueued.
#[test]
fn a_second_call_costs_the_host_a_few_us_beside_the_driver() {
    let _turn = turn();
    let library = Library::new(fake::OTHER_CONTEXT);
    let device = library.device();
    let cuda = device.as_cuda().unwrap();
    let cache = PlanCache::new(8);
    let layouts = Layouts::contiguous().without(Lse);
    let call = || {
        let attention = Attention::new(&device, problem()).unwrap();
        let forward = cache.forward(&attention, &layouts).unwrap();
        let [q, k, v] = [0, 1, 2].map(|piece| library.tensor(cuda, piece));
        let n_bytes = forward.plan().workspace.n_bytes();
        let mut queue = library.queue(cuda, n_bytes).unwrap();
        let mut outputs = Outputs::without_lse(library.tensor_mut(cuda, 3));
        let inputs = Inputs::new(&q, &k, &v);
        forward.forward(&mut queue, &inputs, &mut outputs).unwrap();
    };
    call();
    let run = || {
        let start = Instant::now();
        (0..1000).for_each(|_| call());
        start.elapsed().as_secs_f64() * 1e3
    };
    let best = (0..20).map(|_| run()).fold(f64::INFINITY, f64::min);
    eprintln!("a second call costs the host {best:.3} us beside the driver");
    // With checks, and little optimised, code takes longer.
    let most = if cfg!(debug_assertions) { 10.0 } else { 5.0 };
    assert!(best < most, "{best:.3} us");
}

/// Threads share a cache, which holds one call when they have come and gone.
#[test]
fn threads_share_a_cache() {
    let _turn = turn();
    let device = gpu(0);
    let cache = PlanCache::new(4);
    let attention = Attention::new(&device, problem()).unwrap();
    let look_up = || cache.forward(&attention, &Layouts::contiguous()).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..100).for_each(|_| drop(look_up())));
        }
    });
    assert!(Arc::ptr_eq(&look_up(), &look_up()));
    assert_eq!(cache.len(), 1);
}

#[test]
fn a_stream_of_another_library_serves_and_stays() {
    let _turn = turn();
    let device = gpu(0);
    let cuda = device.as_cuda().unwrap();
    let mut forward = Forward::new(&device);
    let context =
        cust::context::Context::new(cust::device::Device::get_device(0).unwrap()).unwrap();
    let flags = cust::stream::StreamFlags::DEFAULT;
    let of_cust = cust::stream::Stream::new(flags, None).unwrap();
    for stream in [of_cust.as_inner().cast(), std::ptr::null_mut()] {
        // SAFETY: the stream outlives the queue; nobody captures it.
        forward.queue = unsafe { Queue::borrow(cuda, stream) }.unwrap();
        forward.queue.reserve(forward.prepared.plan()).unwrap();
        let launches = enqueue::only_launches(calls_of(|| forward.enqueue().unwrap()));
        assert_eq!(launches[0].stream, stream as usize);
    }
    forward.queue = Queue::new(cuda).unwrap();
    let alive = of_cust.as_inner() as usize;
    assert!(fake::state().alive.contains_key(&alive));
    drop((of_cust, context));
}

#[test]
fn a_stream_of_another_device_is_refused() {
    let _turn = turn();
    let (device, other) = (gpu(0), gpu(1));
    let stream = Stream::new(other.as_cuda().unwrap()).unwrap();
    let raw = StreamRef::from(&stream).as_raw();
    // SAFETY: the stream outlives the queue, if there is one; nobody captures it.
    let refused = unsafe { Queue::borrow(device.as_cuda().unwrap(), raw) };
    assert_eq!(refused.err(), Some(ProblemError::QueueElsewhere.into()));
}

/// The driver's part of such calls, each to be made again.
pub(super) fn of_the_driver(calls: &[Call]) -> Vec<Box<dyn Fn()>> {
    let mut repeated: Vec<Box<dyn Fn()>> = Vec::new();
    for call in calls {
        match call.clone() {
            Call::Launch(launch) => {
                let here = *fake::contexts().last().expect("a context is current");
                let is_it = |kind: &Kind| matches!(kind, Kind::Function { name, context, .. } if *name == launch.kernel && *context == here);
                let alive = fake::state().alive.clone();
                let handle = alive.iter().find(|(_, kind)| is_it(kind));
                let function = *handle.expect("the kernel is loaded").0 as CUfunction;
                let size = function::LaunchSize {
                    grid: launch.grid[0],
                    threads: launch.block[0],
                    shared_bytes: launch.shared_bytes,
                };
                let params = [0u8; 4096];
                // SAFETY: nothing runs, and the parameter is longer than any.
                repeated.push(Box::new(move || unsafe {
                    function::launch(function, size, launch.stream as _, &params).unwrap();
                }));
            }
            Call::Fill {
                address,
                n_bytes,
                stream,
                ..
            } => {
                // SAFETY: the call has filled it.
                repeated.push(Box::new(move || unsafe {
                    extra::stream::fill(address as u64, 0, n_bytes, stream as _).unwrap();
                }));
            }
            Call::EncodeTensorMap => {}
            other => panic!("{other:?} is nothing that a call does"),
        }
    }
    repeated
}

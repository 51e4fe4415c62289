//! The CUDA backend above a driver made of functions: what is enqueued, what is not, and what is said when it fails.
//!
//! Kernels do not run here; that they compute the right thing is for the emulator and for a GPU.

use std::mem::size_of;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ferroflash::backend::cuda::{
    CudaDevice, DeviceBuffer, Event, Stream, StreamRef, missing_kernels,
};
use ferroflash::error::DriverError;
use ferroflash::plan::Plan;
use ferroflash::prepared::{ForwardLayouts, GradientLayouts};
use ferroflash::{
    Attention, Device, Dtype, Error, Gradients, Layout, Lse, LseMut, Mask, PreparedForward,
    Problem, Saved, Tensor, TensorMut, Workspace,
};
use ferroflash_driver::fake::{self, Call, CountingAllocator, Kind, Launch};
use ferroflash_kernels::params::{BackwardParams, ForwardParams, Params, StandardParams};
use ferroflash_kernels::variants;
use half::bf16;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const SHAPE: [usize; 4] = [2, 200, 4, 64];

/// Bytes of the parameter of a kernel of the list.
fn params_bytes(kernel: &str) -> Option<usize> {
    let name = variants::by_name(kernel)?.name;
    Some(match name.split('_').next() {
        Some("forward") => size_of::<ForwardParams>(),
        Some("backward") => size_of::<BackwardParams>(),
        _ => size_of::<StandardParams>(),
    })
}

/// The driver is one per process: tests take turns, and each finds it as new.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    fake::install();
    let mut state = fake::state();
    state.params_bytes = params_bytes;
    state.version = 13000;
    state.load_answer = (0, c"");
    state.calls = None;
    turn
}

/// The device, if the library holds kernels; says so where it does not.
fn gpu(ordinal: u32) -> Option<Device> {
    match missing_kernels() {
        None => Some(Device::cuda(ordinal).expect("the driver has two devices")),
        Some(reason) => {
            assert!(
                std::env::var("REQUIRE").as_deref() != Ok("kernels"),
                "REQUIRE=kernels, but: {reason}"
            );
            eprintln!("not run: {reason}");
            None
        }
    }
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
    workspace: Workspace,
}

impl Forward {
    fn new(device: &Device) -> Forward {
        let attention = Attention::new(device, problem()).unwrap();
        let prepared = attention
            .prepare_forward(&ForwardLayouts::contiguous(&problem()).unwrap())
            .unwrap();
        let cuda = device.as_cuda().unwrap();
        let buffer = || DeviceBuffer::new(cuda, SHAPE.iter().product()).unwrap();
        let lse = DeviceBuffer::new(cuda, 2 * 4 * 200).unwrap();
        let workspace = prepared.workspace().unwrap();
        Forward {
            prepared,
            q: buffer(),
            k: buffer(),
            v: buffer(),
            o: buffer(),
            lse,
            workspace,
        }
    }

    fn enqueue<'a>(&mut self, stream: impl Into<StreamRef<'a>>) -> Result<(), Error> {
        let layout = Layout::bshd(SHAPE)?;
        let (q, k, v) = (self.q.slice(), self.k.slice(), self.v.slice());
        self.prepared.forward(
            stream,
            &Tensor::device(q, layout)?,
            &Tensor::device(k, layout)?,
            &Tensor::device(v, layout)?,
            &mut TensorMut::device(self.o.slice_mut(), layout)?,
            &mut LseMut::Device(self.lse.slice_mut()),
            &mut self.workspace,
        )
    }
}

/// The calls of the driver that `run` makes.
fn calls_of(run: impl FnOnce()) -> Vec<Call> {
    fake::state().calls = Some(Vec::with_capacity(64));
    run();
    fake::state().calls.take().unwrap_or_default()
}

/// The kernels among calls; there is nothing else.
fn only_launches(calls: Vec<Call>) -> Vec<Launch> {
    let launch = |call| match call {
        Call::Launch(launch) => launch,
        other => panic!("enqueueing did {other:?}"),
    };
    calls.into_iter().map(launch).collect()
}

/// What was enqueued is what was planned, addresses apart.
fn assert_as_planned(launches: &[Launch], plan: &Plan, stream: StreamRef) {
    assert_eq!(launches.len(), plan.launches.len());
    for (launch, planned) in launches.iter().zip(&plan.launches) {
        let footprint = &planned.variant.footprint;
        assert_eq!(launch.kernel, planned.variant.name);
        assert_eq!(
            (launch.grid, launch.block),
            ([planned.grid, 1, 1], [footprint.threads, 1, 1])
        );
        assert_eq!(launch.shared_bytes, footprint.shared_bytes);
        assert_eq!(launch.stream, stream.as_raw() as usize);
        assert_eq!(
            launch.params.len(),
            match planned.params {
                Params::Forward(_) => size_of::<ForwardParams>(),
                Params::Backward(_) => size_of::<BackwardParams>(),
                Params::Standard(_) => size_of::<StandardParams>(),
            }
        );
    }
}

/// The 64-bit word at an offset of a kernel's parameter.
fn word(launch: &Launch, offset: usize) -> u64 {
    u64::from_ne_bytes(launch.params[offset..offset + 8].try_into().unwrap())
}

#[test]
fn a_forward_pass_is_enqueued_as_planned_on_the_callers_stream() {
    let _turn = turn();
    let Some(device) = gpu(0) else { return };
    let mut forward = Forward::new(&device);
    let stream = Stream::new(device.as_cuda().unwrap()).unwrap();
    let launches = only_launches(calls_of(|| forward.enqueue(&stream).unwrap()));
    assert_as_planned(&launches, forward.prepared.plan(), (&stream).into());
    let addresses = [
        forward.q.slice(),
        forward.k.slice(),
        forward.v.slice(),
        forward.o.slice(),
    ]
    .map(|at| at.address());
    assert_eq!(
        [0, 32, 64, 96].map(|offset| word(&launches[0], offset)),
        addresses
    );
    assert_eq!(word(&launches[0], 128), forward.lse.slice().address());
}

#[test]
fn a_backward_pass_is_enqueued_as_planned() {
    let _turn = turn();
    let Some(device) = gpu(0) else { return };
    let cuda = device.as_cuda().unwrap();
    let attention = Attention::new(&device, problem()).unwrap();
    let layouts = ForwardLayouts::contiguous(&problem()).unwrap();
    let gradient_layouts = GradientLayouts::contiguous(&problem()).unwrap();
    let prepared = attention
        .prepare_backward(&layouts, &gradient_layouts)
        .unwrap();
    let mut workspace = prepared.workspace().unwrap();
    let layout = Layout::bshd(SHAPE).unwrap();
    let inputs = [(); 5].map(|()| DeviceBuffer::<bf16>::new(cuda, SHAPE.iter().product()).unwrap());
    let mut outputs =
        [(); 3].map(|()| DeviceBuffer::<bf16>::new(cuda, SHAPE.iter().product()).unwrap());
    let lse = DeviceBuffer::<f32>::new(cuda, 2 * 4 * 200).unwrap();
    let [q, k, v, o, d_o] = inputs
        .each_ref()
        .map(|buffer| Tensor::device(buffer.slice(), layout).unwrap());
    let [d_q, d_k, d_v] = outputs
        .each_mut()
        .map(|buffer| TensorMut::device(buffer.slice_mut(), layout).unwrap());
    let saved = Saved {
        q,
        k,
        v,
        o,
        lse: Lse::Device(lse.slice()),
    };
    let mut gradients = Gradients { d_q, d_k, d_v };
    let stream = Stream::new(cuda).unwrap();
    let run = || {
        prepared
            .backward(&stream, &saved, &d_o, &mut gradients, &mut workspace)
            .unwrap()
    };
    let launches = only_launches(calls_of(run));
    assert_as_planned(&launches, prepared.plan(), (&stream).into());
    assert_eq!(launches.len(), 3, "delta, the main kernel, dQ");
}

#[test]
fn enqueueing_allocates_nothing_waits_for_nothing_and_leaves_the_thread_as_it_was() {
    let _turn = turn();
    let Some(device) = gpu(0) else { return };
    let mut forward = Forward::new(&device);
    let stream = Stream::new(device.as_cuda().unwrap()).unwrap();
    forward.enqueue(&stream).unwrap();
    let before = fake::contexts();
    let allocated = fake::allocations();
    forward.enqueue(&stream).unwrap();
    assert_eq!(fake::allocations(), allocated, "host memory was allocated");
    assert_eq!(fake::contexts(), before);
    only_launches(calls_of(|| forward.enqueue(&stream).unwrap()));
}

#[test]
fn enqueueing_costs_the_host_less_than_5_us_beside_the_driver() {
    let _turn = turn();
    let Some(device) = gpu(0) else { return };
    let mut forward = Forward::new(&device);
    let stream = Stream::new(device.as_cuda().unwrap()).unwrap();
    let mut run = || {
        let start = Instant::now();
        (0..1000).for_each(|_| forward.enqueue(&stream).unwrap());
        start.elapsed().as_secs_f64() * 1e3
    };
    let best = (0..20).map(|_| run()).fold(f64::INFINITY, f64::min);
    eprintln!("one enqueued forward pass costs the host {best:.3} us beside the driver");
    assert!(best < 5.0, "{best:.3} us");
}

#[test]
fn any_stream_serves_and_one_of_another_device_is_refused() {
    let _turn = turn();
    let (Some(device), Some(other)) = (gpu(0), gpu(1)) else {
        return;
    };
    let mut forward = Forward::new(&device);
    let launches = only_launches(calls_of(|| forward.enqueue(StreamRef::DEFAULT).unwrap()));
    assert_eq!(launches[0].stream, 0);

    let context =
        cust::context::Context::new(cust::device::Device::get_device(0).unwrap()).unwrap();
    let flags = cust::stream::StreamFlags::DEFAULT;
    let of_cust = cust::stream::Stream::new(flags, None).unwrap();
    let launches = only_launches(calls_of(|| forward.enqueue(&of_cust).unwrap()));
    assert_eq!(launches[0].stream, of_cust.as_inner() as usize);
    drop((of_cust, context));

    let foreign = Stream::new(other.as_cuda().unwrap()).unwrap();
    let refused = forward.enqueue(&foreign).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "cuLaunchKernel: invalid resource handle (CUDA_ERROR_INVALID_HANDLE, 400)"
    );
}

#[test]
fn threads_share_a_device_and_each_kernel_is_loaded_once() {
    let _turn = turn();
    let Some(device) = gpu(1) else { return };
    let calls = calls_of(|| {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut forward = Forward::new(&device);
                    let stream = Stream::new(device.as_cuda().unwrap()).unwrap();
                    forward.enqueue(&stream).unwrap();
                    stream.synchronize().unwrap();
                    assert!(fake::contexts().is_empty());
                });
            }
        });
    });
    assert_eq!(calls.iter().filter(|call| **call == Call::Load).count(), 1);
    assert_eq!(
        calls
            .iter()
            .filter(|call| matches!(call, Call::Launch(_)))
            .count(),
        4
    );
}

#[test]
fn all_is_given_back_when_the_last_handle_is_dropped() {
    let _turn = turn();
    let Some(device) = gpu(0) else { return };
    let free_bytes = device.as_cuda().unwrap().memory().unwrap().free_bytes;
    let mut forward = Forward::new(&device);
    let cuda = device.as_cuda().unwrap();
    let (stream, event) = (Stream::new(cuda).unwrap(), Event::new(cuda).unwrap());
    forward.enqueue(&stream).unwrap();
    event.record(&stream).unwrap();
    assert_eq!(fake::state().retained[0], 1);
    drop((forward, stream, event, device));
    let state = fake::state();
    let left = |kind: &&Kind| !matches!(kind, Kind::Function { .. });
    assert_eq!(
        state.alive.values().filter(left).count(),
        0,
        "{:?}",
        state.alive
    );
    assert_eq!(
        (state.free_bytes as u64, state.retained),
        (free_bytes, [0, 0])
    );
}

#[test]
fn copies_keep_every_bit_and_the_order_of_their_stream() {
    let _turn = turn();
    let Some(device) = gpu(0) else { return };
    let cuda = device.as_cuda().unwrap();
    let stream = Stream::new(cuda).unwrap();
    let values: Vec<f32> = (0..1000)
        .map(|bits| f32::from_bits(0x7fc0_0000 | bits))
        .collect();
    let bits = |values: &[f32]| {
        values
            .iter()
            .map(|value| value.to_bits())
            .collect::<Vec<_>>()
    };
    let mut buffer = DeviceBuffer::from_slice(cuda, &values, &stream).unwrap();
    let calls = calls_of(|| assert_eq!(bits(&buffer.to_vec(&stream).unwrap()), bits(&values)));
    assert_eq!(
        calls,
        [
            Call::Copy {
                stream: StreamRef::from(&stream).as_raw() as usize
            },
            Call::Synchronize
        ]
    );
    let error = buffer.copy_from(&values[1..], &stream).unwrap_err();
    assert_eq!(
        error,
        DriverError::CopyLength {
            needed: 1000,
            given: 999
        }
    );
    let empty = DeviceBuffer::<f32>::from_slice(cuda, &[], &stream).unwrap();
    assert_eq!(empty.to_vec(&stream), Ok(Vec::new()));
}

#[test]
fn too_little_memory_is_told_in_bytes() {
    let _turn = turn();
    let Some(device) = gpu(0) else { return };
    let cuda = device.as_cuda().unwrap();
    let free_bytes = cuda.memory().unwrap().free_bytes;
    let refused = DeviceBuffer::<f32>::new(cuda, 1 << 40).unwrap_err();
    assert_eq!(
        refused,
        DriverError::OutOfMemory {
            needed_bytes: 1 << 42,
            free_bytes
        }
    );
    let refused = DeviceBuffer::<f32>::new(cuda, usize::MAX).unwrap_err();
    assert_eq!(
        refused,
        DriverError::OutOfMemory {
            needed_bytes: u64::MAX,
            free_bytes
        }
    );
}

#[test]
fn a_kernel_that_the_driver_cannot_compile_is_told_with_its_log_and_may_be_tried_again() {
    let _turn = turn();
    let Some(device) = gpu(0) else { return };
    fake::state().load_answer = (912, c"ptxas fatal : line 7: no such instruction\n");
    let attention = Attention::new(&device, problem()).unwrap();
    let layouts = ForwardLayouts::contiguous(&problem()).unwrap();
    let refused = attention.prepare_forward(&layouts).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "kernel forward_sm80_bf16_d64_causal: cuModuleLoadDataEx: invalidating exception, contained \
         (CUDA_ERROR_CONTAINED, 912)\nptxas fatal : line 7: no such instruction"
    );
    fake::state().load_answer = (0, c"");
    attention.prepare_forward(&layouts).unwrap();
}

#[test]
fn a_driver_older_than_the_kernels_is_told_with_both_versions() {
    let _turn = turn();
    if missing_kernels().is_some() {
        return;
    }
    fake::state().version = 10020;
    let refused = CudaDevice::open(1).unwrap_err();
    assert!(
        matches!(refused, DriverError::DriverTooOld { found: (10, 2), needed } if (11, 0) <= needed),
        "{refused}"
    );
}

#[test]
fn a_device_that_is_not_there_is_told_with_how_many_there_are() {
    let _turn = turn();
    assert_eq!(
        CudaDevice::open(7).unwrap_err(),
        DriverError::NoDevice {
            ordinal: 7,
            n_devices: 2
        }
    );
    assert_eq!(CudaDevice::count(), Ok(2));
}

#[test]
fn a_device_tells_what_planning_needs() {
    let _turn = turn();
    let device = CudaDevice::open(1).unwrap();
    let info = device.info();
    assert_eq!(
        (info.name.as_str(), info.compute_capability, info.n_sms),
        ("Fake GPU", (9, 0), 132)
    );
    assert_eq!(
        (info.shared_bytes_per_block, info.memory_bytes),
        (227 * 1024, 1 << 30)
    );
    assert_eq!(
        (device.uuid(), device.driver_version().to_string()),
        ([2; 16], "13.0".to_owned())
    );
    assert!(
        fake::contexts().is_empty(),
        "opening leaves no context behind"
    );
}

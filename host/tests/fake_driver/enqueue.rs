//! Enqueueing: exactly what was planned, nothing beside it, in little time.

use super::*;

/// The kernels among calls; there is nothing else.
pub fn only_launches(calls: Vec<Call>) -> Vec<Launch> {
    let launch = |call| match call {
        Call::Launch(launch) => launch,
        other => panic!("enqueueing did {other:?}"),
    };
    calls.into_iter().map(launch).collect()
}

/// What was enqueued is what was planned, addresses apart.
pub fn assert_as_planned(launches: &[Launch], plan: &Plan, stream: StreamRef) {
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
                Params::TmaForward(_) => size_of::<TmaForwardParams>(),
                Params::Backward(_) => size_of::<BackwardParams>(),
                Params::Standard(_) => size_of::<StandardParams>(),
            }
        );
    }
}

/// The 64-bit word at an offset of a kernel's parameter.
pub fn word(launch: &Launch, offset: usize) -> u64 {
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
    let addresses = forward.addresses();
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
    let mut enqueue = |of_output: OutputGradients| {
        prepared.backward(&stream, &saved, of_output, &mut gradients, &mut workspace)
    };
    let d_lse = DeviceBuffer::<f32>::new(cuda, 2 * 4 * 200).unwrap();
    let with_d_lse = |slice| OutputGradients {
        d_o,
        d_lse: Some(Lse::Device(slice)),
    };
    for (of_output, address) in [
        (OutputGradients::from(&d_o), 0),
        (with_d_lse(d_lse.slice()), d_lse.slice().address()),
    ] {
        let launches = only_launches(calls_of(|| enqueue(of_output).unwrap()));
        assert_as_planned(&launches, prepared.plan(), (&stream).into());
        assert_eq!(launches.len(), 3, "delta, the main kernel, dQ");
        for launch in &launches {
            let offset = offset_of!(BackwardParams, d_lse);
            assert_eq!(word(launch, offset), address, "{}", launch.kernel);
        }
    }

    let halves = DeviceBuffer::<bf16>::new(cuda, 2 * 4 * 200).unwrap();
    let of_another_type = ProblemError::DtypeMismatch {
        argument: Argument::DLse,
        given: Dtype::Bf16,
        needed: Dtype::F32,
    };
    let refused = enqueue(with_d_lse(halves.slice())).unwrap_err();
    assert_eq!(refused, Error::Problem(of_another_type));
    let fewer = DeviceBuffer::<f32>::new(cuda, 2 * 4 * 200 - 1).unwrap();
    let of_other_rows = ProblemError::ElementCount {
        argument: Argument::DLse,
        given: 1599,
        needed: 1600,
    };
    let refused = enqueue(with_d_lse(fewer.slice())).unwrap_err();
    assert_eq!(refused, Error::Problem(of_other_rows));
}

#[test]
fn enqueueing_allocates_nothing_waits_for_nothing_and_leaves_the_thread_as_it_was() {
    let _turn = turn();
    let Some(device) = gpu(0) else { return };
    for algorithm in [Algorithm::Flash2, Algorithm::Flash3] {
        let mut forward = Forward::with(&device, algorithm);
        let stream = Stream::new(device.as_cuda().unwrap()).unwrap();
        forward.enqueue(&stream).unwrap();
        let before = fake::contexts();
        let allocated = fake::allocations();
        forward.enqueue(&stream).unwrap();
        assert_eq!(fake::allocations(), allocated, "host memory was allocated");
        assert_eq!(fake::contexts(), before);
        only_launches(calls_of(|| forward.enqueue(&stream).unwrap()));
    }
}

#[test]
fn enqueueing_costs_the_host_less_than_5_us_beside_the_driver() {
    let _turn = turn();
    let Some(device) = gpu(0) else { return };
    for algorithm in [Algorithm::Flash2, Algorithm::Flash3] {
        let mut forward = Forward::with(&device, algorithm);
        let stream = Stream::new(device.as_cuda().unwrap()).unwrap();
        let mut run = || {
            let start = Instant::now();
            (0..1000).for_each(|_| forward.enqueue(&stream).unwrap());
            start.elapsed().as_secs_f64() * 1e3
        };
        let best = (0..20).map(|_| run()).fold(f64::INFINITY, f64::min);
        eprintln!(
            "one enqueued forward pass of {algorithm} costs the host {best:.3} us beside the driver"
        );
        assert!(best < 5.0, "{algorithm}: {best:.3} us");
    }
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

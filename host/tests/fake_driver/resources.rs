//! Devices, memory and kernels: shared, given back, refused with a reason.

use std::sync::Arc;

use super::*;
use ferroflash::backend::cuda::memory::slice_from_raw;
use ferroflash::tensor::Place;

#[test]
fn threads_share_a_device_and_each_kernel_is_loaded_once() {
    let _turn = turn();
    let device = gpu(1);
    let together = std::sync::Barrier::new(4);
    let calls = calls_of(|| {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    together.wait();
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
    let device = gpu(0);
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
    let device = gpu(0);
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

/// Lengths in the device's memory are looked at when asked for, and not otherwise.
#[test]
fn lengths_of_a_device_are_checked_by_name() {
    let _turn = turn();
    let (device, other) = (gpu(0), gpu(1));
    let cuda = device.as_cuda().unwrap();
    let stream = Stream::new(cuda).unwrap();
    let [_, _, heads, head_dim] = SHAPE;
    let problem = problem().to_builder().packed_q(300).packed_k(300);
    let problem = problem.build().unwrap();
    let attention = Attention::new(&device, problem).unwrap();
    let tokens = DeviceBuffer::<bf16>::new(cuda, 300 * heads * head_dim).unwrap();
    let layout = Layout::thd([300, heads, head_dim]).unwrap();
    let tensor = Tensor::device(tokens.slice(), layout).unwrap();
    let checked = |cuda: &Arc<CudaDevice>, cu_seqlens: &[i32]| {
        let vector = DeviceBuffer::from_slice(cuda, cu_seqlens, &stream).unwrap();
        let inputs = Inputs::new(&tensor, &tensor, &tensor)
            .cu_seqlens_q(vector.slice())
            .cu_seqlens_k(vector.slice());
        attention.check_lengths(&inputs)
    };
    assert_eq!(checked(cuda, &[0, 100, 300]), Ok(()));
    let longer_than_the_longest = ProblemError::Length {
        argument: Argument::CuSeqlensQ,
        sequence: 1,
        given: 300,
        min: 99,
        max: 299,
    };
    let refused = checked(cuda, &[0, 99, 300]);
    assert_eq!(refused, Err(longer_than_the_longest.into()));
    let of_three = ProblemError::ElementCount {
        argument: Argument::CuSeqlensQ,
        given: 4,
        needed: 3,
    };
    assert_eq!(checked(cuda, &[0, 1, 2, 3]), Err(of_three.into()));
    let on_the_other = DeviceBuffer::<i32>::new(other.as_cuda().unwrap(), 3).unwrap();
    let inputs = Inputs::new(&tensor, &tensor, &tensor)
        .cu_seqlens_q(on_the_other.slice())
        .cu_seqlens_k(on_the_other.slice());
    let elsewhere = ProblemError::OtherDevice {
        given: Place::Cuda(1),
        needed: Place::Cuda(0),
    };
    assert_eq!(attention.check_lengths(&inputs), Err(elsewhere.into()));
}

/// A call prepared for one thing is not given another.
#[test]
fn a_prepared_call_refuses_what_it_was_not_prepared_for() {
    let _turn = turn();
    let (device, other) = (gpu(0), gpu(1));
    let cuda = device.as_cuda().unwrap();
    let stream = Stream::new(cuda).unwrap();
    let mut forward = Forward::new(&device);
    let refused = |forward: &mut Forward, expected: ProblemError| {
        let calls = calls_of(|| assert_eq!(forward.enqueue(&stream), Err(expected.into())));
        assert_eq!(calls, [], "something was enqueued all the same");
    };
    // Memory of another device.
    let n_elems = SHAPE.iter().product();
    let of_other = DeviceBuffer::new(other.as_cuda().unwrap(), n_elems).unwrap();
    let own = std::mem::replace(&mut forward.v, of_other);
    let elsewhere = ProblemError::OtherDevice {
        given: Place::Cuda(1),
        needed: Place::Cuda(0),
    };
    refused(&mut forward, elsewhere);
    forward.v = own;
    // As many rows of lse as there are, no more and no fewer.
    for given in [1599, 1601] {
        forward.lse = DeviceBuffer::new(cuda, given).unwrap();
        let of_other_rows = ProblemError::ElementCount {
            argument: Argument::Lse,
            given: given as u64,
            needed: 1600,
        };
        refused(&mut forward, of_other_rows);
    }
    forward.lse = DeviceBuffer::new(cuda, 1600).unwrap();
    forward.enqueue(&stream).unwrap();
    // Lengths that nothing was said of.
    let layout = Layout::bshd(SHAPE).unwrap();
    let used = DeviceBuffer::<i32>::new(cuda, 2).unwrap();
    let tensor = Tensor::device(forward.q.slice(), layout).unwrap();
    let inputs = Inputs::new(&tensor, &tensor, &tensor).seqused_k(used.slice());
    let o = TensorMut::device(forward.o.slice_mut(), layout).unwrap();
    let mut outputs = Outputs::new(o, forward.lse.slice_mut());
    let workspace = &mut forward.workspace;
    let given = forward
        .prepared
        .forward(&stream, &inputs, &mut outputs, workspace);
    let argument = Argument::SeqUsedK;
    assert_eq!(given, Err(ProblemError::NotTaken { argument }.into()));
}

#[test]
fn a_workspace_one_byte_too_small_or_of_another_device_is_refused() {
    let _turn = turn();
    let (device, other) = (gpu(0), gpu(1));
    let stream = Stream::new(device.as_cuda().unwrap()).unwrap();
    let mut forward = Forward::with(&device, Algorithm::Flash3);
    let needed = forward.prepared.plan().workspace.n_bytes();
    assert_eq!(forward.workspace.n_bytes(), needed);
    forward.workspace = Workspace::new(device.as_cuda().unwrap(), needed - 1).unwrap();
    let given = needed - 1;
    let too_small = ProblemError::WorkspaceTooSmall { given, needed };
    assert_eq!(forward.enqueue(&stream), Err(too_small.into()));
    forward.workspace = Workspace::new(other.as_cuda().unwrap(), needed).unwrap();
    let elsewhere = ProblemError::WorkspaceElsewhere;
    assert_eq!(forward.enqueue(&stream), Err(elsewhere.into()));
    forward.workspace = Workspace::new(device.as_cuda().unwrap(), needed).unwrap();
    forward.enqueue(&stream).unwrap();
}

#[test]
fn a_tensor_at_a_misaligned_address_is_refused() {
    let _turn = turn();
    let device = gpu(0);
    let cuda = device.as_cuda().unwrap();
    let stream = Stream::new(cuda).unwrap();
    let mut forward = Forward::new(&device);
    let layout = Layout::bshd(SHAPE).unwrap();
    let n_elems = SHAPE.iter().product::<usize>() as u64;
    let larger = DeviceBuffer::<bf16>::new(cuda, SHAPE.iter().product::<usize>() + 8).unwrap();
    for (offset, aligned) in [(0, true), (2, false), (8, false), (16, true)] {
        let address = larger.slice().address() + offset;
        // SAFETY: so many elements of `larger` lie there; kernels do not run here.
        let slice = unsafe { slice_from_raw(cuda, address, n_elems, Dtype::Bf16) };
        let k = Tensor::device(slice, layout).unwrap();
        let q = Tensor::device(forward.q.slice(), layout).unwrap();
        let inputs = Inputs::new(&q, &k, &q);
        let o = TensorMut::device(forward.o.slice_mut(), layout).unwrap();
        let mut outputs = Outputs::new(o, forward.lse.slice_mut());
        let workspace = &mut forward.workspace;
        let given = forward
            .prepared
            .forward(&stream, &inputs, &mut outputs, workspace);
        let misaligned = ProblemError::Misaligned {
            argument: Argument::K,
            address,
            alignment: 16,
        };
        match aligned {
            true => assert_eq!(given, Ok(())),
            false => assert_eq!(given, Err(misaligned.into())),
        }
    }
}

#[test]
fn too_little_memory_is_told_in_bytes() {
    let _turn = turn();
    let device = gpu(0);
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
    let device = gpu(0);
    fake::state().load_answer = (912, c"ptxas fatal : line 7: no such instruction\n");
    let attention = Attention::new(&device, problem()).unwrap();
    let layouts = Layouts::contiguous();
    let attention = attention.with_algorithm(Algorithm::Flash2);
    let refused = attention.prepare_forward(&layouts).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "kernel forward_sm80_bf16_d64: cuModuleLoadDataEx: invalidating exception, contained \
         (CUDA_ERROR_CONTAINED, 912)\nptxas fatal : line 7: no such instruction"
    );
    fake::state().load_answer = (0, c"");
    attention.prepare_forward(&layouts).unwrap();
}

/// Its warpgroups share the registers of a block out among themselves: with more or fewer of them one would wait for ever.
#[test]
fn a_kernel_that_was_given_other_registers_than_it_shares_out_is_refused() {
    let _turn = turn();
    let device = gpu(0);
    fake::state().registers = |_| 120;
    let attention = Attention::new(&device, problem()).unwrap();
    let layouts = Layouts::contiguous();
    let prepare = |algorithm| {
        let attention = attention.clone().with_algorithm(algorithm);
        attention.prepare_forward(&layouts).map(|_| ())
    };
    let refused = prepare(Algorithm::Flash3).unwrap_err().to_string();
    assert!(refused.contains("120"), "{refused}");
    assert_eq!(prepare(Algorithm::Flash2), Ok(()));
    fake::state().registers = registers;
    assert_eq!(prepare(Algorithm::Flash3), Ok(()));
}

#[test]
fn a_driver_older_than_the_kernels_is_told_with_both_versions() {
    let _turn = turn();
    let _device = gpu(0);
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

#[test]
fn a_device_is_opened_once_while_it_is_held() {
    let _turn = turn();
    let device = CudaDevice::open(0).unwrap();
    assert!(Arc::ptr_eq(&device, &CudaDevice::open(0).unwrap()));
    assert_eq!(fake::state().retained, [1, 0]);
    drop(device);
    assert_eq!(fake::state().retained, [0, 0]);
}

#[test]
fn an_error_code_that_cust_does_not_know_is_told_in_the_drivers_words() {
    let _turn = turn();
    fake::answer_init_with(912);
    let refused = CudaDevice::count().unwrap_err();
    fake::answer_init_with(0);
    let expected = "cuInit: invalidating exception, contained (CUDA_ERROR_CONTAINED, 912)";
    assert_eq!(refused.to_string(), expected);
}

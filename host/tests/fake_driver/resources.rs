//! Devices, memory and kernels: shared, given back, refused with a reason.

use std::sync::Arc;

use super::*;

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
                    forward.enqueue().unwrap();
                    forward.queue.synchronize().unwrap();
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
    forward.enqueue().unwrap();
    event.record(&forward.queue).unwrap();
    event.hold_up(&stream).unwrap();
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

/// Its work would not be waited for when the buffer's memory is freed.
#[test]
fn a_buffer_takes_no_stream_of_another_device() {
    let _turn = turn();
    let (device, other) = (gpu(0), gpu(1));
    let cuda = device.as_cuda().unwrap();
    let own = Stream::new(cuda).unwrap();
    let foreign = Stream::new(other.as_cuda().unwrap()).unwrap();
    let mut buffer = DeviceBuffer::from_slice(cuda, &[1i32, 2, 3], &own).unwrap();
    let refused = Err(DriverError::StreamElsewhere);
    let calls = calls_of(|| {
        assert_eq!(buffer.zero(&foreign), refused);
        assert_eq!(buffer.copy_from(&[4, 5, 6], &foreign), refused);
        assert_eq!(buffer.fill_from(&[4], &foreign), refused);
        assert_eq!(buffer.copy_to(&mut [0; 3], &foreign), refused);
        assert_eq!(buffer.to_vec(&foreign), Err(DriverError::StreamElsewhere));
    });
    assert_eq!(calls, []);
    assert_eq!(buffer.to_vec(&own), Ok(vec![1, 2, 3]));
    buffer.zero(StreamRef::DEFAULT).unwrap();
    assert_eq!(buffer.to_vec(&own), Ok(vec![0; 3]));
}

#[test]
fn a_block_fills_a_buffer_of_any_length() {
    let _turn = turn();
    let device = gpu(0);
    let cuda = device.as_cuda().unwrap();
    let stream = Stream::new(cuda).unwrap();
    let block = [1i32, 2, 3];
    for n_elems in [0, 2, 3, 6, 8] {
        let mut buffer = DeviceBuffer::<i32>::new(cuda, n_elems).unwrap();
        buffer.fill_from(&block, &stream).unwrap();
        let filled: Vec<i32> = block.into_iter().cycle().take(n_elems).collect();
        assert_eq!(buffer.to_vec(&stream), Ok(filled));
    }
    let mut buffer = DeviceBuffer::<i32>::new(cuda, 4).unwrap();
    let (needed, given) = (4, 0);
    let refused = Err(DriverError::CopyLength { needed, given });
    assert_eq!(buffer.fill_from(&[], &stream), refused);
    let mut empty = DeviceBuffer::<i32>::new(cuda, 0).unwrap();
    empty.fill_from(&[], &stream).unwrap();
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

//! Queues on streams that another library created: the only tests that promise a driver something.

use super::*;

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

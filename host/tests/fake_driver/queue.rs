//! Queues: a stream and a workspace that nothing else uses, and what is waited for.

use super::*;

/// What happened to memory among calls, and whether somebody waited.
fn of_memory(calls: &[Call]) -> Vec<&'static str> {
    let word = |call: &Call| match call {
        Call::Allocate { .. } => Some("allocate"),
        Call::Free => Some("free"),
        Call::Synchronize => Some("wait"),
        Call::Fill { .. } => Some("fill"),
        _ => None,
    };
    calls.iter().filter_map(word).collect()
}

#[test]
fn a_queue_grows_at_first_use_and_waits_before_it_frees() {
    let _turn = turn();
    let device = gpu(0);
    let cuda = device.as_cuda().unwrap();
    let mut forward = Forward::with(&device, Algorithm::Flash3);
    let needed = forward.prepared.plan().workspace.n_bytes();
    assert_eq!(forward.queue.workspace_bytes(), needed);

    forward.queue = Queue::new(cuda).unwrap();
    assert_eq!(forward.queue.workspace_bytes(), 0);
    let first = calls_of(|| forward.enqueue().unwrap());
    assert_eq!(of_memory(&first), ["allocate", "fill"]);
    assert_eq!(of_memory(&calls_of(|| forward.enqueue().unwrap())), [""; 0]);

    // The weights take more.
    let attention = Attention::new(&device, problem()).unwrap();
    let larger = attention.explain(Pass::ForwardWithWeights).unwrap();
    let larger = larger.plan.unwrap();
    assert!(needed < larger.workspace.n_bytes());
    let grown = calls_of(|| forward.queue.reserve(&larger).unwrap());
    let words = of_memory(&grown);
    let at = |word| words.iter().position(|other| *other == word).unwrap();
    assert!(
        at("wait") < at("free") && at("free") < at("allocate"),
        "{words:?}"
    );
    assert_eq!(words.last(), Some(&"fill"));
    assert_eq!(forward.queue.workspace_bytes(), larger.workspace.n_bytes());
    let kept = calls_of(|| forward.queue.reserve(forward.prepared.plan()).unwrap());
    assert_eq!(kept, []);
}

/// A workspace whose counters could not be cleared is none.
#[test]
fn a_call_never_finds_counters_that_were_not_cleared() {
    let _turn = turn();
    let device = gpu(0);
    let mut forward = Forward::with(&device, Algorithm::Flash3);
    forward.queue = Queue::new(device.as_cuda().unwrap()).unwrap();
    fake::state().fill_answer = 701;
    let calls = calls_of(|| assert!(forward.enqueue().is_err()));
    assert!(!calls.iter().any(|call| matches!(call, Call::Launch(_))));
    fake::state().fill_answer = 0;
    let words = of_memory(&calls_of(|| forward.enqueue().unwrap()));
    assert_eq!(words, ["allocate", "fill"]);
}

#[test]
fn a_queue_of_another_device_is_refused() {
    let _turn = turn();
    let (device, other) = (gpu(0), gpu(1));
    let mut forward = Forward::new(&device);
    forward.queue = Queue::new(other.as_cuda().unwrap()).unwrap();
    let elsewhere = ProblemError::QueueElsewhere;
    let calls = calls_of(|| assert_eq!(forward.enqueue(), Err(elsewhere.into())));
    assert_eq!(calls, []);
}

#[test]
fn what_is_dropped_is_waited_for_before_it_is_freed() {
    let _turn = turn();
    let device = gpu(0);
    let mut forward = Forward::with(&device, Algorithm::Flash3);
    forward.enqueue().unwrap();
    let Forward { queue, q, .. } = forward;
    assert_eq!(of_memory(&calls_of(|| drop(q))), ["wait", "free"]);
    assert_eq!(
        of_memory(&calls_of(|| drop(queue))),
        ["wait", "wait", "free"]
    );
}

#[test]
fn memory_stays_while_the_device_cannot_be_waited_for() {
    let _turn = turn();
    let device = gpu(0);
    let cuda = device.as_cuda().unwrap();
    let buffer = DeviceBuffer::<f32>::new(cuda, 1000).unwrap();
    fake::state().synchronize_answer = 701;
    assert_eq!(of_memory(&calls_of(|| drop(buffer))), ["wait"]);
    fake::state().synchronize_answer = 0;
    let calls = calls_of(|| cuda.synchronize().unwrap());
    assert_eq!(of_memory(&calls), ["wait", "free"]);
}

/// A backward pass is more than one kernel.
fn backward(device: &Device) -> backward::Backward {
    backward::Backward::with(device, problem(), Algorithm::Flash2)
}

const REFUSED: &str = "cuLaunchKernel: too many resources requested for launch (CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, 701)";

#[test]
fn a_call_that_fails_half_way_has_been_waited_for_when_it_returns() {
    let _turn = turn();
    let device = gpu(0);
    let mut backward = backward(&device);
    fake::state().launches_left = Some(1);
    let calls = calls_of(|| {
        let refused = backward.enqueue(None).unwrap_err();
        assert_eq!(refused.to_string(), REFUSED);
    });
    assert!(matches!(calls[0], Call::Launch(_)), "{calls:?}");
    assert_eq!(of_memory(&calls), ["fill", "wait"]);
    fake::state().launches_left = None;
    backward.enqueue(None).unwrap();
}

#[test]
fn a_queue_that_cannot_be_waited_for_takes_no_call_until_it_has_been() {
    let _turn = turn();
    let device = gpu(0);
    let mut backward = backward(&device);
    fake::state().launches_left = Some(1);
    fake::state().synchronize_answer = 701;
    let refused = backward.enqueue(None).unwrap_err();
    assert_eq!(refused.to_string(), REFUSED);
    fake::state().launches_left = None;
    let calls = calls_of(|| {
        let poisoned = Err(DriverError::QueuePoisoned.into());
        assert_eq!(backward.enqueue(None), poisoned);
    });
    assert_eq!(calls, []);
    fake::state().synchronize_answer = 0;
    backward.queue.synchronize().unwrap();
    backward.enqueue(None).unwrap();
}

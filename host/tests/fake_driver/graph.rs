//! Graphs: what they hold, where they are launched, what a capture refuses and what spoils it.

use super::enqueue::assert_as_planned;
use super::*;

fn frees(calls: &[Call]) -> usize {
    calls.iter().filter(|call| **call == Call::Free).count()
}

#[test]
fn a_graph_launches_what_was_captured_and_allocates_nothing() {
    let _turn = turn();
    let device = gpu(0);
    for algorithm in [Algorithm::Flash2, Algorithm::Flash3] {
        let mut forward = Forward::with(&device, algorithm);
        let mut graph = None;
        let captured = calls_of(|| graph = Some(forward.capture().unwrap()));
        let ran = |call: &Call| matches!(call, Call::Launch(_));
        assert!(!captured.iter().any(ran), "a captured kernel ran");
        let graph = graph.expect("it was captured");
        let allocated = fake::allocations();
        graph.launch(&mut forward.queue).unwrap();
        assert_eq!(fake::allocations(), allocated, "host memory was allocated");
        let calls = calls_of(|| graph.launch(&mut forward.queue).unwrap());
        let [Call::LaunchGraph { launches, stream }] = calls.as_slice() else {
            panic!("launching did {calls:?}");
        };
        assert_as_planned(launches, forward.prepared.plan(), forward.queue.stream());
        assert_eq!(*stream, forward.queue.stream().as_raw() as usize);
        forward.enqueue().unwrap();
    }
}

#[test]
fn a_graph_holds_its_workspace_and_its_arguments() {
    let _turn = turn();
    let device = gpu(0);
    let mut forward = Forward::with(&device, Algorithm::Flash3);
    let graph = forward.capture().unwrap();
    let attention = Attention::new(&device, problem()).unwrap();
    let larger = attention.explain(Pass::ForwardWithWeights).unwrap();
    let larger = larger.plan.unwrap();
    let calls = calls_of(|| forward.queue.reserve(&larger).unwrap());
    assert_eq!(frees(&calls), 0, "the graph keeps the old workspace");

    let Forward {
        mut queue,
        prepared,
        q,
        k,
        v,
        o,
        lse,
    } = forward;
    let calls = calls_of(|| drop((prepared, q, k, v, o, lse)));
    assert_eq!(frees(&calls), 0, "the graph keeps its arguments");
    graph.launch(&mut queue).unwrap();
    let calls = calls_of(|| drop(queue));
    assert_eq!(frees(&calls), 1, "the new workspace is the queue's alone");
    let calls = calls_of(|| drop(graph));
    assert_eq!(frees(&calls), 6);
    let waited = calls.iter().position(|call| *call == Call::Synchronize);
    let freed = calls.iter().position(|call| *call == Call::Free);
    assert!(waited < freed, "{calls:?}");
}

#[test]
fn a_graph_is_launched_on_its_own_queue_only() {
    let _turn = turn();
    let device = gpu(0);
    let mut forward = Forward::new(&device);
    let graph = forward.capture().unwrap();
    let mut other = Queue::new(device.as_cuda().unwrap()).unwrap();
    let elsewhere = ProblemError::GraphElsewhere;
    let calls = calls_of(|| assert_eq!(graph.launch(&mut other), Err(elsewhere.into())));
    assert_eq!(calls, []);
}

#[test]
fn a_capture_takes_calls_and_nothing_else() {
    let _turn = turn();
    let device = gpu(0);
    let cuda = device.as_cuda().unwrap();
    let mut forward = Forward::new(&device);
    let earlier = forward.capture().unwrap();
    let attention = Attention::new(&device, problem()).unwrap();
    let larger = attention.explain(Pass::ForwardWithWeights).unwrap();
    let larger = larger.plan.unwrap();
    let event = Event::new(cuda).unwrap();
    let mut buffer = DeviceBuffer::<f32>::new(cuda, 4).unwrap();
    let captured = DriverError::QueueCaptured;
    let refused = Err(Error::from(captured.clone()));
    let given = forward.queue.workspace_bytes();
    let graph = forward.queue.capture(|queue| {
        assert_eq!(queue.synchronize(), Err(captured.clone()));
        assert_eq!(buffer.zero(&*queue), Err(captured.clone()));
        assert_eq!(buffer.copy_from(&[0.0; 4], &*queue), Err(captured.clone()));
        assert_eq!(buffer.to_vec(&*queue), Err(captured.clone()));
        assert_eq!(event.record(&*queue), Err(captured.clone()));
        assert_eq!(event.hold_up(queue.stream()), Err(captured.clone()));
        assert_eq!(queue.capture(|_| Ok(())).map(|_| ()), refused);
        assert_eq!(earlier.launch(queue), refused);
        let too_small = ProblemError::WorkspaceTooSmall {
            given,
            needed: larger.workspace.n_bytes(),
        };
        assert_eq!(queue.reserve(&larger), Err(too_small.into()));
        Ok(())
    });
    graph.unwrap().launch(&mut forward.queue).unwrap();
    buffer.zero(&forward.queue).unwrap();
}

/// The driver refuses whatever allocates or waits in a thread that captures.
#[test]
fn a_blocking_call_in_a_capture_is_refused_and_spoils_it() {
    let _turn = turn();
    let device = gpu(0);
    let mut forward = Forward::new(&device);
    let attention = Attention::new(&device, problem()).unwrap();
    let n_elems = SHAPE.iter().product();
    let (values, mut o) = (vec![bf16::ONE; n_elems], vec![bf16::ZERO; n_elems]);
    let mut lse = vec![0f32; 1600];
    let mut blocking = || {
        let tensor = Tensor::bshd(&values, SHAPE)?;
        let inputs = Inputs::new(&tensor, &tensor, &tensor);
        let o = TensorMut::bshd(&mut o, SHAPE)?;
        attention.forward(&inputs, &mut Outputs::new(o, &mut lse))
    };
    let code_of = |error: Error| match error {
        Error::Driver(DriverError::Capture { source }) => source.code(),
        other => panic!("{other}"),
    };
    let spoiled = forward.queue.capture(|_| {
        assert_eq!(code_of(blocking().unwrap_err()), Some(900));
        Ok(())
    });
    assert_eq!(code_of(spoiled.unwrap_err()), Some(901));
    blocking().unwrap();
    forward.enqueue().unwrap();
}

#[test]
fn other_threads_wait_for_a_capture_and_do_not_spoil_it() {
    let _turn = turn();
    let device = gpu(0);
    let cuda = device.as_cuda().unwrap();
    let mut forward = Forward::new(&device);
    let [first, second] = [4, 8].map(|n| DeviceBuffer::<f32>::new(cuda, n).unwrap());
    let (begun, wait) = std::sync::mpsc::channel();
    forward.enqueue().unwrap();
    let calls = calls_of(|| {
        std::thread::scope(|scope| {
            let other = scope.spawn(move || {
                wait.recv().unwrap();
                drop(first);
                cuda.synchronize()
            });
            let graph = forward.queue.capture(|_| {
                begun.send(()).unwrap();
                drop(second);
                std::thread::sleep(std::time::Duration::from_millis(50));
                let so_far = fake::state().calls.clone().unwrap_or_default();
                assert_eq!(frees(&so_far), 0, "{so_far:?}");
                Ok(())
            });
            graph.unwrap();
            other.join().unwrap().unwrap();
        });
    });
    assert_eq!(frees(&calls), 2, "{calls:?}");
}

#[test]
fn a_blocking_call_that_a_capture_waits_for_says_so() {
    let _turn = turn();
    let device = gpu(0);
    let cuda = device.as_cuda().unwrap();
    let mut queue = Queue::new(cuda).unwrap();
    let spoiled = queue.capture(|_| {
        let waited = std::thread::scope(|scope| scope.spawn(|| cuda.synchronize()).join());
        let refused = waited.expect("it does not panic").unwrap_err();
        let expected = "a stream of the device is being captured into a graph; the call is refused, or makes the capture invalid: \
                        cuCtxSynchronize: operation not permitted when stream is capturing \
                        (CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 900)";
        assert_eq!(refused.to_string(), expected);
        Ok(())
    });
    assert!(spoiled.is_err());
}

#[test]
fn a_call_captured_in_part_gives_no_graph() {
    let _turn = turn();
    let device = gpu(0);
    let mut forward = Forward::new(&device);
    fake::state().launches_left = Some(0);
    let refused = forward.capture().unwrap_err();
    assert!(refused.to_string().contains("701"), "{refused}");
    // Whoever lets the error go gets no graph of half a call either.
    let refused = forward.on_queue(|queue, enqueue| {
        queue.capture(|queue| {
            assert!(enqueue(queue).is_err());
            Ok(())
        })
    });
    assert!(refused.unwrap_err().to_string().contains("701"));
    fake::state().launches_left = None;
    assert_eq!(fake::state().n_captures(), 0);
    forward.capture().unwrap();
}

#[test]
fn a_capture_ends_when_its_closure_panics_or_takes_the_queue_away() {
    let _turn = turn();
    let device = gpu(0);
    let cuda = device.as_cuda().unwrap();
    let mut queue = Queue::new(cuda).unwrap();
    let panics = std::panic::AssertUnwindSafe(|| queue.capture(|_| panic!("on purpose")));
    assert!(std::panic::catch_unwind(panics).is_err());
    assert_eq!(fake::state().n_captures(), 0);

    let replaced = queue.capture(|queue| {
        *queue = Queue::new(cuda)?;
        Ok(())
    });
    assert_eq!(replaced.err(), Some(DriverError::QueueReplaced.into()));
    assert_eq!(fake::state().n_captures(), 0);
    queue.capture(|_| Ok(())).unwrap();
}

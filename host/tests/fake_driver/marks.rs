//! Marks between the launches of a call.

use std::sync::Arc;

use super::backward::Backward;
use super::*;

fn events(queue: &Queue, n: usize) -> Arc<[Event]> {
    let events = (0..n).map(|_| Event::new(queue.device()).unwrap());
    events.collect()
}

/// Events and launches, in the order in which they are enqueued: `e` and `l`.
fn order(calls: &[Call], stream: usize) -> String {
    let letter = |call: &Call| match call {
        Call::RecordEvent { stream: on } => {
            assert_eq!(*on, stream);
            Some('e')
        }
        Call::Launch(_) => Some('l'),
        _ => None,
    };
    calls.iter().filter_map(letter).collect()
}

#[test]
fn events_stand_between_the_launches_of_one_call() {
    let _turn = turn();
    let device = gpu(0);
    let mut backward = Backward::with(&device, problem(), Algorithm::Flash2);
    let stream = backward.queue.stream().as_raw() as usize;
    for (n_events, expected) in [(4, "elelele"), (2, "elell"), (9, "elelele"), (0, "lll")] {
        let marks = events(&backward.queue, n_events);
        backward.queue.mark_launches(marks).unwrap();
        let calls = calls_of(|| backward.enqueue(None).unwrap());
        assert_eq!(order(&calls, stream), expected, "{n_events} events");
        let calls = calls_of(|| backward.enqueue(None).unwrap());
        assert_eq!(order(&calls, stream), "lll", "the call after it");
    }
}

#[test]
fn a_capture_has_no_marks() {
    let _turn = turn();
    let mut forward = Forward::new(&gpu(0));
    let marks = events(&forward.queue, 2);
    forward.queue.mark_launches(Arc::clone(&marks)).unwrap();
    let calls = calls_of(|| drop(forward.capture().unwrap()));
    assert_eq!(order(&calls, 0), "", "nothing but a capture");
    let graph = forward.on_queue(|queue, enqueue| {
        queue.capture(|queue| {
            let refused = queue.mark_launches(Arc::clone(&marks));
            assert_eq!(refused, Err(DriverError::QueueCaptured));
            enqueue(queue)
        })
    });
    graph.unwrap();
}

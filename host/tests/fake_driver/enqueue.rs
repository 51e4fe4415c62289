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
        let tile_config = &planned.variant.tile_config;
        assert_eq!(launch.kernel, planned.variant.name);
        assert_eq!(
            (launch.grid, launch.block),
            ([planned.grid, 1, 1], [tile_config.threads, 1, 1])
        );
        assert_eq!(launch.shared_bytes, tile_config.shared_bytes);
        assert_eq!(launch.stream, stream.as_raw() as usize);
        assert_eq!(launch.params.len(), planned.params.bytes().len());
    }
}

/// The 64-bit word at an offset of a kernel's parameter.
pub fn word(launch: &Launch, offset: usize) -> u64 {
    u64::from_ne_bytes(launch.params[offset..offset + 8].try_into().unwrap())
}

#[test]
fn a_forward_pass_is_enqueued_as_planned_on_the_queues_stream() {
    let _turn = turn();
    let device = gpu(0);
    let mut forward = Forward::new(&device);
    let launches = only_launches(calls_of(|| forward.enqueue().unwrap()));
    assert_as_planned(&launches, forward.prepared.plan(), forward.queue.stream());
    let addresses = forward.addresses();
    assert_eq!(
        [0, 32, 64, 96].map(|offset| word(&launches[0], offset)),
        addresses
    );
    assert_eq!(word(&launches[0], 128), forward.lse.slice().address());
}

#[test]
fn enqueueing_allocates_nothing_waits_for_nothing_and_leaves_the_thread_as_it_was() {
    let _turn = turn();
    let device = gpu(0);
    for algorithm in [Algorithm::Flash2, Algorithm::Flash3] {
        let mut forward = Forward::with(&device, algorithm);
        forward.enqueue().unwrap();
        let before = fake::contexts();
        let allocated = fake::allocations();
        forward.enqueue().unwrap();
        assert_eq!(fake::allocations(), allocated, "host memory was allocated");
        assert_eq!(fake::contexts(), before);
        only_launches(calls_of(|| forward.enqueue().unwrap()));
    }
}

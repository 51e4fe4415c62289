//! Calls whose main kernel records its tiles: the records are cleared before a call and read after it, where the plan has them.

use std::sync::Arc;

use super::enqueue::word;
use super::*;
use ferroflash::plan::{NoStamps, Stamp};
use ferroflash::prepared::NotStamped;

/// As [`problem`], of columns that profiled kernels have.
fn stamped_problem() -> Problem {
    let [batch, seqlen, heads, _] = SHAPE;
    let sizes = Problem::builder(Dtype::Bf16).batch(batch).seqlen(seqlen);
    sizes.heads(heads).head_dim(128).build().unwrap()
}

fn prepared(device: &Device, problem: Problem) -> PreparedForward {
    let attention = Attention::new(device, problem).unwrap();
    let attention = attention.with_algorithm(Algorithm::Flash2);
    attention.prepare_forward(&Layouts::contiguous()).unwrap()
}

/// Enqueues a call of [`stamped_problem`].
fn enqueue(prepared: &PreparedForward, queue: &mut Queue) {
    let [batch, seqlen, heads, _] = SHAPE;
    let layout = Layout::bshd([batch, seqlen, heads, 128]).unwrap();
    let device = Arc::clone(queue.device());
    let buffer = || DeviceBuffer::<bf16>::new(&device, batch * seqlen * heads * 128).unwrap();
    let ([q, k, v], mut o) = ([(); 3].map(|()| buffer()), buffer());
    let mut lse = DeviceBuffer::<f32>::new(&device, batch * heads * seqlen).unwrap();
    let [q, k, v] = [&q, &k, &v].map(|of| Tensor::device(of.slice(), layout).unwrap());
    let o = TensorMut::device(o.slice_mut(), layout).unwrap();
    let mut outputs = Outputs::new(o, lse.slice_mut());
    let inputs = Inputs::new(&q, &k, &v);
    prepared.forward(queue, &inputs, &mut outputs).unwrap();
}

#[test]
fn records_are_cleared_where_the_kernel_writes_them_and_read() {
    let _turn = turn();
    let device = gpu(0);
    let plain = prepared(&device, stamped_problem());
    let profiled = plain.profiled().unwrap();
    let plan = profiled.plan();
    let [listed, copy] = [plain.plan(), plan].map(|plan| plan.launches[0]);
    assert_eq!(listed.variant.name, "forward_sm80_bf16_d128");
    assert_eq!(copy.variant.name, "forward_sm80_bf16_d128_profiled");
    assert_eq!((copy.grid, copy.spec), (listed.grid, listed.spec));

    let mut queue = Queue::new(device.as_cuda().unwrap()).unwrap();
    queue.reserve(plan).unwrap();
    let piece = plan.stamps().unwrap();
    // Two tiles of each of eight heads.
    assert_eq!(piece.n_bytes, 16 * size_of::<Stamp>() as u64);
    let on = queue.stream().as_raw() as usize;
    let calls = calls_of(|| queue.clear_stamps(plan).unwrap());
    let [
        Call::Fill {
            address,
            value,
            n_bytes,
            stream,
        },
    ] = calls[..]
    else {
        panic!("{calls:?}")
    };
    assert_eq!((value, n_bytes as u64, stream), (0, piece.n_bytes, on));
    let calls = calls_of(|| enqueue(&profiled, &mut queue));
    let launches = calls.iter().filter_map(|call| match call {
        Call::Launch(launch) => Some(word(launch, offset_of!(ForwardParams, stamps))),
        _ => None,
    });
    assert_eq!(launches.collect::<Vec<_>>(), [address as u64]);

    // Nobody has written any.
    let calls = calls_of(|| {
        let none = queue.read_stamps(plan).unwrap();
        assert_eq!(none, [Stamp::default(); 16]);
    });
    assert!(calls.contains(&Call::Copy { stream: on }), "{calls:?}");
}

#[test]
fn other_plans_have_no_records() {
    let _turn = turn();
    let device = gpu(0);
    let plain = prepared(&device, stamped_problem());
    let mut queue = Queue::new(device.as_cuda().unwrap()).unwrap();
    queue.reserve(plain.plan()).unwrap();
    let calls = calls_of(|| {
        queue.clear_stamps(plain.plan()).unwrap();
        assert_eq!(queue.read_stamps(plain.plan()).unwrap(), []);
    });
    assert_eq!(calls, [Call::Synchronize]);

    // A kernel of 64 columns has no profiled copy.
    let refused = prepared(&device, problem()).profiled().unwrap_err();
    let NotStamped::NoStamps(NoStamps::NoRow { kernel, .. }) = refused else {
        panic!("{refused}")
    };
    assert_eq!(kernel, "forward_sm80_bf16_d64");
}

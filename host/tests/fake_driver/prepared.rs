//! What a call on a device is given: refused where it is not what the call was prepared for, before anything is enqueued.

use std::sync::Arc;

use super::*;
use ferroflash::tensor::Location;

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
        given: Location::Cuda(1),
        needed: Location::Cuda(0),
    };
    assert_eq!(attention.check_lengths(&inputs), Err(elsewhere.into()));
}

/// A call prepared for one thing is not given another.
#[test]
fn a_prepared_call_refuses_what_it_was_not_prepared_for() {
    let _turn = turn();
    let (device, other) = (gpu(0), gpu(1));
    let cuda = device.as_cuda().unwrap();
    let mut forward = Forward::new(&device);
    let refused = |forward: &mut Forward, expected: ProblemError| {
        let calls = calls_of(|| assert_eq!(forward.enqueue(), Err(expected.into())));
        assert_eq!(calls, [], "something was enqueued all the same");
    };
    // Memory of another device.
    let n_elems = SHAPE.iter().product();
    let of_other = DeviceBuffer::new(other.as_cuda().unwrap(), n_elems).unwrap();
    let own = std::mem::replace(&mut forward.v, of_other);
    let elsewhere = ProblemError::OtherDevice {
        given: Location::Cuda(1),
        needed: Location::Cuda(0),
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
    forward.enqueue().unwrap();
    // Lengths that nothing was said of.
    let layout = Layout::bshd(SHAPE).unwrap();
    let used = DeviceBuffer::<i32>::new(cuda, 2).unwrap();
    let tensor = Tensor::device(forward.q.slice(), layout).unwrap();
    let inputs = Inputs::new(&tensor, &tensor, &tensor).seqused_k(used.slice());
    let o = TensorMut::device(forward.o.slice_mut(), layout).unwrap();
    let mut outputs = Outputs::new(o, forward.lse.slice_mut());
    let given = forward
        .prepared
        .forward(&mut forward.queue, &inputs, &mut outputs);
    let argument = Argument::SeqUsedK;
    assert_eq!(given, Err(ProblemError::NotTaken { argument }.into()));
}

/// Tensors are given as they were said to lie, and what every call gives is asked of every call.
#[test]
fn a_prepared_call_asks_for_the_layouts_and_the_lengths_that_were_named() {
    let _turn = turn();
    let device = gpu(0);
    let cuda = device.as_cuda().unwrap();
    let [batch, seqlen, heads, head_dim] = SHAPE;
    let by_heads = Layout::bhsd([batch, heads, seqlen, head_dim]).unwrap();
    let contiguous = Layout::bshd(SHAPE).unwrap();
    let layouts = Layouts::contiguous()
        .with(Argument::Q, by_heads)
        .giving(Argument::SeqUsedK);
    let attention = Attention::new(&device, problem()).unwrap();
    let prepared = attention.prepare_forward(&layouts).unwrap();
    let mut forward = Forward::new(&device);
    forward.queue.reserve(prepared.plan()).unwrap();
    let used = DeviceBuffer::<i32>::new(cuda, batch).unwrap();
    let mut call = |q: Layout, lengths: bool| {
        let q = Tensor::device(forward.q.slice(), q).unwrap();
        let k = Tensor::device(forward.k.slice(), contiguous).unwrap();
        let inputs = Inputs::new(&q, &k, &k);
        let inputs = if lengths {
            inputs.seqused_k(used.slice())
        } else {
            inputs
        };
        let o = TensorMut::device(forward.o.slice_mut(), contiguous).unwrap();
        let mut outputs = Outputs::new(o, forward.lse.slice_mut());
        prepared.forward(&mut forward.queue, &inputs, &mut outputs)
    };
    assert_eq!(call(by_heads, true), Ok(()));
    let other_layout = ProblemError::NotAsPrepared {
        argument: Argument::Q,
        given: contiguous,
        prepared: by_heads,
    };
    assert_eq!(call(contiguous, true), Err(other_layout.into()));
    let argument = Argument::SeqUsedK;
    let missing = ProblemError::Missing { argument };
    assert_eq!(call(by_heads, false), Err(missing.into()));
}

#[test]
fn layouts_of_what_a_pass_does_not_take_are_refused() {
    let _turn = turn();
    let device = gpu(0);
    let attention = Attention::new(&device, problem()).unwrap();
    let refused = |layouts: Layouts| attention.prepare_forward(&layouts).map(|_| ()).unwrap_err();
    let argument = Argument::DO;
    let not_taken: Error = ProblemError::NotTaken { argument }.into();
    let layout = Layout::bshd(SHAPE).unwrap();
    assert_eq!(
        refused(Layouts::contiguous().with(argument, layout)),
        not_taken
    );
    assert_eq!(refused(Layouts::contiguous().giving(argument)), not_taken);
}

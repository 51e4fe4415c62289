//! What a call on a device is given: refused where it is not what the call was prepared for, before anything is enqueued.

use std::sync::Arc;

use super::*;
use ferroflash::tensor::Place;

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

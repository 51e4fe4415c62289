//! A merge, enqueued as planned and captured into a graph.

use ferroflash::{Merge, MergeInputs, MergeProblem};
use ferroflash_kernels::params::MergeParams;

use super::enqueue::{only_launches, word};
use super::*;

#[test]
fn a_merge_is_one_launch_on_the_queues_stream() {
    let _turn = turn();
    let device = gpu(0);
    let cuda = device.as_cuda().unwrap();
    let n_elems = SHAPE.iter().product();
    let buffer = || DeviceBuffer::<bf16>::new(cuda, n_elems).unwrap();
    let rows = || DeviceBuffer::<f32>::new(cuda, 2 * 4 * 200).unwrap();
    let (o_1, o_2, mut o) = (buffer(), buffer(), buffer());
    let (lse_1, lse_2, mut lse) = (rows(), rows(), rows());
    let layout = Layout::bshd(SHAPE).unwrap();
    let merge = Merge::new(&device, MergeProblem::of(&problem())).unwrap();
    let prepared = merge.prepare(&Layouts::contiguous()).unwrap();
    let mut queue = Queue::new(cuda).unwrap();
    let first = Tensor::device(o_1.slice(), layout).unwrap();
    let second = Tensor::device(o_2.slice(), layout).unwrap();
    let inputs = MergeInputs::new(&first, lse_1.slice(), &second, lse_2.slice());
    let (o_at, lse_at) = (o.slice().address(), lse.slice().address());
    let mut outputs = Outputs::new(
        TensorMut::device(o.slice_mut(), layout).unwrap(),
        lse.slice_mut(),
    );
    let calls = calls_of(|| prepared.merge(&mut queue, &inputs, &mut outputs).unwrap());
    let [launch] = &only_launches(calls)[..] else {
        panic!("one launch");
    };
    let planned = prepared.plan().launches[0];
    assert_eq!(launch.kernel, "merge_sm80_bf16");
    assert_eq!(launch.grid, [planned.grid, 1, 1]);
    assert_eq!(launch.block, [planned.variant.tile_config.threads, 1, 1]);
    assert_eq!(launch.stream, queue.stream().as_raw() as usize);
    assert_eq!(launch.params.len(), size_of::<MergeParams>());
    for (offset, address) in [
        (offset_of!(MergeParams, o_1), o_1.slice().address()),
        (offset_of!(MergeParams, o_2), o_2.slice().address()),
        (offset_of!(MergeParams, o), o_at),
        (offset_of!(MergeParams, lse_1), lse_1.slice().address()),
        (offset_of!(MergeParams, lse_2), lse_2.slice().address()),
        (offset_of!(MergeParams, lse), lse_at),
    ] {
        assert_eq!(word(launch, offset), address);
    }
    assert_eq!(queue.workspace_bytes(), 0);
    // Other arguments than it was prepared for are refused, and nothing is enqueued.
    let refused = |inputs: &MergeInputs, queue: &mut Queue, outputs: &mut Outputs, expected| {
        let calls = calls_of(|| {
            let refused = prepared.merge(queue, inputs, outputs);
            assert_eq!(refused, Err(Error::Problem(expected)));
        });
        assert_eq!(calls, []);
    };
    let short = ProblemError::ElementCount {
        argument: Argument::Lse2,
        given: 1599,
        needed: 1600,
    };
    let fewer = DeviceBuffer::<f32>::new(cuda, 1599).unwrap();
    let inputs_short = MergeInputs::new(&first, lse_1.slice(), &second, fewer.slice());
    refused(&inputs_short, &mut queue, &mut outputs, short);
    let [batch, seqlen, heads, head_dim] = SHAPE;
    let bhsd = Layout::bhsd([batch, heads, seqlen, head_dim]).unwrap();
    let rotated = Tensor::device(o_1.slice(), bhsd).unwrap();
    let other = ProblemError::NotAsPrepared {
        argument: Argument::O1,
        given: bhsd,
        prepared: layout,
    };
    let inputs_turned = MergeInputs::new(&rotated, lse_1.slice(), &second, lse_2.slice());
    refused(&inputs_turned, &mut queue, &mut outputs, other);
    // A graph of it has one launch.
    let graph = queue
        .capture(|queue| prepared.merge(queue, &inputs, &mut outputs))
        .unwrap();
    drop(graph);
}

/// The call that waits copies host tensors there and back, around the same launch.
#[test]
fn a_merge_of_host_tensors_is_launched_too() {
    let _turn = turn();
    let device = gpu(0);
    let data = vec![bf16::ONE; SHAPE.iter().product()];
    let (mut o, lse) = (data.clone(), vec![0f32; 1600]);
    let mut out_lse = lse.clone();
    let tensor = Tensor::bshd(&data, SHAPE).unwrap();
    let merge = Merge::new(&device, MergeProblem::new(Dtype::Bf16, SHAPE)).unwrap();
    let merged = merge
        .run(
            &MergeInputs::new(&tensor, &lse, &tensor, &lse),
            &mut Outputs::new(TensorMut::bshd(&mut o, SHAPE).unwrap(), &mut out_lse),
        )
        .unwrap();
    assert_eq!(merged.kernel.unwrap().name, "merge_sm80_bf16");
}

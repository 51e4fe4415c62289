//! An append and a rotation, enqueued as planned: one launch each, nothing allocated, and in place where they are to be.

use ferroflash::rotary::{Direction, Pairs};
use ferroflash::{
    Append, AppendInputs, AppendOutputs, AppendProblem, Rotate, RotateInputs, RotateProblem,
};
use ferroflash_kernels::params::AppendParams;

use super::enqueue::{only_launches, word};
use super::*;

/// Rows of a sequence in the cache.
const CACHE: usize = 64;

fn problem() -> AppendProblem {
    AppendProblem::builder(Dtype::Bf16)
        .batch(2)
        .seqlen_new(1)
        .heads_q(4)
        .heads_k(2)
        .head_dim(64)
        .seqlen_cache(CACHE)
        .rotary(Pairs::Halves, 64, CACHE)
        .build()
        .unwrap()
}

/// All that an append is given, on a device.
struct Memory {
    k_new: DeviceBuffer<bf16>,
    v_new: DeviceBuffer<bf16>,
    q: DeviceBuffer<bf16>,
    q_out: DeviceBuffer<bf16>,
    k_cache: DeviceBuffer<bf16>,
    v_cache: DeviceBuffer<bf16>,
    cos: DeviceBuffer<f32>,
    sin: DeviceBuffer<f32>,
    seqused: DeviceBuffer<i32>,
    seqused_out: DeviceBuffer<i32>,
}

impl Memory {
    fn new(device: &std::sync::Arc<CudaDevice>) -> Memory {
        let rows = |n| DeviceBuffer::new(device, n * 64).unwrap();
        let table = || DeviceBuffer::new(device, CACHE * 32).unwrap();
        let lengths = || DeviceBuffer::new(device, 2).unwrap();
        Memory {
            k_new: rows(4),
            v_new: rows(4),
            q: rows(8),
            q_out: rows(8),
            k_cache: rows(2 * CACHE * 2),
            v_cache: rows(2 * CACHE * 2),
            cos: table(),
            sin: table(),
            seqused: lengths(),
            seqused_out: lengths(),
        }
    }

    /// What an append is given, with q unless it is rotated in place.
    fn given(&mut self, in_place: bool) -> (AppendInputs<'_>, AppendOutputs<'_>) {
        let [new, cache, q] = layouts();
        let k_new = Tensor::device(self.k_new.slice(), new).unwrap();
        let v_new = Tensor::device(self.v_new.slice(), new).unwrap();
        let q_given = Tensor::device(self.q.slice(), q).unwrap();
        let inputs = AppendInputs::new(&k_new, &v_new, self.seqused.slice())
            .rotary(self.cos.slice(), self.sin.slice());
        let inputs = if in_place { inputs } else { inputs.q(q_given) };
        let outputs = AppendOutputs::new(
            TensorMut::device(self.k_cache.slice_mut(), cache).unwrap(),
            TensorMut::device(self.v_cache.slice_mut(), cache).unwrap(),
        )
        .q_out(TensorMut::device(self.q_out.slice_mut(), q).unwrap())
        .seqused_out(self.seqused_out.slice_mut());
        (inputs, outputs)
    }
}

fn layouts() -> [Layout; 3] {
    let problem = problem();
    let shapes = [
        problem.shape_new(),
        problem.shape_cache(),
        problem.shape_q(),
    ];
    shapes.map(|shape| Layout::bshd(shape).unwrap())
}

#[test]
fn an_append_is_one_launch_on_the_queues_stream() {
    let _turn = turn();
    let device = gpu(0);
    let cuda = device.as_cuda().unwrap();
    let mut memory = Memory::new(cuda);
    let append = Append::new(&device, problem()).unwrap();
    let layouts = Layouts::contiguous().giving(Argument::SeqUsedOut);
    let prepared = append.prepare(&layouts).unwrap();
    let mut queue = Queue::new(cuda).unwrap();
    let addresses = [
        (offset_of!(AppendParams, q), memory.q.slice().address()),
        (
            offset_of!(AppendParams, q_out),
            memory.q_out.slice().address(),
        ),
        (
            offset_of!(AppendParams, k_new),
            memory.k_new.slice().address(),
        ),
        (
            offset_of!(AppendParams, v_new),
            memory.v_new.slice().address(),
        ),
        (
            offset_of!(AppendParams, cache.k),
            memory.k_cache.slice().address(),
        ),
        (
            offset_of!(AppendParams, cache.v),
            memory.v_cache.slice().address(),
        ),
        (
            offset_of!(AppendParams, rotary.cos),
            memory.cos.slice().address(),
        ),
        (
            offset_of!(AppendParams, rotary.sin),
            memory.sin.slice().address(),
        ),
        (
            offset_of!(AppendParams, rows.first),
            memory.seqused.slice().address(),
        ),
        (offset_of!(AppendParams, rows.cu_seqlens), 0),
        (
            offset_of!(AppendParams, seqused_out),
            memory.seqused_out.slice().address(),
        ),
    ];
    let (inputs, mut outputs) = memory.given(false);
    let calls = calls_of(|| prepared.append(&mut queue, &inputs, &mut outputs).unwrap());
    let [launch] = &only_launches(calls)[..] else {
        panic!("one launch");
    };
    let planned = prepared.plan().launches[0];
    assert_eq!(launch.kernel, "append_sm80_bf16");
    assert_eq!(launch.grid, [planned.grid, 1, 1]);
    assert_eq!(launch.block, [planned.variant.tile_config.threads, 1, 1]);
    assert_eq!(launch.stream, queue.stream().as_raw() as usize);
    assert_eq!(launch.params.len(), size_of::<AppendParams>());
    for (offset, address) in addresses {
        assert_eq!(word(launch, offset), address, "{offset}");
    }
    assert_eq!(queue.workspace_bytes(), 0);
    let allocated = fake::allocations();
    prepared.append(&mut queue, &inputs, &mut outputs).unwrap();
    assert_eq!(fake::allocations(), allocated, "host memory was allocated");
    let graph = queue.capture(|queue| prepared.append(queue, &inputs, &mut outputs));
    drop(graph.unwrap());
}

/// A call prepared with q is given it, one prepared without turns q_out where it lies; and neither is given the other's.
#[test]
fn queries_are_turned_in_place_if_that_was_prepared() {
    let _turn = turn();
    let device = gpu(0);
    let cuda = device.as_cuda().unwrap();
    let mut memory = Memory::new(cuda);
    let append = Append::new(&device, problem()).unwrap();
    let layouts = Layouts::contiguous().giving(Argument::SeqUsedOut);
    let mut queue = Queue::new(cuda).unwrap();
    let in_place = append.prepare(&layouts.without(Argument::Q)).unwrap();
    let beside = append.prepare(&layouts).unwrap();
    let argument = Argument::Q;
    let (inputs, mut outputs) = memory.given(true);
    let launches = only_launches(calls_of(|| {
        in_place.append(&mut queue, &inputs, &mut outputs).unwrap()
    }));
    assert_eq!(word(&launches[0], offset_of!(AppendParams, q)), 0);
    assert_eq!(
        beside.append(&mut queue, &inputs, &mut outputs),
        Err(ProblemError::Missing { argument }.into())
    );
    let (inputs, mut outputs) = memory.given(false);
    assert_eq!(
        in_place.append(&mut queue, &inputs, &mut outputs),
        Err(ProblemError::NotTaken { argument }.into())
    );
    // Lengths that were asked for are given.
    outputs.seqused_out = None;
    let argument = Argument::SeqUsedOut;
    let calls = calls_of(|| {
        let refused = beside.append(&mut queue, &inputs, &mut outputs);
        assert_eq!(refused, Err(ProblemError::Missing { argument }.into()));
    });
    assert_eq!(calls, []);
}

#[test]
fn a_rotation_back_is_one_launch_by_the_negative_angle() {
    let _turn = turn();
    let device = gpu(0);
    let cuda = device.as_cuda().unwrap();
    let mut memory = Memory::new(cuda);
    let [.., layout] = layouts();
    let turns = problem().turns().unwrap();
    let rotation = RotateProblem::new(Dtype::Bf16, layout.shape(), turns);
    let rotate = Rotate::new(&device, rotation).unwrap();
    let layouts = Layouts::contiguous().giving(Argument::SeqlenOffsets);
    let prepared = rotate.prepare(Direction::Back, &layouts).unwrap();
    let mut queue = Queue::new(cuda).unwrap();
    let (x_at, y_at) = (memory.q.slice().address(), memory.q_out.slice().address());
    let offsets_at = memory.seqused.slice().address();
    let x = Tensor::device(memory.q.slice(), layout).unwrap();
    let inputs = RotateInputs::new(&x, memory.cos.slice(), memory.sin.slice())
        .seqlen_offsets(memory.seqused.slice());
    let mut y = TensorMut::device(memory.q_out.slice_mut(), layout).unwrap();
    let calls = calls_of(|| prepared.rotate(&mut queue, &inputs, &mut y).unwrap());
    let [launch] = &only_launches(calls)[..] else {
        panic!("one launch");
    };
    assert_eq!(launch.kernel, "append_sm80_bf16");
    for (offset, address) in [
        (offset_of!(AppendParams, q), x_at),
        (offset_of!(AppendParams, q_out), y_at),
        (offset_of!(AppendParams, rows.first), offsets_at),
        (offset_of!(AppendParams, cache.k), 0),
        (offset_of!(AppendParams, seqused_out), 0),
    ] {
        assert_eq!(word(launch, offset), address, "{offset}");
    }
    let at = offset_of!(AppendParams, rotary.sin_sign);
    assert_eq!(launch.params[at..at + 4], (-1f32).to_le_bytes());
}

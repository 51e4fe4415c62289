//! Backward passes: three kernels as planned, with the gradient of lse where there is one; flash3's with its tensor maps.

use super::enqueue::{assert_as_planned, word};
use super::tensor_maps::{MAP, launches, n_encoded};
use super::*;
use ferroflash::PreparedBackward;
use ferroflash_kernels::params::SinkGradientParams;

/// A backward pass with all it needs.
pub struct Backward {
    prepared: PreparedBackward,
    /// q, k, v, o and dO.
    inputs: [DeviceBuffer<bf16>; 5],
    /// dQ, dK and dV.
    outputs: [DeviceBuffer<bf16>; 3],
    lse: DeviceBuffer<f32>,
    /// Sinks and their gradients, where the problem has some.
    sinks: Option<[DeviceBuffer<f32>; 2]>,
    pub queue: Queue,
}

impl Backward {
    pub fn with(device: &Device, problem: Problem, algorithm: Algorithm) -> Backward {
        let attention = Attention::new(device, problem).unwrap();
        let attention = attention.with_algorithm(algorithm);
        let prepared = attention.prepare_backward(&Layouts::contiguous()).unwrap();
        let cuda = device.as_cuda().unwrap();
        let buffer = || DeviceBuffer::new(cuda, SHAPE.iter().product()).unwrap();
        let mut queue = Queue::new(cuda).unwrap();
        queue.reserve(prepared.plan()).unwrap();
        Backward {
            prepared,
            inputs: [(); 5].map(|()| buffer()),
            outputs: [(); 3].map(|()| buffer()),
            lse: DeviceBuffer::new(cuda, 2 * 4 * 200).unwrap(),
            sinks: problem
                .has_sinks()
                .then(|| [(); 2].map(|()| DeviceBuffer::new(cuda, SHAPE[2]).unwrap())),
            queue,
        }
    }

    pub fn enqueue(&mut self, d_lse: Option<Vector>) -> Result<(), Error> {
        let layout = Layout::bshd(SHAPE)?;
        let [q, k, v, o, d_o] = self
            .inputs
            .each_ref()
            .map(|buffer| Tensor::device(buffer.slice(), layout).unwrap());
        let [d_q, d_k, d_v] = self
            .outputs
            .each_mut()
            .map(|buffer| TensorMut::device(buffer.slice_mut(), layout).unwrap());
        let mut of_output = OutputGradients::new(&d_o);
        of_output.d_lse = d_lse;
        let mut inputs = Inputs::new(&q, &k, &v);
        let mut gradients = Gradients::new(d_q, d_k, d_v);
        if let Some([sinks, d_sinks]) = &mut self.sinks {
            inputs.sinks = Some(sinks.slice().into());
            gradients.d_sinks = Some(d_sinks.slice_mut().into());
        }
        self.prepared.backward(
            &mut self.queue,
            &inputs,
            &Saved::new(&o, self.lse.slice()),
            &of_output,
            &mut gradients,
        )
    }
}

/// Where a kernel's parameters of the pass stand among its own.
fn pass_offset(launch: &Launch) -> usize {
    match launch.params.len() == size_of::<TmaBackwardParams>() {
        true => offset_of!(TmaBackwardParams, pass),
        false => 0,
    }
}

#[test]
fn kernels_are_enqueued_as_planned() {
    let _turn = turn();
    let device = gpu(0);
    let cuda = device.as_cuda().unwrap();
    let kernels = [
        (Algorithm::Flash2, 3, "delta, the main kernel, dQ"),
        (Algorithm::Flash3, 2, "delta, the main kernel"),
    ];
    for (algorithm, n_kernels, which) in kernels {
        let mut backward = Backward::with(&device, problem(), algorithm);
        let d_lse = DeviceBuffer::<f32>::new(cuda, 2 * 4 * 200).unwrap();
        for (given, address) in [
            (None, 0),
            (Some(d_lse.slice().into()), d_lse.slice().address()),
        ] {
            let launches = launches(calls_of(|| backward.enqueue(given).unwrap()));
            assert_as_planned(&launches, backward.prepared.plan(), backward.queue.stream());
            assert_eq!(launches.len(), n_kernels, "{which}");
            for launch in &launches {
                let offset = pass_offset(launch) + offset_of!(BackwardParams, d_lse);
                assert_eq!(word(launch, offset), address, "{}", launch.kernel);
            }
        }

        let halves = DeviceBuffer::<bf16>::new(cuda, 2 * 4 * 200).unwrap();
        let of_another_type = ProblemError::DtypeMismatch {
            argument: Argument::DLse,
            given: Dtype::Bf16.into(),
            needed: Dtype::F32.into(),
        };
        let refused = backward.enqueue(Some(halves.slice().into()));
        assert_eq!(refused, Err(Error::Problem(of_another_type)));
        let fewer = DeviceBuffer::<f32>::new(cuda, 2 * 4 * 200 - 1).unwrap();
        let of_other_rows = ProblemError::ElementCount {
            argument: Argument::DLse,
            given: 1599,
            needed: 1600,
        };
        let refused = backward.enqueue(Some(fewer.slice().into()));
        assert_eq!(refused, Err(Error::Problem(of_other_rows)));
    }
}

#[test]
fn gradients_of_sinks_are_enqueued_last() {
    let _turn = turn();
    let device = gpu(0);
    let problem = problem().to_builder().sinks().build().unwrap();
    for algorithm in [Algorithm::Flash2, Algorithm::Flash3] {
        let mut backward = Backward::with(&device, problem, algorithm);
        let launches = launches(calls_of(|| backward.enqueue(None).unwrap()));
        assert_as_planned(&launches, backward.prepared.plan(), backward.queue.stream());
        let last = launches.last().unwrap();
        assert_eq!(last.kernel, "sink_gradient_sm80");
        let [sinks, d_sinks] = backward.sinks.as_ref().unwrap();
        let sinks = [sinks, d_sinks].map(|buffer| buffer.slice().address());
        let offsets = [
            offset_of!(SinkGradientParams, sinks),
            offset_of!(SinkGradientParams, d_sinks),
        ];
        assert_eq!(offsets.map(|offset| word(last, offset)), sinks);
    }
}

#[test]
fn flash3_serves_first_and_its_main_kernel_alone_is_given_maps() {
    let _turn = turn();
    let device = gpu(0);
    let attention = Attention::new(&device, problem()).unwrap();
    let explained = attention.explain(Pass::Backward).unwrap();
    assert_eq!(explained.plan.unwrap().algorithm, Algorithm::Flash3);

    let mut backward = Backward::with(&device, problem(), Algorithm::Flash3);
    let calls = calls_of(|| backward.enqueue(None).unwrap());
    assert_eq!(n_encoded(&calls), 6);
    let launches = launches(calls);
    let sizes: Vec<usize> = launches.iter().map(|launch| launch.params.len()).collect();
    assert_eq!(
        sizes,
        [size_of::<BackwardParams>(), size_of::<TmaBackwardParams>()]
    );

    let main = &launches[1];
    let [q, k, v, _, d_o] = backward
        .inputs
        .each_ref()
        .map(|buffer| buffer.slice().address());
    let [_, d_k, d_v] = backward
        .outputs
        .each_ref()
        .map(|buffer| buffer.slice().address());
    let tile_config = &backward.prepared.plan().launches[1].variant.tile_config;
    let (block_q, block_k) = (
        u64::from(tile_config.block_q),
        u64::from(tile_config.block_k),
    );
    let [batch, seqlen, heads, head_dim] = SHAPE.map(|n| n as u64);
    let expected = [
        (q, block_q),
        (k, block_k),
        (v, block_k),
        (d_o, block_q),
        (d_k, 64),
        (d_v, 64),
    ];
    for (at, (address, rows)) in expected.into_iter().enumerate() {
        let words: Vec<u64> = (0..16).map(|idx| word(main, at * MAP + idx * 8)).collect();
        let row_bytes = 2 * heads * head_dim;
        let expected = [
            [address, head_dim, seqlen, heads],
            [batch, row_bytes, 2 * head_dim, seqlen * row_bytes],
            [64, rows, 1, 1],
            [9, 0, 0, 0],
        ];
        assert_eq!(words, expected.concat(), "map {at}");
    }
}

#[test]
fn maps_are_encoded_once_while_their_tensors_stay() {
    let _turn = turn();
    let device = gpu(0);
    let mut backward = Backward::with(&device, problem(), Algorithm::Flash3);
    let cuda = device.as_cuda().unwrap();
    let run = |backward: &mut Backward| calls_of(|| backward.enqueue(None).unwrap());
    let first = run(&mut backward);
    assert_eq!(n_encoded(&first), 6);
    let second = run(&mut backward);
    assert_eq!(n_encoded(&second), 0);
    assert_eq!(launches(first)[1].params, launches(second)[1].params);

    let allocated = fake::allocations();
    backward.enqueue(None).unwrap();
    assert_eq!(fake::allocations(), allocated, "host memory was allocated");

    // The last map: every one of them counts.
    backward.outputs[2] = DeviceBuffer::new(cuda, SHAPE.iter().product()).unwrap();
    let moved = run(&mut backward);
    assert_eq!(n_encoded(&moved), 1);
    let d_v = backward.outputs[2].slice().address();
    assert_eq!(word(&launches(moved)[1], 5 * MAP), d_v);
}

/// Tiles in shifted order wait for tiles that run beside them, whatever else is on the device.
#[test]
fn shifted_tiles_are_enqueued_to_begin_together() {
    let _turn = turn();
    let device = gpu(0);
    let full = problem().to_builder().mask(Mask::Full).build().unwrap();
    let mut backward = Backward::with(&device, full, Algorithm::Flash3);
    let planned = backward.prepared.plan().to_string();
    assert!(planned.contains("shifted order"), "{planned}");
    let launches = launches(calls_of(|| backward.enqueue(None).unwrap()));
    let beginnings: Vec<_> = launches.iter().map(|launch| launch.beginning).collect();
    assert_eq!(beginnings, [Beginning::Single, Beginning::Together]);

    let mut listed = Backward::with(&device, problem(), Algorithm::Flash3);
    for launch in tensor_maps::launches(calls_of(|| listed.enqueue(None).unwrap())) {
        assert_eq!(launch.beginning, Beginning::Single, "{}", launch.kernel);
    }
}

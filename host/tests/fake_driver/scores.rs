//! Prepared calls with expressions: what a call gives arrives where kernels read it, and nothing is allocated or prepared anew for it.

use ferroflash::error::ScoreError;
use ferroflash::{ReadTensor, Score};
use ferroflash_expression::ScoreTensor;
use ferroflash_kernels::params::ScoreParams;

use super::enqueue::{only_launches, word};
use super::*;

/// Bytes from the beginning of a kernel's parameter to its scores.
fn place(algorithm: Algorithm) -> usize {
    match algorithm {
        Algorithm::Flash3 => offset_of!(TmaForwardParams, score),
        _ => offset_of!(ForwardParams, score),
    }
}

/// Bytes to its scale.
fn place_of_scale(algorithm: Algorithm) -> usize {
    match algorithm {
        Algorithm::Flash3 => offset_of!(TmaForwardParams, scale),
        _ => offset_of!(ForwardParams, scale),
    }
}

fn edited() -> Problem {
    let score = Score::new(|s, at| {
        s * at.f32("factor") + at.tensor_f32("bias", [at.head, at.k + at.i32("first")])
    });
    let builder = problem().to_builder();
    builder.score(score.unwrap()).build().unwrap()
}

#[test]
fn parameters_and_tensors_are_of_the_call() {
    let _turn = turn();
    let device = gpu(0);
    for algorithm in [Algorithm::Flash2, Algorithm::Flash3] {
        let attention = Attention::new(&device, edited()).unwrap();
        let attention = attention.with_algorithm(algorithm);
        let prepared = attention.prepare_forward(&Layouts::contiguous()).unwrap();
        let cuda = device.as_cuda().unwrap();
        let buffer = || DeviceBuffer::<bf16>::new(cuda, SHAPE.iter().product()).unwrap();
        let (q, k, v, mut o) = (buffer(), buffer(), buffer(), buffer());
        let mut lse = DeviceBuffer::<f32>::new(cuda, 2 * 4 * 200).unwrap();
        let bias = DeviceBuffer::<f32>::new(cuda, 1000).unwrap();
        let mut queue = Queue::new(cuda).unwrap();
        queue.reserve(prepared.plan()).unwrap();
        let layout = Layout::bshd(SHAPE).unwrap();
        let mut enqueue = |queue: &mut Queue, factor: f32, bias: ReadTensor| {
            let [q, k, v] = [&q, &k, &v].map(|buffer| Tensor::device(buffer.slice(), layout));
            let inputs = Inputs::new(&q.unwrap(), &k.unwrap(), &v.unwrap())
                .score_param("factor", factor)
                .score_param("first", -3)
                .score_tensor("bias", bias);
            let o = TensorMut::device(o.slice_mut(), layout).unwrap();
            let mut outputs = Outputs::new(o, lse.slice_mut());
            prepared.forward(queue, &inputs, &mut outputs)
        };
        let of_all = ReadTensor::new(bias.slice(), [4, 200]);
        let of_none = ReadTensor::new(bias.slice(), [4, 9]).strides([0, 2]);
        enqueue(&mut queue, 1.0, of_all).unwrap();
        for (factor, bias_of_call, len, stride) in [
            (0.5f32, of_all, [4u32, 200, 1, 1], [200u64, 1]),
            (2.0, of_none, [4, 9, 1, 1], [0, 2]),
        ] {
            let allocated = fake::allocations();
            enqueue(&mut queue, factor, bias_of_call).unwrap();
            assert_eq!(fake::allocations(), allocated, "host memory was allocated");
            let run = || enqueue(&mut queue, factor, bias_of_call).unwrap();
            let launches = only_launches(calls_of(run));
            let launch = launches.last().unwrap();
            let at = place(algorithm);
            let tensor = at + offset_of!(ScoreParams, tensors);
            assert_eq!(word(launch, tensor), bias.slice().address());
            let lens = word(launch, tensor + offset_of!(ScoreTensor, len));
            assert_eq!(lens, u64::from(len[0]) | u64::from(len[1]) << 32);
            let strides = tensor + offset_of!(ScoreTensor, stride);
            assert_eq!([0, 8].map(|offset| word(launch, strides + offset)), stride);
            let values = word(launch, at + offset_of!(ScoreParams, values));
            let right = u64::from(factor.to_bits()) | u64::from(-3i32 as u32) << 32;
            assert_eq!(values, right);
            let units = word(launch, at + offset_of!(ScoreParams, unit));
            let units = [units, units >> 32].map(|bits| f32::from_bits(bits as u32));
            assert_eq!(units, [0.125, 8.0]);
        }
        let refused = enqueue(&mut queue, 1.0, ReadTensor::new(bias.slice(), [3, 200]));
        assert!(matches!(
            refused,
            Err(Error::Problem(ProblemError::Score(
                ScoreError::TensorExtent { .. }
            )))
        ));
        let of_host = [0f32; 800];
        let refused = enqueue(&mut queue, 1.0, ReadTensor::new(&of_host, [4, 200]));
        assert!(matches!(
            refused,
            Err(Error::Problem(ProblemError::OtherDevice { .. }))
        ));
        // A graph keeps the tensor.
        let graph = queue.capture(|queue| enqueue(queue, 1.0, of_all)).unwrap();
        let calls = calls_of(|| drop(bias));
        assert!(
            !calls.contains(&Call::Free),
            "the graph keeps its arguments"
        );
        drop(graph);
    }
}

/// Exponentials are taken of scores in units of the call's cap; scores are still products times softmax_scale.
#[test]
fn a_cap_of_the_call_is_the_unit_of_its_scores() {
    let _turn = turn();
    let device = gpu(0);
    let score = Score::new(|s, at| (s / at.f32("cap")).tanh() * at.f32("cap"));
    let builder = problem().to_builder();
    let problem = builder.score(score.unwrap()).build().unwrap();
    for algorithm in [Algorithm::Flash2, Algorithm::Flash3] {
        let attention = Attention::new(&device, problem).unwrap();
        let attention = attention.with_algorithm(algorithm);
        let prepared = attention.prepare_forward(&Layouts::contiguous()).unwrap();
        let cuda = device.as_cuda().unwrap();
        let buffer = || DeviceBuffer::<bf16>::new(cuda, SHAPE.iter().product()).unwrap();
        let (q, k, v, mut o) = (buffer(), buffer(), buffer(), buffer());
        let mut lse = DeviceBuffer::<f32>::new(cuda, 2 * 4 * 200).unwrap();
        let mut queue = Queue::new(cuda).unwrap();
        queue.reserve(prepared.plan()).unwrap();
        let layout = Layout::bshd(SHAPE).unwrap();
        for (cap, unit) in [(30f32, 30f32), (-8.0, 8.0)] {
            let [q, k, v] = [&q, &k, &v].map(|buffer| Tensor::device(buffer.slice(), layout));
            let inputs = Inputs::new(&q.unwrap(), &k.unwrap(), &v.unwrap()).score_param("cap", cap);
            let o = TensorMut::device(o.slice_mut(), layout).unwrap();
            let mut outputs = Outputs::new(o, lse.slice_mut());
            let mut run = || prepared.forward(&mut queue, &inputs, &mut outputs).unwrap();
            // The first call makes tensor maps, too.
            run();
            let launches = only_launches(calls_of(run));
            let launch = launches.last().unwrap();
            let pair = |at| [0, 32].map(|shift| f32::from_bits((word(launch, at) >> shift) as u32));
            let units = pair(place(algorithm) + offset_of!(ScoreParams, unit));
            assert_eq!(units, [unit, 1.0 / unit]);
            let exponent = (f64::from(unit) * std::f64::consts::LOG2_E) as f32;
            assert_eq!(pair(place_of_scale(algorithm)), [0.125, exponent]);
            let value = word(launch, place(algorithm) + offset_of!(ScoreParams, values));
            assert_eq!(f32::from_bits(value as u32), unit);
        }
    }
}

//! Kernels on the emulator beside the CPU: names, parameters and tensors arrive where expressions read them.

use ferroflash::backend::emulated::EmulatorOptions;
use ferroflash::{
    Algorithm, Attention, Device, Dtype, Inputs, Mask, Outputs, Problem, ReadTensor, Score, Tensor,
    TensorMut,
};
use half::bf16;

use super::naive::values;

/// o and lse.
fn forward(attention: &Attention, data: &[Vec<bf16>; 3]) -> (Vec<f32>, Vec<f32>) {
    let problem = attention.problem();
    let (shape_q, shape_k) = (problem.shape_q(), problem.shape_k());
    let [q, k, v] = data;
    let tensor = |data, shape| Tensor::bshd(data, shape).unwrap();
    let slopes = [0.5f32, 9.0, 0.25, 9.0, 0.125, 9.0, 0.0625];
    let documents: Vec<i32> = (0..2 * 70).map(|i| i % 70 / 32).collect();
    let inputs = Inputs::new(
        &tensor(q, shape_q),
        &tensor(k, shape_k),
        &tensor(v, shape_k),
    )
    .score_tensor("documents", ReadTensor::new(&documents, [2, 70]))
    .score_tensor("slopes", ReadTensor::new(&slopes, [4]).strides([2]))
    .score_param("factor", 1.5)
    .score_param("n_seen_by_all", 3);
    let (mut o, mut lse) = (
        vec![bf16::ZERO; q.len()],
        vec![0f32; problem.shape_lse().iter().product()],
    );
    let mut outputs = Outputs::new(TensorMut::bshd(&mut o, shape_q).unwrap(), &mut lse);
    attention.forward(&inputs, &mut outputs).unwrap();
    (o.into_iter().map(bf16::to_f32).collect(), lse)
}

#[test]
fn kernels_give_what_the_cpu_gives() {
    let score = Score::new(|s, at| {
        let distance = (at.q + at.seqlen_k - at.seqlen_q - at.k).to_f32();
        s * at.f32("factor") - distance.abs() * at.tensor_f32("slopes", [at.head])
    })
    .unwrap();
    let mask = Mask::new(|at| {
        let document = |place| at.tensor_i32("documents", [at.batch, place]);
        document(at.q).eq(document(at.k)) | at.k.lt(at.i32("n_seen_by_all"))
    })
    .unwrap();
    let problem = Problem::builder(Dtype::Bf16)
        .batch(2)
        .seqlen(70)
        .heads_q(4)
        .heads_k(2)
        .head_dim(64)
        .score(score)
        .mask_expression(mask)
        .build()
        .unwrap();
    let narrow = |n, seed| values(n, seed).into_iter().map(bf16::from_f32).collect();
    let n = 2 * 70 * 64;
    let data: [Vec<bf16>; 3] = [narrow(4 * n, 1), narrow(2 * n, 2), narrow(2 * n, 3)];
    let (o, lse) = forward(&Attention::new(&Device::cpu(), problem).unwrap(), &data);
    for (options, algorithm) in [
        (EmulatorOptions::seeded(0), Algorithm::Flash2),
        (EmulatorOptions::hopper(0), Algorithm::Flash3),
        (EmulatorOptions::seeded(0), Algorithm::Standard),
    ] {
        let attention = Attention::new(&Device::emulated(options), problem).unwrap();
        let given = forward(&attention.with_algorithm(algorithm), &data);
        let close = |given: &[f32], right: &[f32], allowed: f32| {
            for (at, (given, right)) in given.iter().zip(right).enumerate() {
                let error = (given - right).abs();
                assert!(error <= allowed, "{algorithm}, {at}: {given}, not {right}");
            }
        };
        close(&given.1, &lse, 1e-4);
        close(&given.0, &o, 0.01);
    }
}

//! Forward passes whose caller wants no lse.

use ferroflash::{
    Algorithm, Attention, Device, Dtype, Inputs, Mask, Outputs, Problem, Ran, Tensor, TensorMut,
};
use half::f16;

const SHAPE_Q: [usize; 4] = [1, 40, 2, 32];
const SHAPE_K: [usize; 4] = [1, 70, 1, 32];

fn waves(n_elems: usize, step: f32) -> Vec<f16> {
    (0..n_elems)
        .map(|index| f16::from_f32((index as f32 * step).sin()))
        .collect()
}

/// o, bit by bit, and what ran.
fn forward(attention: &Attention, lse: Option<&mut [f32]>) -> (Vec<u16>, Ran) {
    let (q, k, v) = (
        waves(40 * 2 * 32, 0.13),
        waves(70 * 32, 0.29),
        waves(70 * 32, 0.41),
    );
    let inputs = Inputs::new(
        &Tensor::bshd(&q, SHAPE_Q).unwrap(),
        &Tensor::bshd(&k, SHAPE_K).unwrap(),
        &Tensor::bshd(&v, SHAPE_K).unwrap(),
    );
    let mut o = vec![f16::NAN; q.len()];
    let tensor = TensorMut::bshd(&mut o, SHAPE_Q).unwrap();
    let mut outputs = match lse {
        Some(lse) => Outputs::new(tensor, lse),
        None => Outputs::without_lse(tensor),
    };
    let ran = attention.forward(&inputs, &mut outputs).unwrap();
    (o.iter().map(|x| x.to_bits()).collect(), ran)
}

/// The same o, to the bit, by the same kernels; the room for lse is in the extra memory.
fn assert_lse_may_be_left_out(device: &Device, algorithm: Algorithm) {
    let problem = Problem::builder(Dtype::F16)
        .seqlen_q(40)
        .seqlen_k(70)
        .heads_q(2)
        .heads_k(1)
        .head_dim(32)
        .mask(Mask::Causal);
    let attention = Attention::new(device, problem.build().unwrap()).unwrap();
    let attention = attention.with_algorithm(algorithm);
    let mut lse = [f32::NAN; 80];
    let (o, with) = forward(&attention, Some(&mut lse));
    let (same_o, without) = forward(&attention, None);
    assert_eq!(o, same_o);
    assert!(lse.iter().all(|lse| lse.is_finite()));
    assert_eq!(with.kernels, without.kernels);
    assert!(with.extra_bytes + 80 * 4 <= without.extra_bytes);
}

#[test]
fn on_the_cpu() {
    assert_lse_may_be_left_out(&Device::cpu(), Algorithm::Tiled);
}

#[cfg(feature = "emulator")]
#[test]
fn on_the_emulated_kernels() {
    use ferroflash::backend::emulated::EmulatorOptions;

    for algorithm in [Algorithm::Flash3, Algorithm::Flash2, Algorithm::Standard] {
        let hopper = Device::emulated(EmulatorOptions::hopper(0));
        assert_lse_may_be_left_out(&hopper, algorithm);
    }
}

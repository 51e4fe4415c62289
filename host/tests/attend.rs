//! [`attend`] gives what the layered calls give, bit by bit, and says the same of what is wrong.

use ferroflash::error::ProblemError;
use ferroflash::{
    Attention, Device, Element, Error, Gradients, Inputs, Layout, Mask, OutputGradients, Outputs,
    Problem, ReadTensor, Saved, Score, Tensor, TensorMut, attend,
};
use half::{bf16, f16};

/// Numbers between −1 and 1 without a pattern.
fn random<T: Element>(n: usize, seed: usize) -> Vec<T> {
    let number = |at: usize| ((at * 7919 + seed * 104_729) % 2003) as f32 / 1001.5 - 1.0;
    (0..n).map(|at| T::from_f32(number(at))).collect()
}

const OF_Q: [usize; 4] = [2, 9, 4, 16];
const OF_K: [usize; 4] = [2, 13, 2, 16];
const N_Q: usize = 2 * 9 * 4 * 16;
const N_K: usize = 2 * 13 * 2 * 16;

fn both_passes<T: Element>() {
    let [q, d_o] = [1, 2].map(|seed| random::<T>(N_Q, seed));
    let [k, v] = [3, 4].map(|seed| random::<T>(N_K, seed));
    let bias = random::<f32>(9 * 13, 5);
    let sinks = random::<f32>(4, 6);
    let of_bias = || ReadTensor::new(&bias, [9, 13]);

    let attended = attend((&q, OF_Q), (&k, OF_K), (&v, OF_K))
        .window(4, 2)
        .softmax_scale(0.3)
        .dropout(0.25, 7, 11)
        .score(|s, at| s * at.f32("slope") + at.tensor_f32("bias", [at.q, at.k]))
        .param("slope", 0.5f32)
        .tensor("bias", of_bias())
        .inputs(|inputs| inputs.sinks(&sinks))
        .forward(&Device::cpu())
        .unwrap();
    let gradients = attended.backward(&d_o).unwrap();

    let score = Score::new(|s, at| s * at.f32("slope") + at.tensor_f32("bias", [at.q, at.k]));
    let (left, right) = (Some(4), Some(2));
    let problem = Problem::builder(T::DTYPE)
        .batch(2)
        .seqlen_q(9)
        .seqlen_k(13)
        .heads_q(4)
        .heads_k(2)
        .head_dim(16)
        .mask(Mask::Window { left, right })
        .softmax_scale(0.3)
        .dropout(0.25)
        .score(score.unwrap())
        .build()
        .unwrap();
    let attention = Attention::new(&Device::cpu(), problem).unwrap();
    let (mut o, mut lse) = (vec![T::default(); N_Q], vec![0f32; 2 * 4 * 9]);
    let [of_q, of_k, of_v] = [(&q, OF_Q), (&k, OF_K), (&v, OF_K)]
        .map(|(data, shape)| Tensor::bshd(data, shape).unwrap());
    let inputs = Inputs::new(&of_q, &of_k, &of_v)
        .dropout_rng(7, 11)
        .score_param("slope", 0.5f32)
        .score_tensor("bias", of_bias())
        .sinks(&sinks);
    let of_o = TensorMut::bshd(&mut o, OF_Q).unwrap();
    let ran = attention.forward(&inputs, &mut Outputs::new(of_o, &mut lse));
    assert_eq!(attended.o, o);
    assert_eq!(attended.lse, lse);
    assert_eq!(attended.ran, ran.unwrap());
    let [mut d_q, mut d_k, mut d_v] = [N_Q, N_K, N_K].map(|n| vec![T::default(); n]);
    let ran = attention.backward(
        &inputs,
        &Saved::new(&Tensor::bshd(&o, OF_Q).unwrap(), &lse),
        &OutputGradients::new(&Tensor::bshd(&d_o, OF_Q).unwrap()),
        &mut Gradients::new(
            TensorMut::bshd(&mut d_q, OF_Q).unwrap(),
            TensorMut::bshd(&mut d_k, OF_K).unwrap(),
            TensorMut::bshd(&mut d_v, OF_K).unwrap(),
        ),
    );
    assert_eq!(gradients.ran, ran.unwrap());
    assert_eq!(
        [gradients.d_q, gradients.d_k, gradients.d_v],
        [d_q, d_k, d_v]
    );
}

#[test]
fn both_passes_are_those_of_the_layered_calls() {
    both_passes::<f32>();
    both_passes::<f16>();
    both_passes::<bf16>();
}

#[test]
fn a_shape_of_three_is_a_batch_of_one_and_a_layout_is_taken_as_it_is() {
    let (x, y) = (random::<f32>(6 * 2 * 4, 1), random::<f32>(6 * 2 * 4, 2));
    let shape = [6, 2, 4];
    let device = Device::cpu();
    let one = attend((&x, shape), (&y, shape), (&y, shape)).causal();
    let one = one.forward(&device).unwrap();
    let with_batch = [1, 6, 2, 4];
    let other = attend((&x[..], with_batch), (&y, with_batch), (&y, with_batch));
    let other = other.mask(Mask::Causal).forward(&device).unwrap();
    assert_eq!(one.o, other.o);
    // The same numbers read as [batch, heads, seqlen, head_dim] are another sequence.
    let layout = Layout::bhsd([1, 2, 6, 4]).unwrap();
    let heads_first = attend((&x, layout), (&y, layout), (&y, layout)).causal();
    let heads_first = heads_first.forward(&device).unwrap();
    assert_ne!(one.o, heads_first.o);
    assert_eq!(heads_first.attention().problem().shape_q(), with_batch);
}

#[test]
fn values_may_have_columns_of_another_number() {
    let (x, v) = (random::<f32>(6 * 4, 1), random::<f32>(6 * 3, 2));
    let call = attend((&x, [6, 1, 4]), (&x, [6, 1, 4]), (&v, [6, 1, 3])).causal();
    let attended = call.forward(&Device::cpu()).unwrap();
    assert_eq!(attended.o.len(), 6 * 3);
    assert_eq!(attended.o[..3], v[..3]);
    let gradients = attended.backward(&vec![1f32; 18]).unwrap();
    assert_eq!(gradients.d_v.len(), v.len());
}

#[test]
fn a_mask_of_a_closure_hides_what_it_says() {
    let x = random::<f32>(8 * 4, 1);
    let shape = [8, 1, 4];
    let call = || attend((&x, shape), (&x, shape), (&x, shape));
    let own = call().mask_where(|at| at.k.le(at.q));
    let own = own.forward(&Device::cpu()).unwrap();
    let causal = call().causal().forward(&Device::cpu()).unwrap();
    for (own, causal) in own.o.iter().zip(&causal.o) {
        assert!((own - causal).abs() < 1e-6);
    }
}

#[test]
fn the_first_thing_that_is_wrong_is_said_when_the_call_runs() {
    let x = random::<f32>(8 * 4, 1);
    let shape = [8, 1, 4];
    let short = attend((&x, [9, 1, 4]), (&x, shape), (&x, shape)).softmax_scale(f32::NAN);
    let error = short.forward(&Device::cpu()).unwrap_err();
    assert!(
        matches!(error, Error::Problem(ProblemError::OutOfBounds { .. })),
        "{error:?}"
    );
    let scale = attend((&x, shape), (&x, shape), (&x, shape)).softmax_scale(f32::NAN);
    let error = scale.forward(&Device::cpu()).unwrap_err();
    assert!(
        matches!(error, Error::Problem(ProblemError::SoftmaxScale { .. })),
        "{error:?}"
    );
    let call = attend((&x, shape), (&x, shape), (&x, shape));
    let dropped = call.problem(|problem| problem.dropout(0.5));
    let error = dropped.forward(&Device::cpu()).unwrap_err();
    assert!(matches!(error, Error::Problem(_)), "{error:?}");
    let call = attend((&x, shape), (&x, shape), (&x, shape));
    // An expression of nothing but a parameter twice, of two types.
    let two_types = call.score(|s, at| s * at.f32("x") + at.i32("x").to_f32());
    let error = two_types.forward(&Device::cpu()).unwrap_err();
    assert!(matches!(error, Error::Expression(_)), "{error:?}");
    let call = attend((&x, shape), (&x, shape), (&x, shape)).forward(&Device::cpu());
    let error = call.unwrap().backward(&x[..8]).unwrap_err();
    assert!(
        matches!(error, Error::Problem(ProblemError::OutOfBounds { .. })),
        "{error:?}"
    );
}

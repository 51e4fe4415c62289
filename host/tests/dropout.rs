//! Dropout: what problems and calls refuse, and what the mask says.

use ferroflash::error::ProblemError;
use ferroflash::{
    Attention, BlockMask, Device, Dropout, Dtype, Error, Gradients, Inputs, OutputGradients,
    Outputs, Problem, ProblemBuilder, Saved, Tensor, TensorMut, dropout_mask,
};

fn builder() -> ProblemBuilder {
    Problem::builder(Dtype::F32)
        .batch(2)
        .seqlen_q(33)
        .seqlen_k(40)
        .heads_q(4)
        .heads_k(2)
        .head_dim(8)
}

fn numbers(n: usize, step: f32) -> Vec<f32> {
    (0..n).map(|i| (i as f32 * step).sin()).collect()
}

/// o, lse, d_q, d_k and d_v of a problem.
fn run(problem: Problem, give: impl Fn(Inputs) -> Inputs) -> Result<[Vec<f32>; 5], Error> {
    let n = |shape: [usize; 4]| shape.iter().product::<usize>();
    let (shape_q, shape_k) = (problem.shape_q(), problem.shape_k());
    let (q, k, v) = (
        numbers(n(shape_q), 0.37),
        numbers(n(shape_k), 0.73),
        numbers(n(shape_k), 0.19),
    );
    let d_o = numbers(n(shape_q), 0.53);
    let inputs = give(Inputs::new(
        &Tensor::bshd(&q, shape_q)?,
        &Tensor::bshd(&k, shape_k)?,
        &Tensor::bshd(&v, shape_k)?,
    ));
    let mut o = vec![0.0; n(shape_q)];
    let mut lse = vec![0.0; problem.shape_lse().iter().product()];
    let attention = Attention::new(&Device::cpu(), problem)?;
    attention.forward(
        &inputs,
        &mut Outputs::new(TensorMut::bshd(&mut o, shape_q)?, &mut lse),
    )?;
    let (mut d_q, mut d_k, mut d_v) = (vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]);
    attention.backward(
        &inputs,
        &Saved::new(&Tensor::bshd(&o, shape_q)?, &lse),
        &OutputGradients::new(&Tensor::bshd(&d_o, shape_q)?),
        &mut Gradients::new(
            TensorMut::bshd(&mut d_q, shape_q)?,
            TensorMut::bshd(&mut d_k, shape_k)?,
            TensorMut::bshd(&mut d_v, shape_k)?,
        ),
    )?;
    Ok([o, lse, d_q, d_k, d_v])
}

fn problem_error(result: Result<[Vec<f32>; 5], Error>) -> ProblemError {
    match result.unwrap_err() {
        Error::Problem(error) => error,
        other => panic!("{other}"),
    }
}

#[test]
fn probabilities_that_are_none_are_refused() {
    for given in [1.0, 1.5, -0.1, f32::INFINITY] {
        let problem = builder().dropout(given).build().unwrap();
        let refused = ferroflash::validate::sizes(&problem).unwrap_err();
        assert_eq!(refused, ProblemError::Dropout { given });
    }
    let problem = builder().dropout(f32::NAN).build().unwrap();
    let refused = ferroflash::validate::sizes(&problem).unwrap_err();
    assert!(matches!(refused, ProblemError::Dropout { given } if given.is_nan()));
}

#[test]
fn no_probability_is_no_dropout() {
    let problem = builder().dropout(0.0).build().unwrap();
    assert_eq!(problem, builder().build().unwrap());
    assert_eq!(problem.dropout(), None);
    let mask = dropout_mask(&problem, 1, 2).unwrap();
    assert!(mask.len() == 2 * 4 * 33 * 40 && mask.iter().all(|&kept| kept));
}

#[test]
fn values_in_the_keys_are_refused_beside_it() {
    let problem = builder().head_dim_v(4).values_in_keys().dropout(0.1);
    let refused = ferroflash::validate::sizes(&problem.build().unwrap()).unwrap_err();
    let what = "values in the keys";
    assert_eq!(refused, ProblemError::DropoutWith { what });
    assert_eq!(
        refused.to_string(),
        "dropout and values in the keys do not go together; leave out one of them"
    );
}

#[test]
fn seed_and_offset_are_given_where_they_are_taken() {
    let argument = ferroflash::arguments::Argument::DropoutState;
    let with = builder().dropout(0.3).build().unwrap();
    let without = builder().build().unwrap();
    let missing = problem_error(run(with, |inputs| inputs));
    assert_eq!(missing, ProblemError::Missing { argument });
    let not_taken = problem_error(run(without, |inputs| inputs.dropout_rng(1, 2)));
    assert_eq!(not_taken, ProblemError::NotTaken { argument });
    const STATE: &[u64] = &[1, 2];
    let not_taken = problem_error(run(without, |inputs| inputs.dropout_state(STATE)));
    assert_eq!(not_taken, ProblemError::NotTaken { argument });
    let short = problem_error(run(with, |inputs| inputs.dropout_state(&STATE[..1])));
    let (given, needed) = (1, 2);
    assert_eq!(
        short,
        ProblemError::ElementCount {
            argument,
            given,
            needed
        }
    );
}

#[test]
fn numbers_and_memory_drop_the_same_and_others_drop_others() {
    let problem = builder().dropout(0.3).build().unwrap();
    const STATE: &[u64] = &[7, 1 << 40];
    let by_value = run(problem, |inputs| inputs.dropout_rng(7, 1 << 40)).unwrap();
    let by_memory = run(problem, |inputs| inputs.dropout_state(STATE)).unwrap();
    assert_eq!(by_value, by_memory);
    let other_offset = run(problem, |inputs| inputs.dropout_rng(7, 1)).unwrap();
    assert_ne!(by_value[0], other_offset[0]);
    // All weights count.
    assert_eq!(by_value[1], other_offset[1]);
    let none = run(builder().build().unwrap(), |inputs| inputs).unwrap();
    assert_eq!(by_value[1], none[1]);
}

/// A mask of all blocks that are full changes nothing, nor which weights are dropped.
#[test]
fn a_block_mask_does_not_change_which_are_dropped() {
    const MAP: &[u8] = &[2];
    let problem = builder().dropout(0.5);
    let masked = problem.block_mask(BlockMask::new(128, 128)).build();
    let masked = run(masked.unwrap(), |inputs| {
        let mut inputs = inputs.dropout_rng(3, 4);
        inputs.block_mask = Some(MAP.into());
        inputs
    });
    let plain = run(problem.build().unwrap(), |inputs| inputs.dropout_rng(3, 4));
    assert_eq!(masked.unwrap()[0], plain.unwrap()[0]);
}

#[test]
fn what_a_probability_becomes() {
    let of = |p: f32| -> Dropout { builder().dropout(p).build().unwrap().dropout().unwrap() };
    assert_eq!(of(0.25).keep_probability(), 0.75);
    assert_eq!(of(1e-9).probability(), 1.0 / 256.0);
    assert_eq!(of(0.1).kept_bytes(), 230);
}

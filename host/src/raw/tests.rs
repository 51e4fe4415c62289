//! Calls on addresses give what the safe calls give, and refuse what those refuse.

use super::*;
use crate::arguments::{Gradients, Inputs, MergeInputs, OutputGradients, Outputs, Saved};
use crate::dtype::Dtype;
use crate::problem::merge::MergeProblem;
use crate::problem::{Mask, Score};
use crate::tensor::Layout;

/// Numbers between −1 and 1 without a pattern.
fn random(n: usize, seed: usize) -> Vec<f32> {
    let number = |at: usize| ((at * 7919 + seed * 104_729) % 2003) as f32 / 1001.5 - 1.0;
    (0..n).map(number).collect()
}

fn at<T>(elements: &[T]) -> u64 {
    elements.as_ptr().expose_provenance() as u64
}

fn at_mut<T>(elements: &mut [T]) -> u64 {
    elements.as_mut_ptr().expose_provenance() as u64
}

fn cache() -> PlanCache {
    PlanCache::new(4)
}

/// A problem with what calls give by name, by value and by address.
fn problem() -> Problem {
    let score = Score::new(|s, at| s * at.f32("slope") + at.tensor_f32("bias", [at.q, at.k]));
    Problem::builder(Dtype::F32)
        .batch(2)
        .seqlen(5)
        .heads_q(4)
        .heads_k(2)
        .head_dim(8)
        .mask(Mask::Causal)
        .score(score.unwrap())
        .dropout(0.25)
        .build()
        .unwrap()
}

#[test]
fn both_passes_give_what_the_safe_calls_give() {
    let problem = problem();
    let attention = Attention::new(&Device::cpu(), problem).unwrap();
    let (of_q, of_k) = (problem.shape_q(), problem.shape_k());
    let n = |shape: [usize; 4]| shape.iter().product::<usize>();
    // Heads of q lie side by side, rows behind one another: a layout of its own.
    let layout_q = Layout::bhsd([2, 4, 5, 8]).unwrap();
    let (q, k, v) = (random(n(of_q), 1), random(n(of_k), 2), random(n(of_k), 3));
    let (d_o, bias, used) = (random(n(of_q), 4), random(25, 5), [5i32, 3]);
    let inputs = Inputs::new(
        &Tensor::strided(&q, layout_q).unwrap(),
        &Tensor::bshd(&k, of_k).unwrap(),
        &Tensor::bshd(&v, of_k).unwrap(),
    )
    .seqused_k(&used)
    .dropout_rng(7, 9)
    .score_param("slope", 0.5f32)
    .score_tensor("bias", ReadTensor::new(&bias, [5, 5]));
    let (mut o, mut lse) = (vec![0f32; n(of_q)], vec![0f32; 40]);
    let o_mut = TensorMut::bshd(&mut o, of_q).unwrap();
    attention
        .forward(&inputs, &mut Outputs::new(o_mut, &mut lse))
        .unwrap();
    let [mut d_q, mut d_k, mut d_v] = [of_q, of_k, of_k].map(|shape| vec![0f32; n(shape)]);
    let mut d_bias = vec![0f32; 25];
    attention
        .backward(
            &inputs,
            &Saved::new(&Tensor::bshd(&o, of_q).unwrap(), &lse),
            &OutputGradients::new(&Tensor::bshd(&d_o, of_q).unwrap()).d_lse(&lse),
            &mut Gradients::new(
                TensorMut::bshd(&mut d_q, of_q).unwrap(),
                TensorMut::bshd(&mut d_k, of_k).unwrap(),
                TensorMut::bshd(&mut d_v, of_k).unwrap(),
            )
            .d_score_tensor("bias", &mut d_bias),
        )
        .unwrap();

    let layouts = Layouts::contiguous()
        .with(Argument::Q, layout_q)
        .giving(Argument::SeqUsedK);
    let forward = Call::forward(&attention, &layouts, &cache()).unwrap();
    let needed: Vec<Argument> = forward.needs().map(|(argument, _)| argument).collect();
    let expected = [
        Argument::Q,
        Argument::K,
        Argument::V,
        Argument::O,
        Argument::Lse,
        Argument::SeqUsedK,
    ];
    assert_eq!(needed, expected);
    assert_eq!(forward.workspace_bytes(), 0);

    let (mut raw_o, mut raw_lse) = (vec![0f32; o.len()], vec![0f32; lse.len()]);
    let read = Addresses::default()
        .with(Argument::Q, at(&q))
        .with(Argument::K, at(&k))
        .with(Argument::V, at(&v))
        .with(Argument::SeqUsedK, at(&used));
    let tensors = [ScoreTensor {
        name: "bias",
        address: at(&bias),
        shape: &[5, 5],
        strides: &[5, 1],
    }];
    let values = Values {
        dropout: Some([7, 9]),
        score_params: &[("slope", 0.5f32.into())],
        score_tensors: &tensors,
        ..Values::default()
    };
    let addresses = read
        .with(Argument::O, at_mut(&mut raw_o))
        .with(Argument::Lse, at_mut(&mut raw_lse));
    // SAFETY: all lie there, with these shapes, and are borrowed by nobody else.
    unsafe { forward.run(&addresses, &values, None).unwrap() };
    assert_eq!((&raw_o, &raw_lse), (&o, &lse));

    let backward = Call::backward(&attention, &layouts, &cache()).unwrap();
    let [mut raw_q, mut raw_k, mut raw_v] = [of_q, of_k, of_k].map(|shape| vec![0f32; n(shape)]);
    let mut raw_bias = vec![0f32; 25];
    let addresses = read
        .with(Argument::O, at(&o))
        .with(Argument::Lse, at(&lse))
        .with(Argument::DO, at(&d_o))
        // Not among the layouts: a call may give it and the next one not.
        .with(Argument::DLse, at(&lse))
        .with(Argument::DQ, at_mut(&mut raw_q))
        .with(Argument::DK, at_mut(&mut raw_k))
        .with(Argument::DV, at_mut(&mut raw_v));
    let values = Values {
        d_score_tensors: &[("bias", at_mut(&mut raw_bias))],
        ..values
    };
    // SAFETY: as above.
    unsafe { backward.run(&addresses, &values, None).unwrap() };
    assert_eq!([raw_q, raw_k, raw_v, raw_bias], [d_q, d_k, d_v, d_bias]);
}

#[test]
fn operations_give_what_the_safe_calls_give() {
    let shape = [1, 3, 2, 4];
    let merge = Merge::new(&Device::cpu(), MergeProblem::new(Dtype::F32, shape)).unwrap();
    let [o_1, o_2] = [random(24, 1), random(24, 2)];
    let [lse_1, lse_2] = [random(6, 3), random(6, 4)];
    let (mut o, mut lse) = (vec![0f32; 24], vec![0f32; 6]);
    let inputs = MergeInputs::new(
        &Tensor::bshd(&o_1, shape).unwrap(),
        &lse_1,
        &Tensor::bshd(&o_2, shape).unwrap(),
        &lse_2,
    );
    let o_mut = TensorMut::bshd(&mut o, shape).unwrap();
    merge
        .run(&inputs, &mut Outputs::new(o_mut, &mut lse))
        .unwrap();
    let (mut raw_o, mut raw_lse) = (vec![0f32; 24], vec![0f32; 6]);
    let addresses: Addresses = [
        (Argument::O1, at(&o_1)),
        (Argument::Lse1, at(&lse_1)),
        (Argument::O2, at(&o_2)),
        (Argument::Lse2, at(&lse_2)),
        (Argument::O, at_mut(&mut raw_o)),
        (Argument::Lse, at_mut(&mut raw_lse)),
    ]
    .into_iter()
    .collect();
    let call = Call::merge(&merge, &Layouts::contiguous()).unwrap();
    // SAFETY: all lie there, with these shapes, and are borrowed by nobody else.
    unsafe { call.run(&addresses, &Values::default(), None).unwrap() };
    assert_eq!((raw_o, raw_lse), (o, lse));
}

#[test]
fn what_does_not_fit_is_refused_before_memory_is_touched() {
    let attention = Attention::new(&Device::cpu(), problem()).unwrap();
    let call = Call::forward(&attention, &Layouts::contiguous(), &cache()).unwrap();
    // None of the addresses is one: an error comes before they are used.
    let all = [
        Argument::Q,
        Argument::K,
        Argument::V,
        Argument::O,
        Argument::Lse,
    ];
    let addresses: Addresses = all.into_iter().map(|argument| (argument, 64)).collect();
    let refusal = |addresses: &Addresses, values: &Values| {
        // SAFETY: nothing is read or written.
        match unsafe { call.run(addresses, values, None) } {
            Err(Error::Problem(error)) => error,
            other => panic!("{other:?}"),
        }
    };
    let values = Values {
        dropout: Some([1, 2]),
        ..Values::default()
    };
    let argument = Argument::DQ;
    assert_eq!(
        refusal(&addresses.with(argument, 64), &values),
        ProblemError::NotTaken { argument }
    );
    let argument = Argument::K;
    assert_eq!(
        refusal(&addresses.with(argument, 65), &values),
        ProblemError::Misaligned {
            argument,
            address: 65,
            alignment: 4
        }
    );
    let argument = Argument::DropoutState;
    assert_eq!(
        refusal(&addresses, &Values::default()),
        ProblemError::Missing { argument }
    );
    let missing = |error| matches!(error, ProblemError::Score(ScoreError::Missing { .. }));
    assert!(missing(refusal(&addresses, &values)));
    let unknown = [ScoreTensor {
        name: "no such",
        address: 64,
        shape: &[1],
        strides: &[1],
    }];
    let values = Values {
        score_tensors: &unknown,
        ..values
    };
    let is_unknown = |error| matches!(error, ProblemError::Score(ScoreError::Unknown { .. }));
    assert!(is_unknown(refusal(&addresses, &values)));
    assert!(!PlanError::NeedsQueue.to_string().is_empty());
}

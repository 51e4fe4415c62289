//! Scores that are edited: gradients by the derivative of an expression against finite differences, and what masks hide.

use ferroflash_expression::{Expression, ParamValue};

use super::*;
use crate::edits::memory::{Given, Strides};
use crate::edits::{Edits, Precision, Sequence};
use crate::oracle::ScoreError;
use ferroflash_expression::ElementType;

/// Slopes of each head, and a cap.
fn edits(score: Option<Expression>, mask: Option<Expression>) -> Edits {
    Edits {
        score,
        mask,
        params: vec![("cap", ParamValue::F32(0.75))],
        tensors: vec![Given::new(
            "slopes",
            ElementType::F32,
            &[4],
            Strides::Contiguous,
            |at| 0.25 + at[0] as f64,
        )],
    }
}

fn alibi() -> Expression {
    let score =
        Expression::score(|s, at| s + at.tensor_f32("slopes", [at.head]) * (at.k - at.q).to_f32());
    score.unwrap()
}

fn capped() -> Expression {
    let score = Expression::score(|s, at| {
        let cap = at.f32("cap");
        (s / cap).tanh_full() * cap
    });
    score.unwrap()
}

fn both() -> Expression {
    let score = Expression::score(|s, at| {
        let cap = at.f32("cap");
        let biased = s + at.tensor_f32("slopes", [at.head]) * (at.k - at.q).to_f32();
        (biased / cap).tanh_full() * cap
    });
    score.unwrap()
}

/// Calls `check` with problems whose scores are edited so.
fn each_edited(edits: &Edits, check: &dyn Fn(&Inputs, &OfOutput)) {
    let sizes = sizes(3, 4);
    each_mask(sizes, &|inputs, of_output| {
        let precision = Precision {
            product: ScoreError::of_product(1.0, 1),
            unit: 1.0,
        };
        edits.with_edit(Sequence { first: 0, sizes }, precision, |edit| {
            let edited = Inputs {
                edit: Some(edit),
                ..*inputs
            };
            check(&edited, of_output);
        });
    });
}

#[test]
fn gradients_of_edited_scores_are_those_of_finite_differences() {
    let every_second = || Expression::mask(|at| ((at.k + at.q) % 2).eq(0)).unwrap();
    for edits in [
        edits(Some(alibi()), None),
        edits(Some(capped()), None),
        edits(Some(both()), Some(every_second())),
    ] {
        each_edited(&edits, &|inputs, of_output| {
            let apart = apart(inputs, of_output, of_output);
            let close = apart.iter().all(|&apart| apart < TOLERANCE);
            assert!(close, "{apart:?} {:?}", edits.score);
        });
    }
}

/// Without the derivative the gradients of q and k are wrong.
#[test]
fn differences_find_a_missing_derivative() {
    each_edited(&edits(Some(capped()), None), &|inputs, of_output| {
        let edit = inputs.edit.unwrap();
        let without = |pair, score| {
            let edited = edit(pair, score)?;
            Some(Edited {
                slope: 1.0,
                ..edited
            })
        };
        let wrong = Inputs {
            edit: Some(&without),
            ..*inputs
        };
        let [d_q, d_k, d_v] = apart(&wrong, of_output, of_output);
        assert!(
            1e6 * TOLERANCE < d_q && 1e6 * TOLERANCE < d_k,
            "{d_q} {d_k}"
        );
        assert!(d_v < TOLERANCE, "{d_v}");
    });
}

#[test]
fn a_score_is_replaced_before_the_softmax_and_hidden_pairs_do_not_count() {
    let score = Expression::score(|s, at| s * 2.0 + at.k.to_f32()).unwrap();
    let mask = Expression::mask(|at| at.k.ne(1)).unwrap();
    let sizes = Sizes {
        batch: 1,
        seqlen_q: 1,
        seqlen_k: 3,
        heads_q: 1,
        heads_k: 1,
        head_dim: 1,
        head_dim_v: 1,
    };
    let inputs = Inputs {
        sizes,
        q: &[1.0],
        k: &[0.5, 100.0, -0.25],
        v: &[1.0, 1000.0, 3.0],
        softmax_scale: 1.0,
        visible: &full,
        block: None,
        edit: None,
        sinks: None,
        dropout: None,
    };
    let precision = Precision {
        product: inputs.product_error(),
        unit: 1.0,
    };
    let edits = edits(Some(score), Some(mask));
    let output = edits.with_edit(Sequence { first: 0, sizes }, precision, |edit| {
        forward(&Inputs {
            edit: Some(edit),
            ..inputs
        })
    });
    // Scores of 1 and of 1.5.
    let (a, b) = (1f64.exp(), 1.5f64.exp());
    assert!((output.o[0] - (a + 3.0 * b) / (a + b)).abs() < 1e-14);
    assert!((output.lse[0] - (a + b).ln()).abs() < 1e-14);
}

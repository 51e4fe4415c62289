//! The rules that concern a problem alone.

use ferroflash::error::ProblemError;
use ferroflash::validate::sizes;
use ferroflash::{Dtype, Mask, Problem, ProblemBuilder};

/// batch 2, 6 query heads over 3, 5 queries, 7 keys, head_dim 16.
fn problem() -> Problem {
    Problem::builder(Dtype::F16)
        .batch(2)
        .heads_q(6)
        .heads_k(3)
        .seqlen_q(5)
        .seqlen_k(7)
        .head_dim(16)
        .build()
        .unwrap()
}

/// The same with some of it changed.
fn with(change: impl FnOnce(ProblemBuilder) -> ProblemBuilder) -> Problem {
    change(problem().to_builder()).build().unwrap()
}

#[test]
fn a_size_that_was_not_set_is_named() {
    let builder = || Problem::builder(Dtype::F32).heads(1).seqlen(1).head_dim(1);
    assert!(builder().build().is_ok());
    let without = [
        (
            Problem::builder(Dtype::F32).seqlen(1).head_dim(1),
            "heads_q",
        ),
        (
            Problem::builder(Dtype::F32)
                .heads_q(1)
                .seqlen(1)
                .head_dim(1),
            "heads_k",
        ),
        (
            Problem::builder(Dtype::F32)
                .heads(1)
                .seqlen_k(1)
                .head_dim(1),
            "seqlen_q",
        ),
        (
            Problem::builder(Dtype::F32)
                .heads(1)
                .seqlen_q(1)
                .head_dim(1),
            "seqlen_k",
        ),
        (Problem::builder(Dtype::F32).heads(1).seqlen(1), "head_dim"),
    ];
    for (builder, field) in without {
        assert_eq!(builder.build(), Err(ProblemError::Unset { field }));
    }
}

#[test]
fn head_dim_lies_between_1_and_256() {
    for given in [0, 577, usize::MAX] {
        let refused = sizes(&with(|p| p.head_dim(given)));
        assert_eq!(
            refused,
            Err(ProblemError::HeadDimOutOfRange {
                given,
                min: 1,
                max: 576
            })
        );
    }
    for head_dim in [1, 255, 256] {
        sizes(&with(|p| p.head_dim(head_dim))).unwrap();
    }
}

#[test]
fn heads_q_is_a_multiple_of_heads_k() {
    for (heads_q, heads_k) in [(6, 4), (3, 6), (6, 0), (0, 3)] {
        let refused = sizes(&with(|p| p.heads_q(heads_q).heads_k(heads_k)));
        assert_eq!(
            refused,
            Err(ProblemError::HeadsNotMultiple { heads_q, heads_k })
        );
    }
    for (heads_q, heads_k) in [(0, 0), (6, 1), (6, 6)] {
        sizes(&with(|p| p.heads_q(heads_q).heads_k(heads_k))).unwrap();
    }
}

#[test]
fn softmax_scale_is_finite_and_positive() {
    for given in [
        0.0,
        -0.0,
        -1.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::MAX,
        f32::NAN,
    ] {
        let refused = sizes(&with(|p| p.softmax_scale(given)));
        let Err(ProblemError::SoftmaxScale { given: named }) = refused else {
            panic!("{given} gave {refused:?}")
        };
        assert_eq!(named.to_bits(), given.to_bits());
    }
    for given in [f32::MIN_POSITIVE, 1.0, 1e30] {
        sizes(&with(|p| p.softmax_scale(given))).unwrap();
    }
}

#[test]
fn rows_and_keys_are_countable() {
    let what = "batch · heads_q · seqlen_q";
    for seqlen_q in [0, 1 << 40] {
        let problem = with(|p| p.batch(usize::MAX / 2).seqlen_q(seqlen_q));
        assert_eq!(sizes(&problem), Err(ProblemError::SizeOverflow { what }));
    }
    let what = "batch · heads_k · seqlen_k";
    let problem = with(|p| p.seqlen_k(usize::MAX));
    assert_eq!(sizes(&problem), Err(ProblemError::SizeOverflow { what }));
}

#[test]
fn visible_pairs_are_those_of_the_definition() {
    let window = |left, right| Mask::Window { left, right };
    let masks = [
        Mask::Full,
        Mask::Causal,
        window(Some(2), Some(0)),
        window(Some(1), Some(3)),
        window(None, Some(1)),
        Mask::PrefixLm { prefix: 0 },
        Mask::PrefixLm { prefix: 3 },
        Mask::PrefixLm { prefix: usize::MAX },
    ];
    for mask in masks {
        for (seqlen_q, seqlen_k) in [(5, 7), (7, 5), (6, 6), (1, 9), (9, 1), (0, 4), (4, 0)] {
            let problem = with(|builder| builder.seqlen_q(seqlen_q).seqlen_k(seqlen_k).mask(mask));
            let sees = |i: usize, j: usize| {
                let distance = j as i64 - (i + seqlen_k) as i64 + seqlen_q as i64;
                let (left, right) = mask.window();
                j < mask.prefix()
                    || left.is_none_or(|left| -distance <= left as i64)
                        && right.is_none_or(|right| distance <= right as i64)
            };
            let pairs = (0..seqlen_q).flat_map(|i| (0..seqlen_k).map(move |j| (i, j)));
            let expected = pairs.filter(|&(i, j)| sees(i, j)).count();
            assert_eq!(
                problem.visible_pairs(),
                expected as u64,
                "{mask} {seqlen_q} {seqlen_k}"
            );
        }
    }
}

//! The kernels of standard attention on the emulator, every check on, against f64.
#![cfg(feature = "emulator")]

mod attention;
mod case;
mod check;

use ferroflash_kernels::variants::{Dtype, Kind};

use attention::Attention;
use case::{Case, PLAIN};
use check::Whole;

/// All kernels in the order in which a forward and a backward pass run them.
const PASS: [Kind; 9] = [
    Kind::StandardScores,
    Kind::StandardSoftmax,
    Kind::StandardOutput,
    Kind::StandardDelta,
    Kind::StandardDv,
    Kind::StandardDWeights,
    Kind::StandardDScores,
    Kind::StandardDq,
    Kind::StandardDk,
];

/// Runs the whole pass and checks it after each kernel and at its end.
fn check(case: Case, seed: u64) -> Attention {
    let mut attention = Attention::new(case, seed);
    for kind in PASS {
        let before = attention.weights.clone();
        attention.run(kind, seed);
        attention.check(kind, &before);
    }
    attention.check_whole(&Whole::of(&attention));
    attention
}

const DTYPES: [Dtype; 2] = [Dtype::Bf16, Dtype::F16];
const MASKS: [bool; 2] = [false, true];

#[test]
fn every_kind_of_head_dim() {
    for (seed, head_dim) in (1..).zip([8, 32, 40, 64, 128, 136, 256]) {
        for (dtype, causal) in DTYPES.into_iter().zip(MASKS) {
            check(
                Case {
                    dtype,
                    head_dim,
                    causal,
                    ..PLAIN
                },
                seed,
            );
        }
    }
}

#[test]
fn lengths_around_the_tiles() {
    let lengths = [
        (1, 1),
        (1, 300),
        (300, 1),
        (128, 128),
        (129, 257),
        (31, 97),
        (127, 130),
    ];
    for (seed, (seqlen_q, seqlen_k)) in (1..).zip(lengths) {
        for (dtype, causal) in DTYPES.into_iter().rev().zip(MASKS) {
            check(
                Case {
                    dtype,
                    seqlen_q,
                    seqlen_k,
                    head_dim: 32,
                    causal,
                    ..PLAIN
                },
                seed,
            );
        }
    }
}

#[test]
fn heads_that_share_keys() {
    for (seed, (heads_q, heads_k)) in (1..).zip([(2, 2), (4, 2), (6, 1)]) {
        for causal in MASKS {
            let lengths = Case {
                seqlen_q: 70,
                seqlen_k: 133,
                head_dim: 40,
                ..PLAIN
            };
            check(
                Case {
                    batch: 2,
                    heads_q,
                    heads_k,
                    causal,
                    ..lengths
                },
                seed,
            );
        }
    }
}

#[test]
fn rows_that_see_no_key() {
    for dtype in DTYPES {
        let case = Case {
            dtype,
            seqlen_q: 140,
            seqlen_k: 13,
            causal: true,
            ..PLAIN
        };
        let attention = check(case, 3);
        let blind = (case.seqlen_q - case.seqlen_k) as usize;
        for i in 0..blind {
            assert_eq!(attention.lse[i], f32::NEG_INFINITY);
            assert_eq!(attention.delta[i], 0.0);
        }
        for tensor in [&attention.o, &attention.d_q] {
            let rows = tensor.head(&case, 0, 0);
            assert!(rows[..blind].iter().flatten().all(|&x| x == 0.0));
            assert!(rows[blind..].iter().flatten().any(|&x| x != 0.0));
        }
    }
}

#[test]
fn nothing_to_attend_to() {
    let attention = check(
        Case {
            seqlen_k: 0,
            ..PLAIN
        },
        4,
    );
    assert!(attention.lse.iter().all(|&lse| lse == f32::NEG_INFINITY));
    for tensor in [&attention.o, &attention.d_q] {
        assert!(
            tensor
                .head(&PLAIN, 0, 0)
                .iter()
                .flatten()
                .all(|&x| x == 0.0)
        );
    }
}

#[test]
fn nobody_attends() {
    let attention = check(
        Case {
            seqlen_q: 0,
            heads_q: 2,
            ..PLAIN
        },
        5,
    );
    for tensor in [&attention.d_k, &attention.d_v] {
        assert!(
            tensor
                .head(&PLAIN, 0, 0)
                .iter()
                .flatten()
                .all(|&x| x == 0.0)
        );
    }
}

/// Scores of some hundreds, whose exponentials f32 does not hold.
#[test]
fn large_scores() {
    for (dtype, causal) in DTYPES.into_iter().zip(MASKS) {
        let case = Case {
            dtype,
            causal,
            size: 16.0,
            ..PLAIN
        };
        let mut attention = Attention::new(case, 6);
        for kind in &PASS[..5] {
            attention.run(*kind, 6);
            attention.check(*kind, &[]);
        }
        assert!(
            attention.lse.iter().any(|&lse| lse > 89.0),
            "the scores are not large"
        );
    }
}

/// dP may be anything where the mask hides the key: V may hold anything there.
#[test]
fn masked_gradients_are_zero_whatever_the_weights_gradients_are() {
    for dtype in DTYPES {
        let case = Case {
            dtype,
            causal: true,
            ..PLAIN
        };
        let mut attention = Attention::new(case, 7);
        let cols = case.padded_k();
        attention.weights.fill(case.to_bits(0.5));
        attention.delta.fill(0.25);
        for (idx, d_p) in attention.scores.iter_mut().enumerate() {
            let anything = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN][idx % 3];
            let (i, j) = (idx / cols, idx % cols);
            let seen = j < case.seqlen_k as usize && case.sees(i, j);
            *d_p = if seen { 2.25 } else { anything };
        }
        attention.run(Kind::StandardDScores, 7);
        for (idx, &d_s) in attention.weights.iter().enumerate() {
            let (i, j) = (idx / cols, idx % cols);
            let seen = j < case.seqlen_k as usize && case.sees(i, j);
            assert_eq!(case.to_f64(d_s), if seen { 1.0 } else { 0.0 });
        }
    }
}

/// The order in which blocks, warps and copies go is the seed's; the result must not be.
#[test]
fn results_are_the_same_in_any_order() {
    let case = Case {
        heads_q: 2,
        seqlen_q: 130,
        seqlen_k: 140,
        causal: true,
        ..PLAIN
    };
    let run = |seed| {
        let mut attention = Attention::new(case, 8);
        PASS.iter().for_each(|&kind| attention.run(kind, seed));
        let Attention {
            o,
            d_q,
            d_k,
            d_v,
            lse,
            ..
        } = attention;
        (
            o,
            d_q,
            d_k,
            d_v,
            lse.iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
        )
    };
    let first = run(0);
    for seed in 1..5 {
        assert!(run(seed) == first, "seed {seed} gives another result");
    }
}

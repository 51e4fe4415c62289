//! The oracle against itself: finite differences, cases with a known answer, rows that see no key.

mod dropout;
mod edited;
mod sinks;

use super::{Edited, Inputs, Output, Sizes, backward, causal, forward, full};

/// Numbers in [−1, 1) that depend on `salt` and the index alone.
fn numbers(n: usize, salt: u64) -> Vec<f64> {
    let mut state = salt.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
        })
        .collect()
}

fn sizes(seqlen_q: usize, seqlen_k: usize) -> Sizes {
    Sizes {
        batch: 2,
        seqlen_q,
        seqlen_k,
        heads_q: 4,
        heads_k: 2,
        head_dim: 3,
        head_dim_v: 3,
    }
}

/// Which of the three inputs is varied.
#[derive(Clone, Copy, Debug)]
enum Input {
    Q,
    K,
    V,
}

/// The gradients of o and of lse.
#[derive(Clone, Debug)]
struct OfOutput {
    d_o: Vec<f64>,
    d_lse: Option<Vec<f64>>,
}

/// `Σ o ∘ d_o + Σ lse ∘ d_lse`, the second over the rows that see a key.
fn loss(inputs: &Inputs, of_output: &OfOutput) -> f64 {
    let Output { o, lse } = forward(inputs);
    let of_o: f64 = o.iter().zip(&of_output.d_o).map(|(o, d_o)| o * d_o).sum();
    let rows = lse.iter().zip(of_output.d_lse.iter().flatten());
    let of_lse = rows
        .filter(|(lse, _)| lse.is_finite())
        .map(|(lse, d_lse)| lse * d_lse);
    of_o + of_lse.sum::<f64>()
}

/// `d(loss)/d(input[at])`.
fn difference(inputs: &Inputs, of_output: &OfOutput, which: Input, at: usize) -> f64 {
    central(|shift| {
        let (mut q, mut k, mut v) = (inputs.q.to_vec(), inputs.k.to_vec(), inputs.v.to_vec());
        match which {
            Input::Q => q[at] += shift,
            Input::K => k[at] += shift,
            Input::V => v[at] += shift,
        }
        let shifted = Inputs {
            q: &q,
            k: &k,
            v: &v,
            ..*inputs
        };
        loss(&shifted, of_output)
    })
}

/// The derivative of a function at 0 by a central difference of fourth order.
fn central(f: impl Fn(f64) -> f64) -> f64 {
    let step = 1e-3;
    (8.0 * (f(step) - f(-step)) - (f(2.0 * step) - f(-2.0 * step))) / (12.0 * step)
}

/// How far a rule may lie from the differences.
const TOLERANCE: f64 = 1e-9;

/// For q, k and v, how far the gradients that the rule works out of `given` lie at most from the differences of the loss
/// that `right` stands for.
fn apart(inputs: &Inputs, right: &OfOutput, given: &OfOutput) -> [f64; 3] {
    let gradients = backward(inputs, &given.d_o, given.d_lse.as_deref());
    [
        (Input::Q, &gradients.d_q),
        (Input::K, &gradients.d_k),
        (Input::V, &gradients.d_v),
    ]
    .map(|(which, gradient)| {
        gradient
            .iter()
            .enumerate()
            .map(|(at, by_rule)| (by_rule - difference(inputs, right, which, at)).abs())
            .fold(0.0, f64::max)
    })
}

/// Calls `check` with problems of these sizes under both masks, a gradient of o, and one of lse that is NaN in rows that
/// see no key.
fn each_mask(sizes: Sizes, check: &dyn Fn(&Inputs, &OfOutput)) {
    let q = numbers(sizes.query_elems(), 1);
    let k = numbers(sizes.key_elems(), 2);
    let v = numbers(sizes.value_elems(), 3);
    let masks: [&dyn Fn(usize, usize) -> bool; 2] = [&full, &causal(sizes)];
    for visible in masks {
        let inputs = Inputs {
            sizes,
            q: &q,
            k: &k,
            v: &v,
            softmax_scale: 0.7,
            visible,
            block: None,
            edit: None,
            sinks: None,
            dropout: None,
        };
        let sees = |row: usize| (0..sizes.seqlen_k).any(|j| visible(row % sizes.seqlen_q, j));
        let d_lse = numbers(sizes.row_elems(), 5).into_iter().enumerate();
        let of_output = OfOutput {
            d_o: numbers(sizes.output_elems(), 4),
            d_lse: Some(
                d_lse
                    .map(|(row, x)| if sees(row) { x } else { f64::NAN })
                    .collect(),
            ),
        };
        check(&inputs, &of_output);
    }
}

/// Lengths of queries and keys: equal, fewer queries, fewer keys (where the causal mask leaves rows without a key), one.
const LENGTHS: [(usize, usize); 4] = [(3, 3), (2, 5), (5, 2), (1, 1)];

#[test]
fn gradients_are_those_of_finite_differences() {
    let all = LENGTHS.map(|(seqlen_q, seqlen_k)| sizes(seqlen_q, seqlen_k));
    // Values of fewer columns than keys, and of more.
    let other_values = [1, 5].map(|head_dim_v| Sizes {
        head_dim_v,
        ..sizes(2, 5)
    });
    for sizes in all.into_iter().chain(other_values) {
        each_mask(sizes, &|inputs, with_lse| {
            let of_o_alone = OfOutput {
                d_lse: None,
                ..with_lse.clone()
            };
            for of_output in [with_lse, &of_o_alone] {
                let apart = apart(inputs, of_output, of_output);
                assert!(
                    apart.iter().all(|&apart| apart < TOLERANCE),
                    "{:?}: {apart:?} from the differences of q, k and v",
                    inputs.sizes
                );
            }
        });
    }
}

/// The tolerance tells a wrong gradient of lse from a right one: absent, of the other sign, of a neighbouring row, in the
/// order `[batch, seqlen, heads]`. The values have no part in lse.
#[test]
fn differences_find_a_wrong_gradient_of_lse() {
    for (seqlen_q, seqlen_k) in [(3, 3), (2, 5), (5, 2)] {
        each_mask(sizes(seqlen_q, seqlen_k), &|inputs, right| {
            let d_lse = right.d_lse.as_deref().unwrap();
            let finite = |row: usize| Some(d_lse[row]).filter(|x| x.is_finite()).unwrap_or(0.0);
            let rows = 0..d_lse.len();
            let Sizes {
                heads_q, seqlen_q, ..
            } = inputs.sizes;
            let transposed = |row: usize| {
                let (batch, in_batch) = (row / (heads_q * seqlen_q), row % (heads_q * seqlen_q));
                (batch * seqlen_q + in_batch % seqlen_q) * heads_q + in_batch / seqlen_q
            };
            let wrong = [
                None,
                Some(rows.clone().map(|row| -finite(row)).collect()),
                Some(rows.clone().map(|row| finite(row.max(1) - 1)).collect()),
                Some(rows.map(|row| finite(transposed(row))).collect()),
            ];
            for d_lse in wrong {
                let d_o = right.d_o.clone();
                let [q, k, v] = apart(inputs, right, &OfOutput { d_o, d_lse });
                assert!(
                    1e6 * TOLERANCE < q.min(k) && v < TOLERANCE,
                    "{:?}: {q}, {k}, {v}",
                    inputs.sizes
                );
            }
        });
    }
}

/// The same of a gradient of o of the other sign, which every input's gradient shows.
#[test]
fn differences_find_a_wrong_gradient_of_o() {
    each_mask(sizes(3, 4), &|inputs, right| {
        let wrong = OfOutput {
            d_o: right.d_o.iter().map(|x| -x).collect(),
            ..right.clone()
        };
        let apart = apart(inputs, right, &wrong);
        assert!(
            apart.iter().all(|&apart| 1e6 * TOLERANCE < apart),
            "{apart:?}"
        );
    });
}

/// With one key a row's lse is its score: its gradients by q and k are `k · scale` and `q · scale`.
#[test]
fn with_one_key_lse_is_the_score() {
    let inputs = Inputs {
        sizes: Sizes {
            batch: 1,
            heads_q: 1,
            heads_k: 1,
            ..sizes(1, 1)
        },
        q: &[1.0, 2.0, 3.0],
        k: &[5.0, 6.0, 7.0],
        v: &[1.0; 3],
        softmax_scale: 0.5,
        visible: &full,
        block: None,
        edit: None,
        sinks: None,
        dropout: None,
    };
    let gradients = backward(&inputs, &[0.0; 3], Some(&[4.0]));
    assert_eq!(gradients.d_q, [10.0, 12.0, 14.0]);
    assert_eq!(gradients.d_k, [2.0, 4.0, 6.0]);
    assert_eq!(gradients.d_v, [0.0; 3]);
}

#[test]
fn equal_keys_give_the_mean_of_the_values() {
    let sizes = Sizes {
        batch: 1,
        seqlen_q: 1,
        seqlen_k: 4,
        heads_q: 1,
        heads_k: 1,
        head_dim: 1,
        head_dim_v: 1,
    };
    let output = forward(&Inputs {
        sizes,
        q: &[2.0],
        k: &[3.0; 4],
        v: &[1.0, 2.0, 3.0, 6.0],
        softmax_scale: 0.5,
        visible: &full,
        block: None,
        edit: None,
        sinks: None,
        dropout: None,
    });
    assert_eq!(output.o, [3.0]);
    assert!((output.lse[0] - (3.0 + 4f64.ln())).abs() < 1e-15);
}

#[test]
fn causal_is_aligned_to_the_bottom_right() {
    let visible = causal(sizes(2, 4));
    assert_eq!(
        (0..4).map(|j| visible(0, j)).collect::<Vec<_>>(),
        [true, true, true, false]
    );
    assert_eq!((0..4).map(|j| visible(1, j)).collect::<Vec<_>>(), [true; 4]);
    let visible = causal(sizes(4, 2));
    assert!(!visible(0, 0) && !visible(1, 0) && visible(2, 0) && !visible(2, 1) && visible(3, 1));
}

#[test]
fn a_row_without_keys_gives_zero_and_minus_infinity() {
    let sizes = Sizes {
        batch: 1,
        seqlen_q: 2,
        seqlen_k: 1,
        heads_q: 1,
        heads_k: 1,
        head_dim: 2,
        head_dim_v: 2,
    };
    let inputs = Inputs {
        sizes,
        q: &[1.0; 4],
        k: &[1.0; 2],
        v: &[5.0; 2],
        softmax_scale: 1.0,
        visible: &causal(sizes),
        block: None,
        edit: None,
        sinks: None,
        dropout: None,
    };
    assert_eq!(
        forward(&inputs),
        Output {
            o: vec![0.0, 0.0, 5.0, 5.0],
            lse: vec![f64::NEG_INFINITY, 2.0]
        }
    );
    let gradients = backward(&inputs, &[1.0; 4], Some(&[f64::INFINITY, 2.0]));
    // The first row sees nothing; the second sees one key, and its lse is that key's score.
    assert_eq!(gradients.d_q, [0.0, 0.0, 2.0, 2.0]);
    assert_eq!(gradients.d_k, [2.0; 2]);
    assert_eq!(gradients.d_v, [1.0; 2]);
}

#[test]
fn heads_of_a_group_share_their_keys() {
    let sizes = Sizes {
        batch: 1,
        seqlen_q: 1,
        seqlen_k: 1,
        heads_q: 4,
        heads_k: 2,
        head_dim: 1,
        head_dim_v: 1,
    };
    let output = forward(&Inputs {
        sizes,
        q: &[1.0; 4],
        k: &[1.0; 2],
        v: &[7.0, 9.0],
        softmax_scale: 1.0,
        visible: &full,
        block: None,
        edit: None,
        sinks: None,
        dropout: None,
    });
    assert_eq!(output.o, [7.0, 7.0, 9.0, 9.0]);
}

//! o and lse by definition: `P = softmax(q·kᵀ · scale)` over the visible keys, and the head's sink if there is one, `O = P·V` of the keys, where weights are dropped with what is left of P. Scores that are edited have the new ones in their place.

use super::{Edited, Inputs, Pair, ScoreError, add_scaled, dot};

/// What the forward pass gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// Output.
    pub o: Vec<f64>,
    /// Natural logarithm of each row's sum of exponentials; −∞ for a row that sees no key and has no sink.
    pub lse: Vec<f64>,
}

/// One row of P: its log-sum-exp, the weight of its sink, and the visible keys with their weights.
pub(super) struct Weights {
    pub(super) lse: f64,
    pub(super) of_sink: f64,
    pub(super) of_keys: Vec<Weight>,
}

/// An element of P.
pub(super) struct Weight {
    pub(super) key: usize,
    pub(super) p: f64,
    /// What it is multiplied by where it meets its value.
    pub(super) factor: f64,
    /// What became of the score.
    pub(super) edited: Edited,
}

/// Row `i` of P, in batch entry `b` and query head `h`.
pub(super) fn weights(inputs: &Inputs, b: usize, h: usize, i: usize) -> Weights {
    let sizes = inputs.sizes;
    let q = &inputs.q[sizes.query(b, i, h)];
    let scores: Vec<(usize, Edited)> = (0..sizes.seqlen_k)
        .filter(|&j| inputs.sees(b, h, i, j))
        .filter_map(|j| {
            let score = dot(q, &inputs.k[sizes.key(b, j, h)]) * inputs.softmax_scale;
            let pair = Pair {
                batch: b,
                head: h,
                query: i,
                key: j,
            };
            Some((j, edited(inputs, pair, score)?))
        })
        .collect();
    let max = scores
        .iter()
        .map(|(_, edited)| edited.score)
        .fold(inputs.sink(h), f64::max);
    if max == f64::NEG_INFINITY {
        return Weights {
            lse: f64::NEG_INFINITY,
            of_sink: 0.0,
            of_keys: Vec::new(),
        };
    }
    let exponential = |edited: &Edited| (edited.score - max).exp();
    let of_keys: f64 = scores.iter().map(|(_, edited)| exponential(edited)).sum();
    let of_sink = (inputs.sink(h) - max).exp();
    let sum = of_keys + of_sink;
    let of_keys = scores
        .into_iter()
        .map(|(key, edited)| Weight {
            key,
            p: exponential(&edited) / sum,
            factor: inputs.factor(b, h, i, key),
            edited,
        })
        .collect();
    Weights {
        lse: max + sum.ln(),
        of_sink: of_sink / sum,
        of_keys,
    }
}

/// What becomes of the score of a pair that the masks let through. One that is not edited stays, and its error is that of all products.
fn edited(inputs: &Inputs, pair: Pair, score: f64) -> Option<Edited> {
    match inputs.edit {
        Some(edit) => edit(pair, score),
        None => Some(Edited {
            score,
            slope: 1.0,
            slope_size: 1.0,
            error: ScoreError::default(),
        }),
    }
}

/// o and lse.
pub fn forward(inputs: &Inputs) -> Output {
    let sizes = inputs.sizes;
    let mut output = Output {
        o: vec![0.0; sizes.output_elems()],
        lse: vec![f64::NEG_INFINITY; sizes.row_elems()],
    };
    for b in 0..sizes.batch {
        for h in 0..sizes.heads_q {
            for i in 0..sizes.seqlen_q {
                let weights = weights(inputs, b, h, i);
                output.lse[sizes.row(b, h, i)] = weights.lse;
                let o = &mut output.o[sizes.output(b, i, h)];
                for Weight { key, p, factor, .. } in weights.of_keys {
                    add_scaled(o, p * factor, &inputs.v[sizes.value(b, key, h)]);
                }
            }
        }
    }
    output
}

/// P, dense: `[batch, heads_q, seqlen_q, seqlen_k]`.
pub fn probabilities(inputs: &Inputs) -> Vec<f64> {
    let sizes = inputs.sizes;
    let mut dense = vec![0.0; sizes.row_elems() * sizes.seqlen_k];
    for b in 0..sizes.batch {
        for h in 0..sizes.heads_q {
            for i in 0..sizes.seqlen_q {
                let row = sizes.row(b, h, i) * sizes.seqlen_k;
                for Weight { key, p, .. } in weights(inputs, b, h, i).of_keys {
                    dense[row + key] = p;
                }
            }
        }
    }
    dense
}

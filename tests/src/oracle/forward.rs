//! o and lse by definition: `P = softmax(q·kᵀ · scale)` over the visible keys, `O = P·V`.

use super::{Inputs, add_scaled, dot};

/// What the forward pass gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// Output.
    pub o: Vec<f64>,
    /// Natural logarithm of each row's sum of exponentials; −∞ for a row that sees no key.
    pub lse: Vec<f64>,
}

/// One row of P: its log-sum-exp, and the visible keys with their weights.
pub(super) struct Weights {
    pub(super) lse: f64,
    pub(super) of_keys: Vec<(usize, f64)>,
}

/// Row `i` of P, in batch entry `b` and query head `h`.
pub(super) fn weights(inputs: &Inputs, b: usize, h: usize, i: usize) -> Weights {
    let sizes = inputs.sizes;
    let q = &inputs.q[sizes.query(b, i, h)];
    let scores: Vec<(usize, f64)> = (0..sizes.seqlen_k)
        .filter(|&j| inputs.sees(b, h, i, j))
        .map(|j| {
            let score = dot(q, &inputs.k[sizes.key(b, j, h)]);
            (j, score * inputs.softmax_scale)
        })
        .collect();
    let max = scores
        .iter()
        .map(|&(_, score)| score)
        .fold(f64::NEG_INFINITY, f64::max);
    if max == f64::NEG_INFINITY {
        return Weights {
            lse: f64::NEG_INFINITY,
            of_keys: Vec::new(),
        };
    }
    let sum: f64 = scores.iter().map(|&(_, score)| (score - max).exp()).sum();
    let of_keys = scores
        .into_iter()
        .map(|(j, score)| (j, (score - max).exp() / sum))
        .collect();
    Weights {
        lse: max + sum.ln(),
        of_keys,
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
                for (j, p) in weights.of_keys {
                    add_scaled(o, p, &inputs.v[sizes.value(b, j, h)]);
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
                for (j, p) in weights(inputs, b, h, i).of_keys {
                    dense[row + j] = p;
                }
            }
        }
    }
    dense
}

//! The gradient of each score: what the gradient of a tensor that a score reads is a sum of.

use super::forward::weights;
use super::{Inputs, Output, Pair, dot};

/// The gradient of a score as the softmax takes it, behind whatever edits it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PairGradient {
    /// Which one.
    pub pair: Pair,
    /// The score before it was edited.
    pub old: f64,
    /// `p (dP − Δ)`.
    pub d_score: f64,
    /// Size of its terms: `√(e² + p²r² + p²t²)` with `e = p(|dP| + |Δ|)`, and r as in [`Condition`](super::Condition). t is the size of the terms of dP
    /// where their products are rounded, else 0. It counts where these terms cancel and Δ is small, because a sink has nearly all the weight.
    pub size: f64,
    /// What a weight that is lost is multiplied with: `1 + |dP| + |Δ|`.
    pub lost: f64,
}

/// Those of all pairs that have a weight, in their order. Products of elements of 16 bits are exact in f32; those of f32 are not, and are rounded.
pub fn pair_gradients(
    inputs: &Inputs,
    output: &Output,
    d_o: &[f64],
    d_lse: Option<&[f64]>,
    products_are_rounded: bool,
) -> Vec<PairGradient> {
    let sizes = inputs.sizes;
    let mut pairs = Vec::new();
    for batch in 0..sizes.batch {
        for head in 0..sizes.heads_q {
            for query in 0..sizes.seqlen_q {
                let (of_o, of_q) = (
                    sizes.output(batch, query, head),
                    sizes.query(batch, query, head),
                );
                let (o, d_o) = (&output.o[of_o.clone()], &d_o[of_o]);
                let d_lse = d_lse.map_or(0.0, |d_lse| d_lse[sizes.row(batch, head, query)]);
                let row = weights(inputs, batch, head, query).of_keys;
                let values = |key| &inputs.v[sizes.value(batch, key, head)];
                let mean: f64 = row
                    .iter()
                    .map(|weight| weight.p * weight.factor * dot(d_o, values(weight.key)))
                    .sum();
                let delta = mean - d_lse;
                let squares = d_o.iter().enumerate().map(|(c, d_o)| {
                    let terms = row.iter().map(|weight| {
                        let v = values(weight.key)[c] * weight.factor;
                        (weight.p * (v.abs() + o[c].abs())).powi(2)
                    });
                    (d_o * (o[c].abs() + terms.sum::<f64>().sqrt())).powi(2)
                });
                let terms_of_delta = squares.sum::<f64>().sqrt();
                pairs.extend(row.iter().map(|weight| {
                    let d_p = weight.factor * dot(d_o, values(weight.key));
                    let factor = d_p.abs() + delta.abs();
                    let terms_of_d_p = if products_are_rounded {
                        let terms = d_o.iter().zip(values(weight.key));
                        weight.factor * terms.map(|(d_o, v)| (d_o * v).powi(2)).sum::<f64>().sqrt()
                    } else {
                        0.0
                    };
                    let key = &inputs.k[sizes.key(batch, weight.key, head)];
                    PairGradient {
                        pair: Pair {
                            batch,
                            head,
                            query,
                            key: weight.key,
                        },
                        old: dot(&inputs.q[of_q.clone()], key) * inputs.softmax_scale,
                        d_score: weight.p * (d_p - delta),
                        size: weight.p * factor.hypot(terms_of_delta).hypot(terms_of_d_p),
                        lost: 1.0 + factor,
                    }
                }));
            }
        }
    }
    pairs
}

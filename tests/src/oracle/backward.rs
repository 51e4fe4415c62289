//! Gradients by the chain rule through the definition: `dV = Pᵀ·dO`, `dP = dO·Vᵀ`,
//! `dS = P ∘ (dP − rowsum(P ∘ dP) + dL)`, `dQ = dS·K · scale`, `dK = dSᵀ·Q · scale`. The derivative of a row's lse by one of
//! its scores is the score's weight, so that dL, the gradient of lse, enters as if every dP of its row were larger by it. dS of a score that is
//! edited is multiplied by the derivative of the new score by the old one. Where weights are dropped, dV takes what is left of P, and dP is multiplied
//! by what its weight was. A sink is a score like the others, of which dP is 0, in every row of its head.

use super::forward::weights;
use super::{Inputs, add_scaled, dot};

/// What the backward pass gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradients {
    /// Gradient of the queries.
    pub d_q: Vec<f64>,
    /// Gradient of the keys.
    pub d_k: Vec<f64>,
    /// Gradient of the values.
    pub d_v: Vec<f64>,
    /// Gradient of the sinks, one for each head of q; empty where there are none.
    pub d_sinks: Vec<f64>,
}

/// The gradients of `Σ o ∘ d_o + Σ lse ∘ d_lse` with respect to q, k, v and the sinks; a row whose lse is −∞ has no part in the
/// second sum.
pub fn backward(inputs: &Inputs, d_o: &[f64], d_lse: Option<&[f64]>) -> Gradients {
    let sizes = inputs.sizes;
    let mut gradients = Gradients {
        d_q: vec![0.0; sizes.query_elems()],
        d_k: vec![0.0; sizes.key_elems()],
        d_v: vec![0.0; sizes.value_elems()],
        d_sinks: vec![0.0; inputs.sinks.map_or(0, <[f64]>::len)],
    };
    for b in 0..sizes.batch {
        for h in 0..sizes.heads_q {
            for i in 0..sizes.seqlen_q {
                let d_lse = d_lse.map_or(0.0, |d_lse| d_lse[sizes.row(b, h, i)]);
                add_row(&mut gradients, inputs, (d_o, d_lse), (b, h, i));
            }
        }
    }
    gradients
}

/// What row `i` of P, in batch entry `b` and query head `h`, contributes to the gradients.
fn add_row(
    gradients: &mut Gradients,
    inputs: &Inputs,
    (d_o, d_lse): (&[f64], f64),
    (b, h, i): (usize, usize, usize),
) {
    let sizes = inputs.sizes;
    let weights = weights(inputs, b, h, i);
    let row = weights.of_keys;
    let query = sizes.query(b, i, h);
    let (key, value) = (|j| sizes.key(b, j, h), |j| sizes.value(b, j, h));
    let d_o = &d_o[sizes.output(b, i, h)];
    let d_p: Vec<f64> = row
        .iter()
        .map(|weight| weight.factor * dot(d_o, &inputs.v[value(weight.key)]))
        .collect();
    let mean: f64 = row
        .iter()
        .zip(&d_p)
        .map(|(weight, d_p)| weight.p * d_p)
        .sum();
    if weights.of_sink > 0.0 {
        gradients.d_sinks[h] += weights.of_sink * (d_lse - mean);
    }
    for (weight, d_p) in row.iter().zip(&d_p) {
        let (j, p) = (weight.key, weight.p);
        let d_s = p * (d_p - mean + d_lse) * weight.edited.slope * inputs.softmax_scale;
        add_scaled(&mut gradients.d_v[value(j)], p * weight.factor, d_o);
        add_scaled(&mut gradients.d_q[query.clone()], d_s, &inputs.k[key(j)]);
        add_scaled(&mut gradients.d_k[key(j)], d_s, &inputs.q[query.clone()]);
    }
}

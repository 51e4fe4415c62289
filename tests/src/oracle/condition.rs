//! How large the terms of each result are: what the roundings of an honest computation scale with.
//!
//! A result is a sum of terms, each of which is rounded once or twice to the element type (P and dS before they enter
//! a product) and carries the f32 error of its score. These errors are as good as independent, so they add up like
//! the root of the sum of the squares of the terms; that number is worked out here for every element of o, d_q, d_k
//! and d_v. What is not independent is treated as such: the error of Δ, which all of a row's terms share.

use super::forward::weights;
use super::{Inputs, Output, dot};

/// The size of the terms behind every element of the results, in the results' layout.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    /// `√Σⱼ p²(|v| + |o|)²`.
    pub o: Vec<f64>,
    /// `scale · (√Σⱼ e²k² + r·|Σⱼ p·k|)`, where `e = p(|dP| + |Δ|)` and `r` is the size of the terms of Δ.
    pub d_q: Vec<f64>,
    /// `scale · √Σᵢ (e² + p²r²)q²`.
    pub d_k: Vec<f64>,
    /// `√Σᵢ p²dO²`.
    pub d_v: Vec<f64>,
    /// `max |q|·|k| · scale`: no score and no rounding of a score is larger than what this number says.
    pub score: f64,
}

/// The condition of a problem whose results are `output`.
pub fn condition(inputs: &Inputs, output: &Output, d_o: &[f64]) -> Condition {
    let sizes = inputs.sizes;
    let longest =
        |rows: &[f64]| rows.chunks_exact(sizes.head_dim.max(1)).map(|row| dot(row, row)).fold(0.0, f64::max).sqrt();
    let mut condition = Condition {
        o: vec![0.0; sizes.query_elems()],
        d_q: vec![0.0; sizes.query_elems()],
        d_k: vec![0.0; sizes.key_elems()],
        d_v: vec![0.0; sizes.key_elems()],
        score: longest(inputs.q) * longest(inputs.k) * inputs.softmax_scale,
    };
    for b in 0..sizes.batch {
        for h in 0..sizes.heads_q {
            for i in 0..sizes.seqlen_q {
                add_row(&mut condition, inputs, output, d_o, (b, h, i));
            }
        }
    }
    for sum in condition.d_k.iter_mut() {
        *sum = sum.sqrt() * inputs.softmax_scale;
    }
    for sum in condition.d_v.iter_mut() {
        *sum = sum.sqrt();
    }
    condition
}

/// Row `i` of P, in batch entry `b` and query head `h`: finishes o and d_q, adds squares to d_k and d_v.
fn add_row(condition: &mut Condition, inputs: &Inputs, output: &Output, d_o: &[f64], (b, h, i): (usize, usize, usize)) {
    let sizes = inputs.sizes;
    let row = weights(inputs, b, h, i).of_keys;
    let at_query = sizes.query(b, i, h);
    let query = at_query..at_query + sizes.head_dim;
    let key = |j| {
        let at_key = sizes.key(b, j, h);
        at_key..at_key + sizes.head_dim
    };
    let (q, o, d_o) = (&inputs.q[query.clone()], &output.o[query.clone()], &d_o[query.clone()]);

    let condition_o = &mut condition.o[query.clone()];
    for &(j, p) in &row {
        for ((sum, v), o) in condition_o.iter_mut().zip(&inputs.v[key(j)]).zip(o) {
            *sum += (p * (v.abs() + o.abs())).powi(2);
        }
    }
    for sum in condition_o.iter_mut() {
        *sum = sum.sqrt();
    }

    let delta = dot(o, d_o);
    let terms_of_delta = d_o
        .iter()
        .zip(o)
        .zip(&*condition_o)
        .map(|((d_o, o), terms)| (d_o * (o.abs() + terms)).powi(2))
        .sum::<f64>()
        .sqrt();
    let mut squares = vec![0.0; sizes.head_dim];
    let mut mean_key = vec![0.0; sizes.head_dim];
    for &(j, p) in &row {
        let error = p * (dot(d_o, &inputs.v[key(j)]).abs() + delta.abs());
        let of_key = error.powi(2) + (p * terms_of_delta).powi(2);
        for (c, k) in inputs.k[key(j)].iter().enumerate() {
            squares[c] += (error * k).powi(2);
            mean_key[c] += p * k;
        }
        for (sum, q) in condition.d_k[key(j)].iter_mut().zip(q) {
            *sum += of_key * q.powi(2);
        }
        for (sum, d_o) in condition.d_v[key(j)].iter_mut().zip(d_o) {
            *sum += (p * d_o).powi(2);
        }
    }
    for ((result, squares), mean_key) in condition.d_q[query].iter_mut().zip(squares).zip(mean_key) {
        *result = inputs.softmax_scale * (squares.sqrt() + terms_of_delta * mean_key.abs());
    }
}

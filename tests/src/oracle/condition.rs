//! How large the terms of each result are: what the roundings of an honest computation scale with.
//!
//! A result is a sum of terms, each of which is rounded once or twice to the element type (P and dS before they enter
//! a product) and carries the f32 error of its score. These errors are as good as independent, so they add up like
//! the root of the sum of the squares of the terms; that number is worked out here for every element of o, d_q, d_k
//! and d_v. What is not independent is treated as such: the error of Δ, which all of a row's terms share.
//!
//! Where an element type ends early (f16), small weights and small dS are not rounded but lost: an error of the same
//! absolute size in every term, whatever the weight. What it is multiplied with is worked out beside it.
//!
//! Where weights are dropped, values, dP and dO are multiplied by what a weight is.
//!
//! Where scores are edited, dP, Δ and the errors of both are multiplied by the derivative of the new score by the old one; or P is, before it is rounded
//! once more.

use std::ops::Range;

use super::forward::weights;
use super::{Inputs, Output, ScoreError, add_scaled, dot, sum_over};

/// What the errors of one result's elements scale with, in the result's layout.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Terms {
    /// Errors that are a share of a weight.
    pub relative: Vec<f64>,
    /// Errors that are the same for every weight.
    pub absolute: Vec<f64>,
}

/// The size of the terms behind every element of the results.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    /// `√Σⱼ p²(|v| + |o|)²`; absolute: `√Σⱼ v²`.
    pub o: Terms,
    /// `scale · (√Σⱼ e²k² + r·|Σⱼ p·k|)`, where `e = p·√((|dP| + |Δ|)² + t²)`, `Δ = rowsum(dO ∘ O) − dL` with the gradient dL of lse,
    /// `t` is the size of the terms of `dP = dO·v`, and `r` that of the terms of `rowsum(dO ∘ O)`; absolute:
    /// `scale · √Σⱼ (1 + |dP| + |Δ|)²k²`.
    pub d_q: Terms,
    /// `scale · √Σᵢ (e² + p²r²)q²`; absolute: `scale · √Σᵢ (1 + |dP| + |Δ|)²q²`.
    pub d_k: Terms,
    /// `√Σᵢ p²dO²`; absolute: `√Σᵢ dO²`.
    pub d_v: Terms,
    /// `√Σ w²(r² + Δ²)` over all rows of a head, of which its sink has the weight w; absolute: `√Σ w²|dO|²`.
    pub d_sinks: Terms,
    /// What a score may be off: that of `max |q|·|k| · scale`, or where scores are edited that of the worst new one.
    pub score: ScoreError,
}

impl Terms {
    /// The same terms for `n` elements.
    pub fn uniform(n: usize, relative: f64, absolute: f64) -> Terms {
        Terms {
            relative: vec![relative; n],
            absolute: vec![absolute; n],
        }
    }

    /// Puts the terms of some elements in their place, from `first` on.
    pub fn put(&mut self, first: usize, of: &Terms) {
        self.relative[first..first + of.relative.len()].copy_from_slice(&of.relative);
        self.absolute[first..first + of.absolute.len()].copy_from_slice(&of.absolute);
    }

    /// Adds other terms to the sums that these stand for.
    pub fn add(&mut self, other: &Terms) {
        let ours = self.relative.iter_mut().chain(&mut self.absolute);
        let theirs = other.relative.iter().chain(&other.absolute);
        ours.zip(theirs)
            .for_each(|(ours, theirs)| *ours = ours.hypot(*theirs));
    }

    /// Those of some elements: relative and absolute ones.
    fn of(&mut self, elements: Range<usize>) -> [&mut [f64]; 2] {
        [
            &mut self.relative[elements.clone()],
            &mut self.absolute[elements],
        ]
    }

    fn zero(n: usize) -> Terms {
        Terms::uniform(n, 0.0, 0.0)
    }

    /// Makes sums of squares what they are to be: their roots, times a factor.
    fn finish(&mut self, factor: f64) {
        self.relative
            .iter_mut()
            .chain(&mut self.absolute)
            .for_each(|sum| *sum = sum.sqrt() * factor);
    }
}

/// The condition of a problem whose results are `output`.
pub fn condition(
    inputs: &Inputs,
    output: &Output,
    d_o: &[f64],
    d_lse: Option<&[f64]>,
) -> Condition {
    let sizes = inputs.sizes;
    let mut condition = Condition {
        o: Terms::zero(sizes.output_elems()),
        d_q: Terms::zero(sizes.query_elems()),
        d_k: Terms::zero(sizes.key_elems()),
        d_v: Terms::zero(sizes.value_elems()),
        d_sinks: Terms::zero(inputs.sinks.map_or(0, <[f64]>::len)),
        score: match inputs.edit {
            Some(_) => ScoreError::default(),
            None => inputs.product_error(),
        },
    };
    for b in 0..sizes.batch {
        for h in 0..sizes.heads_q {
            for i in 0..sizes.seqlen_q {
                let d_lse = d_lse.map_or(0.0, |d_lse| d_lse[sizes.row(b, h, i)]);
                add_row(&mut condition, inputs, output, (d_o, d_lse), (b, h, i));
            }
        }
    }
    condition.d_k.finish(inputs.softmax_scale);
    condition.d_v.finish(1.0);
    condition.d_sinks.finish(1.0);
    condition
}

/// Row `i` of P, in batch entry `b` and query head `h`: finishes o and d_q, adds squares to d_k and d_v.
fn add_row(
    condition: &mut Condition,
    inputs: &Inputs,
    output: &Output,
    (d_o, d_lse): (&[f64], f64),
    (b, h, i): (usize, usize, usize),
) {
    let sizes = inputs.sizes;
    let weights = weights(inputs, b, h, i);
    let row = weights.of_keys;
    let (query, of_o) = (sizes.query(b, i, h), sizes.output(b, i, h));
    let (key, value) = (|j| sizes.key(b, j, h), |j| sizes.value(b, j, h));
    let (q, o, d_o) = (
        &inputs.q[query.clone()],
        &output.o[of_o.clone()],
        &d_o[of_o.clone()],
    );

    let (o_relative, o_absolute) = (
        &mut condition.o.relative[of_o.clone()],
        &mut condition.o.absolute[of_o],
    );
    for weight in &row {
        let (j, p) = (weight.key, weight.p);
        condition.score = condition.score.max(weight.edited.error);
        let v = &inputs.v[value(j)];
        let sums = o_relative.iter_mut().zip(&mut *o_absolute);
        for (((relative, absolute), v), o) in sums.zip(v).zip(o) {
            let value = v * weight.factor;
            *relative += (p * (value.abs() + o.abs())).powi(2);
            *absolute += value * value;
        }
    }
    o_relative
        .iter_mut()
        .chain(o_absolute)
        .for_each(|sum| *sum = sum.sqrt());

    let delta = dot(o, d_o) - d_lse;
    let terms_of_o = o.iter().zip(&*o_relative);
    let terms_of_o: Vec<f64> = terms_of_o.map(|(o, terms)| o.abs() + terms).collect();
    let terms_of_delta = size_of_terms(d_o, &terms_of_o);
    if weights.of_sink > 0.0 {
        let of_sink = weights.of_sink.powi(2);
        let of_row = terms_of_delta.powi(2) + delta.powi(2);
        condition.d_sinks.relative[h] += of_sink * of_row;
        condition.d_sinks.absolute[h] += of_sink * dot(d_o, d_o);
    }
    let (mut relative, mut absolute) = (vec![0.0; sizes.head_dim], vec![0.0; sizes.head_dim]);
    let mut mean_key = vec![0.0; sizes.head_dim];
    for weight in &row {
        let (j, p, slope) = (weight.key, weight.p, weight.edited.slope_size);
        let d_p = weight.factor * dot(d_o, &inputs.v[value(j)]);
        let terms_of_d_p = weight.factor * size_of_terms(d_o, &inputs.v[value(j)]);
        let factor = (d_p.abs() + delta.abs()).hypot(terms_of_d_p);
        // P is lost before it meets the derivative, or after.
        let lost = 1.0 + factor * slope.max(1.0);
        let factor = factor * slope;
        let of_key = (p * factor).hypot(p * terms_of_delta * slope);
        let k = &inputs.k[key(j)];
        add_squares([&mut relative, &mut absolute], [p * factor, lost], k);
        add_scaled(&mut mean_key, p * weight.edited.slope, k);
        add_squares(condition.d_k.of(key(j)), [of_key, lost], q);
        let of_value = [p * weight.factor, weight.factor];
        add_squares(condition.d_v.of(value(j)), of_value, d_o);
    }
    for (c, at) in query.enumerate() {
        let shared = terms_of_delta * mean_key[c].abs();
        condition.d_q.relative[at] = inputs.softmax_scale * (relative[c].sqrt() + shared);
        condition.d_q.absolute[at] = inputs.softmax_scale * absolute[c].sqrt();
    }
}

/// Adds the squares of a vector's elements times each of two factors.
fn add_squares(sums: [&mut [f64]; 2], factors: [f64; 2], of: &[f64]) {
    let [first, second] = factors.map(|factor| factor * factor);
    let [firsts, seconds] = sums;
    for ((x, to_first), to_second) in of.iter().zip(firsts).zip(seconds) {
        let square = x * x;
        *to_first += first * square;
        *to_second += second * square;
    }
}

/// The size of the terms of a product of vectors.
fn size_of_terms(a: &[f64], b: &[f64]) -> f64 {
    sum_over(a, b, |a, b| (a * b) * (a * b)).sqrt()
}

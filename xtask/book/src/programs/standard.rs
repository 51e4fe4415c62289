//! Attention by its definition.

use super::{Attended, Head, add, greatest};

// ANCHOR: program
/// O = softmax(scale · Q Kᵀ) V, and L: three steps, with S and P in memory between
/// them.
pub fn standard<const D: usize>(head: &Head<D>) -> Attended<D> {
    // S = scale · Q Kᵀ
    let rows = 0..head.q.len();
    let s: Vec<Vec<f64>> = rows.map(|i| head.scores(i, 0..head.k.len())).collect();
    // P = softmax(S), row by row
    let lse: Vec<f64> = s.iter().map(|s| log_sum_exp(s)).collect();
    let weights = |(s, l): (&Vec<f64>, &f64)| s.iter().map(|s| (s - l).exp()).collect();
    let p: Vec<Vec<f64>> = s.iter().zip(&lse).map(weights).collect();
    // O = P V
    let mut o = vec![[0.0; D]; head.q.len()];
    for (o, p) in o.iter_mut().zip(&p) {
        for (p, v) in p.iter().zip(head.v) {
            add(o, *p, v);
        }
    }
    (o, lse)
}

/// log Σ exp(s). No exponent is greater than 0, so none overflows.
pub fn log_sum_exp(s: &[f64]) -> f64 {
    let m = greatest(s);
    m + s.iter().map(|s| (s - m).exp()).sum::<f64>().ln()
}
// ANCHOR_END: program

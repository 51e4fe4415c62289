//! Numbers of 8 bits, and attention with them.

use super::{Attended, Head, Row, add, greatest};

// ANCHOR: formats
/// A format of floating-point numbers: bits of its mantissa, its least exponent, its
/// greatest number.
#[derive(Clone, Copy, Debug)]
pub struct Format(pub i32, pub i32, pub f64);

/// Four bits of exponent, three of mantissa.
pub const E4M3: Format = Format(3, -6, 448.0);
/// Five bits of exponent, two of mantissa.
pub const E5M2: Format = Format(2, -14, 57344.0);

impl Format {
    /// The nearest number that the format has; the greatest one in place of what it has
    /// no room for.
    pub fn round(self, x: f64) -> f64 {
        let Format(mantissa, least_exponent, greatest) = self;
        let exponent = (x.abs().log2().floor() as i32).max(least_exponent);
        let step = 2f64.powi(exponent - mantissa);
        ((x / step).round_ties_even() * step).clamp(-greatest, greatest)
    }

    /// A tensor whose greatest element becomes the format's greatest number, rounded,
    /// and scaled back.
    pub fn round_tensor<const D: usize>(self, x: &[Row<D>]) -> Vec<Row<D>> {
        let most = greatest(&x.as_flattened().iter().map(|x| x.abs()).collect::<Vec<_>>());
        let scale = most / self.2;
        x.iter()
            .map(|row| row.map(|x| scale * self.round(x / scale)))
            .collect()
    }
}
// ANCHOR_END: formats

// ANCHOR: attention
/// Attention whose weights are rounded to a format before they meet V: exp(s − m) ·
/// `unit` is, with m the row's maximum.
pub fn with_rounded_weights<const D: usize>(
    head: &Head<D>,
    format: Format,
    unit: f64,
) -> Attended<D> {
    let (mut all_o, mut lse) = (Vec::new(), Vec::new());
    for i in 0..head.q.len() {
        let s = head.scores(i, 0..head.k.len());
        let m = greatest(&s);
        let (mut o, mut l) = ([0.0; D], 0.0);
        for (s, v) in s.iter().zip(head.v) {
            let p = (s - m).exp();
            l += p; // the sum is not rounded
            add(&mut o, format.round(p * unit) / unit, v);
        }
        all_o.push(o.map(|o| o / l));
        lse.push(m + l.ln());
    }
    (all_o, lse)
}
// ANCHOR_END: attention

// ANCHOR: rotate
/// Rows turned by one orthogonal matrix: signs, then a Hadamard transform. D is a power
/// of 2. Products of two turned rows are what they were.
pub fn rotate<const D: usize>(x: &[Row<D>], signs: &Row<D>) -> Vec<Row<D>> {
    let turn = |row: &Row<D>| {
        let mut row = std::array::from_fn(|at| row[at] * signs[at] / (D as f64).sqrt());
        for half in (0..D.ilog2()).map(|bit| 1 << bit) {
            for at in (0..D).filter(|at| at & half == 0) {
                (row[at], row[at + half]) = (row[at] + row[at + half], row[at] - row[at + half]);
            }
        }
        row
    };
    x.iter().map(turn).collect()
}
// ANCHOR_END: rotate

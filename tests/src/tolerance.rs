//! How far a result may lie from the oracle's: one table, one rule.
//!
//! For each element, with `u` the half unit in the last place of the result's type relative to 1, `terms` the size of
//! the terms behind the element ([`oracle::Condition`](crate::oracle::Condition)) and `score` the largest that a
//! score can be,
//!
//! ```text
//! |out − ref| ≤ u·(relative·|ref| + rounding·terms) + 2⁻²⁴·statistics·(1 + score)·terms + underflow
//! ```
//!
//! and over the whole tensor the root mean square of the error may be at most `rms` of the root mean square of what
//! is allowed. A result whose reference is exactly 0 and that has no terms (a row that sees no key) must be exactly 0,
//! and an lse of −∞ must be −∞.
//!
//! The rule follows single elements: with 512 keys, one key too many or too few is far outside it. Rules that compare
//! the largest error of a tensor with twice or three times that of another low-precision run let that pass.

use ferroflash::Dtype;

/// One of the tensors that a backend computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Output of the forward pass.
    O,
    /// Statistics of the forward pass.
    Lse,
    /// Gradient of the queries.
    DQ,
    /// Gradient of the keys.
    DK,
    /// Gradient of the values.
    DV,
}

/// What is allowed of one quantity in one type; the module's documentation has the rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// The final rounding, and sums in f32 where the result is f32.
    pub relative: f64,
    /// Roundings of the terms to the element type.
    pub rounding: f64,
    /// Errors of the f32 scores and of the exponentials of their differences.
    pub statistics: f64,
    /// The root mean square of the error, as a part of that of what is allowed.
    pub rms: f64,
}

/// The table. A factor of 1 in `relative` is one correct rounding; the other factors are multiples of the standard
/// deviation that independent roundings would have.
pub fn tolerance(quantity: Quantity, dtype: Dtype) -> Tolerance {
    use Quantity::*;
    match (quantity, dtype) {
        // f32 whatever the inputs are: a dot product, a maximum, a sum of exponentials, a logarithm. About 1e-5.
        (Lse, _) => Tolerance { relative: 2.0, rounding: 8.0, statistics: 8.0, rms: 0.4 },
        // P is rounded once before it meets V, the sum is in f32, o is rounded once.
        (O, Dtype::Bf16 | Dtype::F16) => Tolerance { relative: 1.0, rounding: 3.0, statistics: 4.0, rms: 0.4 },
        // P, recomputed from the lse, is rounded once before it meets dO.
        (DV, Dtype::Bf16 | Dtype::F16) => Tolerance { relative: 1.0, rounding: 3.0, statistics: 8.0, rms: 0.4 },
        // dS is rounded once, or twice where P was, and Δ comes from an o that was rounded.
        (DQ | DK, Dtype::Bf16 | Dtype::F16) => Tolerance { relative: 1.0, rounding: 4.0, statistics: 8.0, rms: 0.4 },
        // Nothing is rounded to less than f32; sums of some hundred terms lose a few units in the last place.
        (O, Dtype::F32) => Tolerance { relative: 8.0, rounding: 8.0, statistics: 4.0, rms: 0.4 },
        (DQ | DK | DV, Dtype::F32) => Tolerance { relative: 8.0, rounding: 16.0, statistics: 8.0, rms: 0.4 },
    }
}

/// What the error of one tensor is measured against.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// The largest that a score can be.
    pub score: f64,
    /// The largest element of the operand that the terms multiply, and the factor behind them.
    pub operand: f64,
    /// Number of terms of an element.
    pub n_terms: usize,
}

impl Tolerance {
    /// The largest allowed error of one element.
    pub fn of_element(&self, quantity: Quantity, dtype: Dtype, reference: f64, terms: f64, scale: Scale) -> f64 {
        let f32_unit = 2f64.powi(-24);
        // Below the smallest number of a type nothing is left: 2⁻²⁴ in f16; in the other types exponentials below 2⁻¹²⁶
        // are lost, and operands that they are multiplied with stay below 2²⁶.
        let (unit, smallest) = match (quantity, dtype) {
            (Quantity::Lse, _) | (_, Dtype::F32) => (f32_unit, 2f64.powi(-100)),
            (_, Dtype::Bf16) => (2f64.powi(-8), 2f64.powi(-100)),
            (_, Dtype::F16) => (2f64.powi(-11), 2f64.powi(-24)),
        };
        let underflow = smallest * (1.0 + (scale.n_terms as f64).sqrt() * scale.operand);
        unit * (self.relative * reference.abs() + self.rounding * terms)
            + f32_unit * self.statistics * (1.0 + scale.score) * terms
            + underflow
    }
}

//! How far a result may lie from the oracle's: one table, one rule.
//!
//! For each element, with `u` the half unit in the last place of the operands' type relative to 1 ([`Arithmetic`]), `u_s` that of the
//! type in which scores are, f32 or tf32, `terms` and `factors` the size of the terms behind the element and of what their weights are multiplied with
//! ([`oracle::Terms`](crate::oracle::Terms)), `score` the largest that a score can be and `approximation` what approximate functions in a
//! score of the user's own may change it by,
//!
//! ```text
//! |out − ref| ≤ u·(relative·|ref| + rounding·terms) + u_s·statistics·(1 + score)·terms + smallest·(1 + factors)
//!               + approximate·approximation·terms
//! ```
//!
//! Where scores are edited, the error of the worst new score in units of 2⁻²⁴ stands in place of `1 + score`
//! ([`ScoreError`]).
//!
//! and over a whole tensor of `n` elements the root mean square of the error may be at most `rms + 1/√n`, or 1, of the
//! root mean square of what is allowed. A result whose reference is exactly 0 and that has no terms (a row that sees no
//! key) must be exactly 0, and an lse of −∞ must be −∞.
//!
//! The rule follows single elements: with 512 keys, one key too many or too few is far outside it. Rules that compare
//! the largest error of a tensor with twice or three times that of another low-precision run let that pass.

use ferroflash::{Backend, Dtype, Precision};

use crate::oracle::ScoreError;

/// One of the tensors that a backend computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Output of the forward pass.
    O,
    /// Statistics of the forward pass.
    Lse,
    /// Softmax of the scores, where the forward pass gives it.
    Weights,
    /// Gradient of the queries.
    DQ,
    /// Gradient of the keys.
    DK,
    /// Gradient of the values.
    DV,
    /// Gradient of the sinks.
    DSinks,
    /// Gradient of a tensor that a score reads.
    DScoreTensor,
}

/// What the operands of products are rounded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// bf16, as the tensors are.
    Bf16,
    /// f16, as the tensors are.
    F16,
    /// f32, as the tensors are.
    F32,
    /// tf32; tensors and results are f32.
    Tf32,
    /// e4m3, as q, k and v are, by tensor cores, which cut sums of products to 14 bits: docs/src/fp8.md says how. o has this type.
    E4m3(Dtype),
}

impl Arithmetic {
    /// That of tensors of this type on this backend.
    pub fn on(backend: Backend, dtype: Dtype, precision: Precision) -> Arithmetic {
        match dtype {
            Dtype::F32 if backend != Backend::Cpu && precision == Precision::Tensor => {
                Arithmetic::Tf32
            }
            other => other.into(),
        }
    }

    /// Half of the unit in the last place, relative to 1.
    fn unit(self) -> f64 {
        match self {
            Arithmetic::Bf16 => 2f64.powi(-8),
            Arithmetic::F16 | Arithmetic::Tf32 => 2f64.powi(-11),
            Arithmetic::F32 => F32_UNIT,
            Arithmetic::E4m3(_) => 2f64.powi(-4),
        }
    }
}

/// One rounding to f32.
const F32_UNIT: f64 = 1.0 / (1u64 << 24) as f64;

/// Products of numbers as they are.
impl From<Dtype> for Arithmetic {
    fn from(dtype: Dtype) -> Arithmetic {
        match dtype {
            Dtype::Bf16 => Arithmetic::Bf16,
            Dtype::F16 => Arithmetic::F16,
            Dtype::F32 => Arithmetic::F32,
        }
    }
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
    /// Errors of approximate functions in the scores.
    pub approximate: f64,
    /// The root mean square of the error, as a part of that of what is allowed.
    pub rms: f64,
}

/// The table. Approximate functions change a score s by at most E, whatever the other scores are. lse, a mean of the scores as to such changes, then
/// moves by at most E, and a weight by the factor `exp(±2E)` at most: by `E` for its own score, by `E` for the sum. A gradient has a weight
/// twice, in dS and in Δ.
///
/// A factor of 1 in `relative` is one correct rounding; the other factors are multiples of the standard
/// deviation that independent roundings would have.
pub fn tolerance(quantity: Quantity, arithmetic: Arithmetic) -> Tolerance {
    use Quantity::*;
    match (quantity, arithmetic) {
        (quantity, Arithmetic::Tf32) => of_tf32(quantity),
        // f32 whatever the inputs are: a dot product, a maximum, a sum of exponentials, a logarithm. About 1e-5.
        // Tensor cores cut their sums off instead of rounding them: errors share a sign, and their root mean square
        // may be as large as they are. So do the products of a fill, which are of one sign and one size: a score of −2048 that is a sum of
        // 128 of them can lie 13 units off.
        (Lse, _) => Tolerance {
            relative: 2.0,
            rounding: 8.0,
            statistics: 16.0,
            approximate: 1.0,
            rms: 1.0,
        },
        // Chosen rows, f32 whatever the inputs are: nothing but the score's own error and that of the row's sum, each as large as
        // that of an lse may be where all products are of one sign.
        (Weights, Arithmetic::F32) => Tolerance {
            relative: 4.0,
            rounding: 0.1,
            statistics: 16.0,
            approximate: 2.0,
            rms: 0.6,
        },
        // One exponential, one division by the row's sum, one rounding.
        (Weights, _) => Tolerance {
            relative: 1.0,
            rounding: 0.1,
            statistics: 8.0,
            approximate: 2.0,
            rms: 0.6,
        },
        // P is rounded once before it meets V, the sum is in f32, o is rounded once.
        (O, Arithmetic::Bf16 | Arithmetic::F16) => Tolerance {
            relative: 1.0,
            rounding: 3.0,
            statistics: 4.0,
            approximate: 2.0,
            rms: 0.3,
        },
        // P is rounded once before it meets V, the sum is in f32, o is rounded once, to another type. What is least of P is lost in groups, which one error of
        // a term does not show.
        (O, Arithmetic::E4m3(_)) => Tolerance {
            relative: 1.0 / 16.0,
            rounding: 3.0,
            statistics: 4.0,
            approximate: 2.0,
            rms: 0.3,
        },
        (DQ | DK | DV | DScoreTensor, Arithmetic::E4m3(_)) => {
            unreachable!("there is no such backward pass")
        }
        // P, recomputed from the lse, is rounded once before it meets dO. Where all scores are equal, all of a row's weights err alike.
        (DV, Arithmetic::Bf16 | Arithmetic::F16) => Tolerance {
            relative: 2.0,
            rounding: 3.0,
            statistics: 8.0,
            approximate: 4.0,
            rms: 0.3,
        },
        // dS is rounded once, or twice where P was, and Δ comes from an o that was rounded. Where all scores are equal and an lse's gradient is all that
        // counts, all dS of a row err alike.
        (DQ | DK, Arithmetic::Bf16 | Arithmetic::F16) => Tolerance {
            relative: 3.0,
            rounding: 4.0,
            statistics: 8.0,
            approximate: 4.0,
            rms: 0.3,
        },
        // P is not rounded, but Δ comes from an o that was; a sum in f32, rounded once.
        (DScoreTensor, Arithmetic::Bf16 | Arithmetic::F16) => Tolerance {
            relative: 1.0,
            rounding: 4.0,
            statistics: 8.0,
            approximate: 4.0,
            rms: 0.3,
        },
        // A sum in f32 over all rows of a head; Δ comes from an o that was rounded.
        (DSinks, _) => Tolerance {
            relative: 0.02,
            rounding: 4.0,
            statistics: 8.0,
            approximate: 4.0,
            rms: 0.3,
        },
        // Nothing is rounded to less than f32; sums of some hundred terms lose a few units in the last place.
        (O, Arithmetic::F32) => Tolerance {
            relative: 8.0,
            rounding: 8.0,
            statistics: 4.0,
            approximate: 2.0,
            rms: 0.3,
        },
        (DQ | DK | DV | DScoreTensor, Arithmetic::F32) => Tolerance {
            relative: 8.0,
            rounding: 16.0,
            statistics: 8.0,
            approximate: 4.0,
            rms: 0.3,
        },
    }
}

/// Of tf32: elements of q and k are rounded by half a unit each, so a score is off by 2 u_s of |q|·|k| at most.
fn of_tf32(quantity: Quantity) -> Tolerance {
    match quantity {
        // Sums as of other types.
        Quantity::Lse => Tolerance {
            relative: 2.0,
            rounding: 8.0,
            statistics: 2.0,
            approximate: 1.0,
            rms: 1.0,
        },
        // P and V are rounded once each, and o is not.
        Quantity::O | Quantity::Weights => Tolerance {
            relative: 1.0,
            rounding: 4.0,
            statistics: 2.0,
            approximate: 2.0,
            rms: 0.3,
        },
        // P, from a score and an lse that are both off, and dO are rounded once each.
        Quantity::DV => Tolerance {
            relative: 1.0,
            rounding: 4.0,
            statistics: 4.0,
            approximate: 4.0,
            rms: 0.3,
        },
        // So are dO and V before dP is a sum of their products, dS, and k or q; Δ comes from an o that is off.
        Quantity::DQ | Quantity::DK | Quantity::DSinks | Quantity::DScoreTensor => Tolerance {
            relative: 1.0,
            rounding: 6.0,
            statistics: 4.0,
            approximate: 4.0,
            rms: 0.3,
        },
    }
}

/// What the error of one element is measured against.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Element {
    /// What the oracle says it is.
    pub reference: f64,
    /// Size of its terms: [`oracle::Terms::relative`](crate::oracle::Terms::relative).
    pub relative: f64,
    /// Size of their factors: [`oracle::Terms::absolute`](crate::oracle::Terms::absolute).
    pub absolute: f64,
    /// What a score may be off.
    pub score: ScoreError,
}

impl Tolerance {
    /// The largest allowed error of one element.
    pub fn of_element(&self, quantity: Quantity, arithmetic: Arithmetic, element: Element) -> f64 {
        // Below the smallest number of a type weights are lost: at 2⁻²⁴ in f16, of which 2⁻²³ is about six standard
        // deviations; at 2⁻¹²⁶ in the other types, which no result shows.
        let (unit, smallest) = match (quantity, arithmetic) {
            (Quantity::Lse, _) => (F32_UNIT, 2f64.powi(-120)),
            (_, Arithmetic::F16) => (arithmetic.unit(), 2f64.powi(-23)),
            // P is taken times 2³, and its least number is 2⁻⁹; o may be f16.
            (_, Arithmetic::E4m3(_)) => (arithmetic.unit(), 2f64.powi(-12)),
            _ => (arithmetic.unit(), 2f64.powi(-120)),
        };
        let of_scores = match arithmetic {
            Arithmetic::Tf32 => arithmetic.unit(),
            // Each product of a score is cut at 2⁻¹³ of the greatest sum. Where all have one sign, so have the errors.
            Arithmetic::E4m3(_) => 2f64.powi(-13),
            _ => F32_UNIT,
        };
        let Element {
            reference,
            relative,
            absolute,
            score,
        } = element;
        unit * (self.relative * reference.abs() + self.rounding * relative)
            + of_scores * self.statistics * score.rounding * relative
            + self.approximate * score.approximation * relative
            + smallest * (1.0 + absolute)
    }
}

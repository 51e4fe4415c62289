//! A result against its reference: passes, or says which element is worst, where it lies and what it should be.

use std::fmt;

use crate::oracle::{ScoreError, Terms};
use crate::tolerance::{self, Arithmetic, Quantity, tolerance};

/// How the errors of a tensor's elements hang together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errors {
    /// They are as good as independent: their root mean square is far below the largest that is allowed.
    Independent,
    /// All terms of a sum err alike, and so do all sums: errors add up like the terms, not like their squares' root.
    Shared,
}

/// One result and what it is compared with; all arrays are dense and equally long.
#[derive(Clone, Copy, Debug)]
pub struct Comparison<'a> {
    /// Which tensor it is.
    pub quantity: Quantity,
    /// What its products are made of.
    pub arithmetic: Arithmetic,
    /// `[batch, seqlen, heads, head_dim]`; for lse `[batch, heads, seqlen, 1]`, for weights `[batch, heads, seqlen_q,
    /// seqlen_k]`.
    pub shape: [usize; 4],
    /// What the backend computed.
    pub actual: &'a [f64],
    /// What the oracle computed.
    pub reference: &'a [f64],
    /// Size of the terms behind each element.
    pub terms: &'a Terms,
    /// Number of terms of an element.
    pub n_terms: usize,
    /// What a score may be off.
    pub score: ScoreError,
    /// How the errors hang together.
    pub errors: Errors,
}

/// How close a result came to what is allowed: 1 is the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Closeness {
    /// The largest error, as a part of what is allowed of its element.
    pub worst: f64,
    /// The root mean square of the error, as a part of what is allowed of the tensor.
    pub rms: f64,
}

impl Closeness {
    /// The farther of both, in each respect.
    #[must_use]
    pub fn and(self, other: Closeness) -> Closeness {
        Closeness {
            worst: self.worst.max(other.worst),
            rms: self.rms.max(other.rms),
        }
    }
}

/// A result beyond what is allowed.
#[derive(Clone, Debug, PartialEq)]
pub struct Mismatch {
    quantity: Quantity,
    arithmetic: Arithmetic,
    shape: [usize; 4],
    n_beyond: usize,
    worst: Element,
    closeness: Closeness,
}

/// One element of a comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Element {
    at: usize,
    actual: f64,
    reference: f64,
    allowed: f64,
    part: f64,
}

impl Comparison<'_> {
    /// Passes, or describes the worst element.
    pub fn check(&self) -> Result<Closeness, Box<Mismatch>> {
        assert_eq!(
            self.actual.len(),
            self.reference.len(),
            "{:?}",
            self.quantity
        );
        assert_eq!(
            self.actual.len(),
            self.terms.relative.len(),
            "{:?}",
            self.quantity
        );
        let (mut n_beyond, mut n_finite, mut worst) = (0, 0, None::<Element>);
        let (mut error_squares, mut allowed_squares) = (0.0, 0.0);
        for at in 0..self.actual.len() {
            let element = self.element(at);
            if element.part.is_nan() || 1.0 < element.part {
                n_beyond += 1;
            }
            if worst.is_none_or(|worst| {
                worst.part < element.part || element.part.is_nan() && !worst.part.is_nan()
            }) {
                worst = Some(element);
            }
            if element.reference.is_finite() {
                n_finite += 1;
                error_squares += (element.actual - element.reference).powi(2);
                allowed_squares += element.allowed.powi(2);
            }
        }
        let Some(worst) = worst else {
            return Ok(Closeness::default());
        };
        let part_of_all = match self.errors {
            // Of a few elements, one may well lie far out.
            Errors::Independent => {
                let spread = 1.0 / f64::from(n_finite.max(1)).sqrt();
                (tolerance(self.quantity, self.arithmetic).rms + spread).min(1.0)
            }
            Errors::Shared => 1.0,
        };
        let rms = if error_squares == 0.0 {
            0.0
        } else {
            (error_squares / allowed_squares).sqrt() / part_of_all
        };
        let closeness = Closeness {
            worst: worst.part,
            rms,
        };
        if n_beyond == 0 && rms <= 1.0 {
            return Ok(closeness);
        }
        let Comparison {
            quantity,
            arithmetic,
            shape,
            ..
        } = *self;
        Err(Box::new(Mismatch {
            quantity,
            arithmetic,
            shape,
            n_beyond,
            worst,
            closeness,
        }))
    }

    fn element(&self, at: usize) -> Element {
        let (actual, reference) = (self.actual[at], self.reference[at]);
        let shared = match self.errors {
            Errors::Independent => 1.0,
            Errors::Shared => (self.n_terms as f64).sqrt(),
        };
        let (relative, absolute) = (
            shared * self.terms.relative[at],
            shared * self.terms.absolute[at],
        );
        let exact = !reference.is_finite() || reference == 0.0 && relative == 0.0;
        let allowed = if exact {
            0.0
        } else {
            let element = tolerance::Element {
                reference,
                relative,
                absolute,
                score: self.score,
            };
            tolerance(self.quantity, self.arithmetic).of_element(
                self.quantity,
                self.arithmetic,
                element,
            )
        };
        let part = if actual == reference {
            0.0
        } else {
            (actual - reference).abs() / allowed
        };
        Element {
            at,
            actual,
            reference,
            allowed,
            part,
        }
    }
}

/// How close several results came; the error lists every one that is beyond tolerance.
pub(crate) fn closest<const N: usize>(
    checks: [Result<Closeness, Box<Mismatch>>; N],
) -> Result<Closeness, String> {
    let mut closest = Closeness::default();
    let mut mismatches = Vec::new();
    for check in checks {
        match check {
            Ok(close) => closest = closest.and(close),
            Err(mismatch) => mismatches.push(mismatch.to_string()),
        }
    }
    if mismatches.is_empty() {
        Ok(closest)
    } else {
        Err(mismatches.join("\n"))
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mismatch {
            quantity,
            arithmetic,
            shape,
            n_beyond,
            worst,
            closeness,
        } = self;
        let [_, d1, d2, d3] = *shape;
        let (b, x, y, column) = (
            worst.at / d3 / d2 / d1,
            worst.at / d3 / d2 % d1,
            worst.at / d3 % d2,
            worst.at % d3,
        );
        let (row, head) = match quantity {
            Quantity::Lse | Quantity::Weights => (y, x),
            _ => (x, y),
        };
        write!(
            f,
            "{quantity:?} ({arithmetic:?}, {shape:?}): {n_beyond} elements beyond tolerance; root mean square {:.2} of the \
             limit; worst: batch {b}, row {row}, head {head}, column {column} is {} instead of {}, allowed ± {:.3e}, \
             off by {:.2} times that; tile of 64 rows: {}, of 128 rows: {}",
            closeness.rms,
            worst.actual,
            worst.reference,
            worst.allowed,
            worst.part,
            row / 64,
            row / 128,
        )
    }
}

#[cfg(test)]
mod tests {
    use ferroflash::Dtype;

    use super::*;
    use crate::inputs::{Fill, Values, round};
    use crate::oracle::{self, Inputs, Sizes};

    const SIZES: Sizes = Sizes {
        batch: 1,
        seqlen_q: 8,
        seqlen_k: 512,
        heads_q: 1,
        heads_k: 1,
        head_dim: 64,
        head_dim_v: 64,
    };

    /// o as a kernel would compute it, P and o rounded to bf16, from the keys that `visible` lets through.
    fn low_precision(values: &Values, visible: impl Fn(usize, usize) -> bool) -> Vec<f64> {
        let rows = |array: &[f64], at: usize| array[at * 64..(at + 1) * 64].to_vec();
        let mut result = Vec::new();
        for i in 0..SIZES.seqlen_q {
            let (mut o, mut sum) = (vec![0.0; 64], 0.0);
            for j in (0..SIZES.seqlen_k).filter(|&j| visible(i, j)) {
                let score: f64 = rows(&values.q, i)
                    .iter()
                    .zip(rows(&values.k, j))
                    .map(|(q, k)| q * k)
                    .sum();
                let p = (score * 0.125 - 4.0).exp();
                sum += p;
                o.iter_mut()
                    .zip(rows(&values.v, j))
                    .for_each(|(o, v)| *o += round(p, Dtype::Bf16) * v);
            }
            result.extend(o.into_iter().map(|o| round(o / sum, Dtype::Bf16)));
        }
        result
    }

    fn check(
        change: impl Fn(&mut Vec<f64>),
        visible: impl Fn(usize, usize) -> bool,
    ) -> Result<Closeness, Box<Mismatch>> {
        let values = Values::new(Fill::Normal, SIZES, Dtype::Bf16, 5);
        let Values { q, k, v, d_o, .. } = &values;
        let inputs = Inputs {
            sizes: SIZES,
            q,
            k,
            v,
            softmax_scale: 0.125,
            visible: &oracle::full,
            block: None,
            edit: None,
            sinks: None,
            dropout: None,
        };
        let output = oracle::forward(&inputs);
        let condition = oracle::condition(&inputs, &output, d_o, None);
        let mut actual = low_precision(&values, visible);
        change(&mut actual);
        Comparison {
            quantity: Quantity::O,
            arithmetic: Arithmetic::Bf16,
            shape: [1, 8, 1, 64],
            actual: &actual,
            reference: &output.o,
            terms: &condition.o,
            n_terms: 512,
            score: condition.score,
            errors: Errors::Independent,
        }
        .check()
    }

    #[test]
    fn an_honest_run_passes_with_room() {
        let closeness = check(|_| (), oracle::full).unwrap();
        assert!(
            0.1 < closeness.worst && closeness.worst < 0.9,
            "{closeness:?}"
        );
        assert!(0.1 < closeness.rms && closeness.rms < 0.9, "{closeness:?}");
    }

    #[test]
    fn one_missing_key_of_512_is_found() {
        assert!(check(|_| (), |_, j| j != 300).is_err());
    }

    #[test]
    fn one_wrong_element_is_found_and_described() {
        let mismatch = check(|o| o[3 * 64 + 17] += 0.01, oracle::full).unwrap_err();
        assert_eq!(mismatch.n_beyond, 1);
        assert!(
            mismatch.to_string().contains("row 3, head 0, column 17"),
            "{mismatch}"
        );
    }

    #[test]
    fn not_a_number_and_a_zero_that_is_none_are_found() {
        assert!(check(|o| o[5] = f64::NAN, oracle::full).is_err());
        let zero = |actual: f64, reference: f64| {
            Comparison {
                quantity: Quantity::Lse,
                arithmetic: Arithmetic::Bf16,
                shape: [1; 4],
                actual: &[actual],
                reference: &[reference],
                terms: &Terms::uniform(1, 0.0, 0.0),
                n_terms: 1,
                score: ScoreError::of_product(1.0, 1),
                errors: Errors::Independent,
            }
            .check()
        };
        assert!(zero(0.0, 0.0).is_ok() && zero(1e-30, 0.0).is_err());
        assert!(
            zero(f64::NEG_INFINITY, f64::NEG_INFINITY).is_ok()
                && zero(-1e30, f64::NEG_INFINITY).is_err()
        );
    }
}

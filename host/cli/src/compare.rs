//! Results against the stored ones: largest and root-mean-square error, and what is allowed.
//!
//! Stored results are worked out in f64 and rounded to f32. With `u` half a unit in the last place of the result's
//! type relative to 1, an element may be off by `u · (|stored| + 4 · largest stored of the tensor)`: its own rounding
//! and that of the weights and scores behind it, which have the size of the tensor's large elements. The root mean
//! square of all errors may be a few `u` times that of the stored ([`rms_units`]): a key too many or too few in a
//! causal mask is far outside of that. lse is f32 whatever the inputs are, but for products of tf32.

use std::fmt;

use ferroflash::{Backend, Dtype, Precision, Problem};

use crate::print::{BAD, GOOD, HEADING};

/// Errors of one result.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Name of the result.
    pub name: &'static str,
    /// The largest error; infinite where one is NaN or infinite and the other not.
    pub max_abs: f64,
    /// Allowed at the element that uses most of what it is allowed.
    pub allowed_abs: f64,
    /// Root mean square of the errors.
    pub rms: f64,
    /// Allowed.
    pub allowed_rms: f64,
    /// Of all elements, the largest ratio of error to what is allowed.
    pub worst_ratio: f64,
}

/// What elements are rounded to when they are multiplied or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// bfloat16.
    Bf16,
    /// IEEE binary16.
    F16,
    /// f32 tensors whose products are of 11 bits, as a GPU's tensor cores take them.
    Tf32,
    /// IEEE binary32.
    F32,
    /// q, k, v and the weights of the forward pass in 8 bits.
    E4m3,
}

impl Rounding {
    /// That of a problem on a backend. The processor multiplies f32 as they are, and does not round weights.
    pub fn of(problem: &Problem, backend: Backend) -> Rounding {
        if problem.fp8().is_some() && backend != Backend::Cpu {
            return Rounding::E4m3;
        }
        match (problem.dtype(), problem.precision()) {
            (Dtype::Bf16, _) => Rounding::Bf16,
            (Dtype::F16, _) => Rounding::F16,
            (Dtype::F32, Precision::Tensor) if backend != Backend::Cpu => Rounding::Tf32,
            (Dtype::F32, _) => Rounding::F32,
        }
    }
}

/// Half a unit in the last place, relative to 1. Scores, and so lse, are f32 but for products of tf32.
fn unit(name: &str, rounding: Rounding) -> f64 {
    match (name, rounding) {
        ("o", Rounding::E4m3) => 2f64.powi(-6),
        ("lse", Rounding::E4m3) => 2f64.powi(-10),
        (_, Rounding::E4m3) => 2f64.powi(-8),
        (_, Rounding::Tf32) => 2f64.powi(-11),
        ("lse", _) | (_, Rounding::F32) => 2f64.powi(-22),
        (_, Rounding::Bf16) => 2f64.powi(-8),
        (_, Rounding::F16) => 2f64.powi(-11),
    }
}

/// What the root mean square of the errors may be, in units of `u` times that of the stored.
fn rms_units(name: &str) -> f64 {
    match name {
        // dS = P ∘ (dP − Δ): Δ comes from an o that was rounded, and much of it cancels against dP. 2.3 was measured
        // on the CPU, which rounds nothing else.
        "d_q" | "d_k" | "d_sinks" => 6.0,
        _ => 1.5,
    }
}

/// Compares one result with the stored one of the same shape.
pub fn compare(
    name: &'static str,
    rounding: Rounding,
    result: &[f32],
    stored: &[f32],
) -> Comparison {
    let unit = unit(name, rounding);
    let finite = || {
        stored
            .iter()
            .map(|&value| f64::from(value))
            .filter(|value| value.is_finite())
    };
    let largest = finite().fold(0.0, |largest: f64, value| largest.max(value.abs()));
    let n_elems = stored.len().max(1) as f64;
    let allowed_rms = rms_units(name)
        * unit
        * (finite().map(|value| value * value).sum::<f64>() / n_elems).sqrt();

    let mut comparison = Comparison {
        name,
        max_abs: 0.0,
        allowed_abs: 0.0,
        rms: 0.0,
        allowed_rms,
        worst_ratio: 0.0,
    };
    let mut squares = 0.0;
    for (&result, &stored) in result.iter().zip(stored) {
        let error = error(result.into(), stored.into());
        let allowed = if stored.is_finite() {
            unit * (f64::from(stored).abs() + 4.0 * largest)
        } else {
            0.0
        };
        let ratio = if error == 0.0 { 0.0 } else { error / allowed };
        comparison.max_abs = comparison.max_abs.max(error);
        if comparison.worst_ratio <= ratio {
            comparison.worst_ratio = ratio;
            comparison.allowed_abs = allowed;
        }
        squares += error * error;
    }
    comparison.rms = (squares / n_elems).sqrt();
    comparison
}

/// 0 for equal values, infinities included; infinite where only one is finite or one is NaN.
fn error(result: f64, stored: f64) -> f64 {
    if result == stored {
        0.0
    } else if result.is_finite() && stored.is_finite() {
        (result - stored).abs()
    } else {
        f64::INFINITY
    }
}

impl Comparison {
    /// Whether every element and their mean square are as close as they must be.
    pub fn agrees(&self) -> bool {
        self.worst_ratio <= 1.0 && self.rms <= self.allowed_rms
    }

    /// Heads of the columns of a line.
    pub fn header() -> String {
        format!(
            "{HEADING}{:<6} {:>11} {:>11} {:>11} {:>11}{HEADING:#}",
            "result", "max abs", "allowed", "rms", "allowed"
        )
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (style, verdict) = match self.agrees() {
            true => (GOOD, "agrees"),
            false => (BAD, "DIFFERS"),
        };
        write!(
            f,
            "{:<6} {:>11.3e} {:>11.3e} {:>11.3e} {:>11.3e}  {style}{verdict}{style:#}",
            self.name, self.max_abs, self.allowed_abs, self.rms, self.allowed_rms
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roundings_agree_and_wrong_numbers_differ() {
        let stored: Vec<f32> = (0..1000).map(|index| (index as f32 * 0.37).sin()).collect();
        let rounded: Vec<f32> = stored
            .iter()
            .map(|&value| half::bf16::from_f32(value).to_f32())
            .collect();
        let agreed = compare("o", Rounding::Bf16, &rounded, &stored);
        assert!(agreed.agrees(), "{agreed}");
        assert!(0.0 < agreed.max_abs && agreed.max_abs < 2f64.powi(-8));
        assert!(!compare("o", Rounding::F16, &rounded, &stored).agrees());

        let mut one_wrong = rounded.clone();
        one_wrong[500] += 0.1;
        assert!(!compare("o", Rounding::Bf16, &one_wrong, &stored).agrees());
        let all_off: Vec<f32> = stored.iter().map(|value| value * 1.01).collect();
        assert!(!compare("o", Rounding::Bf16, &all_off, &stored).agrees());
    }

    /// A GPU's products of f32 tensors are of 11 bits unless all are asked for.
    #[test]
    fn f32_is_rounded_where_tensor_cores_multiply() {
        let problem = |precision| {
            let builder = Problem::builder(Dtype::F32)
                .seqlen(64)
                .heads(1)
                .head_dim(64);
            builder.precision(precision).build().unwrap()
        };
        let of = |precision, backend| Rounding::of(&problem(precision), backend);
        assert_eq!(of(Precision::Tensor, Backend::Cuda), Rounding::Tf32);
        assert_eq!(of(Precision::Full, Backend::Cuda), Rounding::F32);
        assert_eq!(of(Precision::Tensor, Backend::Cpu), Rounding::F32);
    }

    #[test]
    fn infinities_and_nan() {
        let none = [f32::NEG_INFINITY, 1.0];
        assert!(compare("lse", Rounding::Bf16, &none, &none).agrees());
        assert!(!compare("lse", Rounding::Bf16, &[0.0, 1.0], &none).agrees());
        assert!(!compare("lse", Rounding::Bf16, &[f32::NEG_INFINITY, f32::NAN], &none).agrees());
        assert!(!compare("o", Rounding::Bf16, &[f32::NAN], &[0.0]).agrees());
    }

    #[test]
    fn zeros_must_be_zeros() {
        assert!(compare("d_k", Rounding::F16, &[0.0, -0.0], &[0.0, 0.0]).agrees());
        assert!(!compare("d_k", Rounding::F16, &[1e-30, 0.0], &[0.0, 0.0]).agrees());
    }
}

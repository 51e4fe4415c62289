//! Bounds of the functions of numbers for which the device has no rules.

use super::Bounds;
use crate::arithmetic::Real;
use crate::device::interval::nums::{Range, extremes, outward};
use crate::{Type, Unary};

/// The relative error of a fast function: `tanh.approx.f32` 2⁻¹¹, the others less (PTX ISA, floating-point instructions).
const FAST: f64 = 1.0 / 1024.0;

/// The relative error of division, square roots, powers and logarithms; for logarithms between 1/2 and 2, the absolute error.
const NEAR: f64 = 1.0 / 1_048_576.0;

/// The bounds of values from `lo` to `hi` with a relative error and the error `absolute`.
fn off(lo: f64, hi: f64, part: f64, absolute: f64, nan: bool) -> Bounds {
    let absolute = absolute + f64::from(f32::MIN_POSITIVE);
    outward(
        lo - lo.abs().min(f64::from(f32::MAX)) * part - absolute,
        hi + hi.abs().min(f64::from(f32::MAX)) * part + absolute,
        nan,
    )
}

/// Bounds limited to the range of a function.
fn within(bounds: Bounds, least: f32, most: f32) -> Bounds {
    let Range { lo, hi, nan } = Range::of(bounds);
    let (lo, hi) = (lo.max(least), hi.min(most));
    Range { lo, hi, nan }.bounds()
}

/// Of a function of one value.
pub fn unary(op: Unary, x: Range) -> Bounds {
    let Range { lo, hi, nan } = x;
    let ends = |op| {
        let at = |x: f32| Real::unary(f64::from(x), op);
        (at(lo), at(hi))
    };
    match op {
        Unary::Exp2(_) => {
            let (lo, hi) = ends(op);
            within(off(lo, hi, NEAR, 0.0, nan), 0.0, f32::INFINITY)
        }
        Unary::Ln(_) | Unary::Sqrt(_) => {
            let at = |x: f32| Real::unary(f64::from(x.max(0.0)), op);
            // What is too small for a normal number may be 0.
            let lo = if lo < f32::MIN_POSITIVE { 0.0 } else { lo };
            let bounds = off(at(lo), at(hi), NEAR, NEAR, nan || x.lo < 0.0);
            match op {
                Unary::Sqrt(_) => within(bounds, 0.0, f32::INFINITY),
                _ => bounds,
            }
        }
        Unary::Tanh(_) => {
            let (lo, hi) = ends(op);
            within(off(lo, hi, FAST, NEAR, nan), -1.0, 1.0)
        }
        Unary::Sigmoid(_) => {
            let (lo, hi) = ends(op);
            within(off(lo, hi, FAST, FAST, nan), 0.0, 1.0)
        }
        Unary::Neg | Unary::Abs | Unary::Not | Unary::ToF32 | Unary::ToI32 => {
            Bounds::all(Type::F32)
        }
    }
}

/// Of a quotient.
pub fn quotient(a: Range, b: Range) -> Bounds {
    // A divisor that may be 0 for being small has 0 in its bounds.
    if b.has(0.0) || b.has_infinity() || a.has_infinity() {
        return Bounds::all(Type::F32);
    }
    let (a_lo, a_hi) = (f64::from(a.lo), f64::from(a.hi));
    let (b_lo, b_hi) = (f64::from(b.lo), f64::from(b.hi));
    let (lo, hi) = extremes([a_lo / b_lo, a_lo / b_hi, a_hi / b_lo, a_hi / b_hi]);
    // A divisor whose reciprocal is not normal: the fast division gives 0.
    let is_far = b.lo.abs().max(b.hi.abs()) > 8.0e37;
    let (lo, hi) = if is_far {
        (lo.min(0.0), hi.max(0.0))
    } else {
        (lo, hi)
    };
    off(lo, hi, NEAR, 0.0, a.nan || b.nan)
}

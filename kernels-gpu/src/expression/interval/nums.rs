//! Bounds of numbers.

use super::Bounds;
use crate::expression::arithmetic::Real;
use crate::expression::{Binary, Type, Unary};

/// What is known of a number.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// The least.
    pub lo: f32,
    /// The greatest.
    pub hi: f32,
    /// Whether it may be NaN.
    pub nan: bool,
}

/// What a fast function may be off, relative to its value: `tanh.approx.f32` 2⁻¹¹, the others less (PTX ISA, floating-point instructions).
const FAST: f64 = 1.0 / 1024.0;

/// What division, square roots, powers and logarithms may be off, relative to their values; logarithms between 1/2 and 2 by as much at all.
const NEAR: f64 = 1.0 / 1_048_576.0;

impl Range {
    /// What is known of a value, everything if it is no number.
    pub fn of(bounds: Bounds) -> Range {
        match bounds {
            Bounds::Num { lo, hi, nan } => Range { lo, hi, nan },
            Bounds::Int { .. } | Bounds::Cond(_) => Range {
                lo: f32::NEG_INFINITY,
                hi: f32::INFINITY,
                nan: true,
            },
        }
    }

    fn bounds(self) -> Bounds {
        let Range { lo, hi, nan } = self;
        Bounds::Num { lo, hi, nan }
    }

    fn has(self, x: f32) -> bool {
        self.lo <= x && x <= self.hi
    }

    fn has_infinity(self) -> bool {
        self.lo == f32::NEG_INFINITY || self.hi == f32::INFINITY
    }
}

/// The bounds of values from `lo` to `hi`: `f32` outside of them.
fn outward(lo: f64, hi: f64, nan: bool) -> Bounds {
    let (mut lo_f32, mut hi_f32) = (lo as f32, hi as f32);
    if f64::from(lo_f32) > lo {
        lo_f32 = lo_f32.next_down();
    }
    if f64::from(hi_f32) < hi {
        hi_f32 = hi_f32.next_up();
    }
    let (lo, hi) = (lo_f32, hi_f32);
    Range { lo, hi, nan }.bounds()
}

/// The bounds where numbers that are not normal may be 0.
pub fn flushed(bounds: Bounds) -> Bounds {
    let Bounds::Num { lo, hi, nan } = bounds else {
        return bounds;
    };
    let is_tiny = |x: f32| x.abs() < f32::MIN_POSITIVE;
    let lo = if is_tiny(lo) { lo.min(0.0) } else { lo };
    let hi = if is_tiny(hi) { hi.max(0.0) } else { hi };
    Range { lo, hi, nan }.bounds()
}

/// The bounds of values from `lo` to `hi` that may be off by a part of them, and by `absolute`.
fn off(lo: f64, hi: f64, part: f64, absolute: f64, nan: bool) -> Bounds {
    let absolute = absolute + f64::from(f32::MIN_POSITIVE);
    outward(
        lo - lo.abs().min(f64::from(f32::MAX)) * part - absolute,
        hi + hi.abs().min(f64::from(f32::MAX)) * part + absolute,
        nan,
    )
}

/// Bounds that are no wider than what a function can give.
fn within(bounds: Bounds, least: f32, most: f32) -> Bounds {
    let Range { lo, hi, nan } = Range::of(bounds);
    let (lo, hi) = (lo.max(least), hi.min(most));
    Range { lo, hi, nan }.bounds()
}

/// Of whole numbers.
pub fn from_ints(lo: i32, hi: i32) -> Bounds {
    outward(f64::from(lo), f64::from(hi), false)
}

/// Of a function of one value.
pub fn unary(op: Unary, x: Range) -> Bounds {
    let Range { lo, hi, nan } = x;
    let ends = |op| {
        let at = |x: f32| Real::unary(f64::from(x), op);
        (at(lo), at(hi))
    };
    match op {
        Unary::Neg => outward(f64::from(-hi), f64::from(-lo), nan),
        Unary::Abs => {
            let least = if x.has(0.0) {
                0.0
            } else {
                lo.abs().min(hi.abs())
            };
            outward(f64::from(least), f64::from(lo.abs().max(hi.abs())), nan)
        }
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
        Unary::Not | Unary::ToF32 | Unary::ToI32 => Bounds::all(Type::F32),
    }
}

/// Of a function of two values.
pub fn binary(op: Binary, a: Range, b: Range) -> Bounds {
    let nan = a.nan || b.nan;
    let infinity = f32::INFINITY;
    let meets = |a: Range, b: Range| a.hi == infinity && b.lo == -infinity;
    let (a_lo, a_hi) = (f64::from(a.lo), f64::from(a.hi));
    let (b_lo, b_hi) = (f64::from(b.lo), f64::from(b.hi));
    // ∞ − ∞ at a corner is NaN, which the other values there are not: the bound is then none.
    let least = |x: f64| if x.is_nan() { f64::NEG_INFINITY } else { x };
    let most = |x: f64| if x.is_nan() { f64::INFINITY } else { x };
    match op {
        Binary::Add => {
            let nan = nan || meets(a, b) || meets(b, a);
            outward(least(a_lo + b_lo), most(a_hi + b_hi), nan)
        }
        Binary::Sub => {
            let b = Range {
                lo: -b.hi,
                hi: -b.lo,
                nan: b.nan,
            };
            binary(Binary::Add, a, b)
        }
        Binary::Mul => {
            let zero = |x: Range, y: Range| x.has(0.0) && y.has_infinity();
            let nan = nan || zero(a, b) || zero(b, a);
            // 0 · ∞ at a corner: beside it are products of small numbers and ∞, and of 0 and large ones, all between 0 and an infinite corner.
            let product = |a: f64, b: f64| if a == 0.0 || b == 0.0 { 0.0 } else { a * b };
            let corners = [
                product(a_lo, b_lo),
                product(a_lo, b_hi),
                product(a_hi, b_lo),
                product(a_hi, b_hi),
            ];
            let (lo, hi) = extremes(&corners);
            outward(lo, hi, nan)
        }
        Binary::Div => {
            // A divisor that may be 0 for being small has 0 in its bounds.
            if b.has(0.0) || b.has_infinity() || a.has_infinity() {
                return Bounds::all(Type::F32);
            }
            let corners = [a_lo / b_lo, a_lo / b_hi, a_hi / b_lo, a_hi / b_hi];
            let (lo, hi) = extremes(&corners);
            // A divisor whose reciprocal is not normal: the fast division gives 0.
            let is_far = b.lo.abs().max(b.hi.abs()) > 8.0e37;
            let (lo, hi) = if is_far {
                (lo.min(0.0), hi.max(0.0))
            } else {
                (lo, hi)
            };
            off(lo, hi, NEAR, 0.0, nan)
        }
        Binary::Min | Binary::Max => {
            let (lo, hi) = match op {
                Binary::Min => (a.lo.min(b.lo), a.hi.min(b.hi)),
                _ => (a.lo.max(b.lo), a.hi.max(b.hi)),
            };
            // Beside NaN it is the other.
            let (lo, hi) = if a.nan {
                (lo.min(b.lo), hi.max(b.hi))
            } else {
                (lo, hi)
            };
            let (lo, hi) = if b.nan {
                (lo.min(a.lo), hi.max(a.hi))
            } else {
                (lo, hi)
            };
            let nan = a.nan && b.nan;
            Range { lo, hi, nan }.bounds()
        }
        Binary::Rem | Binary::And | Binary::Or | Binary::Xor | Binary::Shl | Binary::Shr => {
            Bounds::all(Type::F32)
        }
    }
}

fn extremes(values: &[f64]) -> (f64, f64) {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    (
        least,
        values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
    )
}

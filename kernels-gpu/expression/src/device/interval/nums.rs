//! Bounds of numbers.

use super::{Binary, Bounds, Type, Unary};

/// Bounds of a number.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// The least.
    pub lo: f32,
    /// The greatest.
    pub hi: f32,
    /// Whether it may be NaN.
    pub nan: bool,
}

impl Range {
    /// The bounds of a value; unbounded if it is not a number.
    #[inline(always)]
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

    /// It as the bounds of a value.
    #[inline(always)]
    pub fn bounds(self) -> Bounds {
        let Range { lo, hi, nan } = self;
        Bounds::Num { lo, hi, nan }
    }

    /// Whether it contains a number.
    #[inline(always)]
    pub fn has(self, x: f32) -> bool {
        self.lo <= x && x <= self.hi
    }

    /// Whether it contains an infinite number.
    #[inline(always)]
    pub fn has_infinity(self) -> bool {
        self.lo == f32::NEG_INFINITY || self.hi == f32::INFINITY
    }
}

/// The bounds of values from `lo` to `hi`: `f32` outside of them.
#[inline(always)]
pub fn outward(lo: f64, hi: f64, nan: bool) -> Bounds {
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

/// The bounds if subnormal numbers may be 0.
#[inline(always)]
pub fn flushed(bounds: Bounds) -> Bounds {
    let Bounds::Num { lo, hi, nan } = bounds else {
        return bounds;
    };
    let is_tiny = |x: f32| x.abs() < f32::MIN_POSITIVE;
    let lo = if is_tiny(lo) { lo.min(0.0) } else { lo };
    let hi = if is_tiny(hi) { hi.max(0.0) } else { hi };
    Range { lo, hi, nan }.bounds()
}

/// Bounds from integers.
#[inline(always)]
pub fn from_ints(lo: i32, hi: i32) -> Bounds {
    outward(f64::from(lo), f64::from(hi), false)
}

/// Bounds of a function of one value; none for those that are not exact.
#[inline(always)]
pub fn unary(op: Unary, x: Range) -> Bounds {
    let Range { lo, hi, nan } = x;
    match op {
        Unary::Neg => {
            let (lo, hi) = (-hi, -lo);
            Range { lo, hi, nan }.bounds()
        }
        Unary::Abs => {
            let (a, b) = (lo.abs(), hi.abs());
            let lo = if x.has(0.0) { 0.0 } else { a.min(b) };
            let hi = a.max(b);
            Range { lo, hi, nan }.bounds()
        }
        Unary::Exp2(_)
        | Unary::Ln(_)
        | Unary::Tanh(_)
        | Unary::Sigmoid(_)
        | Unary::Sqrt(_)
        | Unary::Not
        | Unary::ToF32
        | Unary::ToI32 => Bounds::all(Type::F32),
    }
}

/// Bounds of a function of two values; none for a quotient.
#[inline(always)]
pub fn binary(op: Binary, a: Range, b: Range) -> Bounds {
    match op {
        Binary::Add => sum(a, b),
        Binary::Sub => {
            let (lo, hi) = (-b.hi, -b.lo);
            sum(a, Range { lo, hi, nan: b.nan })
        }
        Binary::Mul => product(a, b),
        Binary::Min | Binary::Max => extremum(op, a, b),
        Binary::Div
        | Binary::Rem
        | Binary::And
        | Binary::Or
        | Binary::Xor
        | Binary::Shl
        | Binary::Shr => Bounds::all(Type::F32),
    }
}

#[inline(always)]
fn sum(a: Range, b: Range) -> Bounds {
    let meets = |a: Range, b: Range| a.hi == f32::INFINITY && b.lo == f32::NEG_INFINITY;
    let nan = a.nan || b.nan || meets(a, b) || meets(b, a);
    let lo = f64::from(a.lo) + f64::from(b.lo);
    let hi = f64::from(a.hi) + f64::from(b.hi);
    // ∞ − ∞ at a corner is NaN, which the other values there are not: the bound is then none.
    let lo = if lo.is_nan() { f64::NEG_INFINITY } else { lo };
    let hi = if hi.is_nan() { f64::INFINITY } else { hi };
    outward(lo, hi, nan)
}

#[inline(always)]
fn product(a: Range, b: Range) -> Bounds {
    let zero = |x: Range, y: Range| x.has(0.0) && y.has_infinity();
    let nan = a.nan || b.nan || zero(a, b) || zero(b, a);
    // 0 · ∞ at a corner: beside it are products of small numbers and ∞, and of 0 and large ones, all between 0 and an infinite corner.
    let corner = |a: f32, b: f32| {
        if a == 0.0 || b == 0.0 {
            0.0
        } else {
            f64::from(a) * f64::from(b)
        }
    };
    let (lo, hi) = extremes([
        corner(a.lo, b.lo),
        corner(a.lo, b.hi),
        corner(a.hi, b.lo),
        corner(a.hi, b.hi),
    ]);
    outward(lo, hi, nan)
}

/// Bounds of the smaller or the greater of two numbers. With one NaN it is the other.
#[inline(always)]
fn extremum(op: Binary, a: Range, b: Range) -> Bounds {
    let is_least = matches!(op, Binary::Min);
    let of = |x: f32, y: f32| if is_least { x.min(y) } else { x.max(y) };
    let (mut lo, mut hi) = (of(a.lo, b.lo), of(a.hi, b.hi));
    if a.nan {
        (lo, hi) = (lo.min(b.lo), hi.max(b.hi));
    }
    if b.nan {
        (lo, hi) = (lo.min(a.lo), hi.max(a.hi));
    }
    let nan = a.nan && b.nan;
    Range { lo, hi, nan }.bounds()
}

/// The least and the greatest of four.
#[inline(always)]
pub fn extremes([a, b, c, d]: [f64; 4]) -> (f64, f64) {
    (a.min(b).min(c.min(d)), a.max(b).max(c.max(d)))
}

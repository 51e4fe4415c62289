//! Bounds of integers. If arithmetic may wrap around, nothing is known.

use super::{Binary, Bounds, Type, Unary};

type Range = (i32, i32);

const ALL: Bounds = Bounds::all(Type::I32);

/// The bounds of values from `lo` to `hi` that do not wrap around if they fit.
#[inline(always)]
fn bounds((lo, hi): (i64, i64)) -> Bounds {
    if lo >= i64::from(i32::MIN) && hi <= i64::from(i32::MAX) {
        Bounds::Int {
            lo: lo as i32,
            hi: hi as i32,
        }
    } else {
        ALL
    }
}

/// The least and the greatest of a function that has them at corners.
#[inline(always)]
fn at_corners(a: Range, b: Range, f: impl Fn(i64, i64) -> i64) -> (i64, i64) {
    let (a_lo, a_hi) = (i64::from(a.0), i64::from(a.1));
    let (b_lo, b_hi) = (i64::from(b.0), i64::from(b.1));
    let (w, x, y, z) = (f(a_lo, b_lo), f(a_lo, b_hi), f(a_hi, b_lo), f(a_hi, b_hi));
    (w.min(x).min(y.min(z)), w.max(x).max(y.max(z)))
}

/// From numbers, towards zero.
#[inline(always)]
pub fn from_nums(lo: f32, hi: f32, nan: bool) -> Bounds {
    let (lo, hi) = (lo as i32, hi as i32);
    Bounds::Int {
        lo: if nan { lo.min(0) } else { lo },
        hi: if nan { hi.max(0) } else { hi },
    }
}

/// Bounds of a function of one value.
#[inline(always)]
pub fn unary(op: Unary, (lo, hi): Range) -> Bounds {
    let (lo, hi) = (i64::from(lo), i64::from(hi));
    match op {
        Unary::Neg => bounds((-hi, -lo)),
        Unary::Abs if lo >= 0 => bounds((lo, hi)),
        Unary::Abs if hi <= 0 => bounds((-hi, -lo)),
        Unary::Abs => bounds((0, hi.max(-lo))),
        Unary::Not => bounds((-1 - hi, -1 - lo)),
        _ => ALL,
    }
}

/// Bounds of a function of two values.
#[inline(always)]
pub fn binary(op: Binary, a: Range, b: Range) -> Bounds {
    match op {
        Binary::Add => bounds(at_corners(a, b, |a, b| a + b)),
        Binary::Sub => bounds(at_corners(a, b, |a, b| a - b)),
        Binary::Mul => bounds(at_corners(a, b, |a, b| a * b)),
        Binary::Min => bounds(at_corners(a, b, i64::min)),
        Binary::Max => bounds(at_corners(a, b, i64::max)),
        Binary::Div => quotient(a, b),
        Binary::Rem => rest(a, b),
        Binary::And | Binary::Or | Binary::Xor => bitwise(op, a, b),
        Binary::Shl | Binary::Shr => shifted(op, a, b),
    }
}

/// `a / b` of integers within `i32`, and 0 if `b` is 0.
#[inline(always)]
fn divided(a: i64, b: i64) -> i64 {
    // 64 bits only where 32 do not hold it.
    if b == -1 {
        -a
    } else {
        i64::from((a as i32).checked_div(b as i32).unwrap_or(0))
    }
}

#[inline(always)]
fn quotient(a: Range, (lo, hi): Range) -> Bounds {
    // The divisors below 0, at 0 and above it.
    let (mut least, mut most) = (i64::MAX, i64::MIN);
    if lo <= 0 && hi >= 0 {
        (least, most) = (0, 0);
    }
    if lo < 0 {
        let (x, y) = at_corners(a, (lo, hi.min(-1)), divided);
        (least, most) = (least.min(x), most.max(y));
    }
    if hi > 0 {
        let (x, y) = at_corners(a, (lo.max(1), hi), divided);
        (least, most) = (least.min(x), most.max(y));
    }
    bounds((least, most))
}

#[inline(always)]
fn rest(a: Range, b: Range) -> Bounds {
    let (a_lo, a_hi) = (i64::from(a.0), i64::from(a.1));
    let (b_lo, b_hi) = (i64::from(b.0), i64::from(b.1));
    if b_lo == b_hi && b_lo != 0 {
        let whole = divided(a_lo, b_lo);
        if whole == divided(a_hi, b_lo) {
            return bounds((a_lo - whole * b_lo, a_hi - whole * b_lo));
        }
    }
    // The rest is less than the divisor without their signs, and no further from 0 than the dividend, whose sign it has.
    let most = b_lo.abs().max(b_hi.abs()) - 1;
    let has_zero = b_lo <= 0 && b_hi >= 0;
    let limit = |x: i64| if has_zero { x } else { x.min(most) };
    let least = b_lo.abs().min(b_hi.abs());
    if !has_zero && a_hi.abs().max(a_lo.abs()) < least {
        return bounds((a_lo, a_hi));
    }
    bounds((-limit((-a_lo).max(0)), limit(a_hi.max(0))))
}

/// Bits that are equal in all values of a range: those that are 0, and those that are 1.
#[inline(always)]
fn known_bits((lo, hi): Range) -> (u32, u32) {
    let differing = (lo ^ hi) as u32;
    let unknown = u32::MAX.checked_shr(differing.leading_zeros()).unwrap_or(0);
    (!(lo as u32) & !unknown, lo as u32 & !unknown)
}

/// The low bits of values between two multiples of their power, if the mask is one of low bits.
#[inline(always)]
fn low_bits((lo, hi): Range, mask: Range) -> Option<Bounds> {
    let bits = mask.0.trailing_ones();
    let is_mask = mask.0 == mask.1 && mask.0 >= 0 && mask.0.leading_zeros() + bits == 32;
    let (lo_above, hi_above) = (lo.checked_shr(bits), hi.checked_shr(bits));
    (is_mask && lo_above.is_some() && lo_above == hi_above).then_some(Bounds::Int {
        lo: lo & mask.0,
        hi: hi & mask.0,
    })
}

#[inline(always)]
fn bitwise(op: Binary, a: Range, b: Range) -> Bounds {
    if matches!(op, Binary::And) {
        if let Some(bounds) = low_bits(a, b) {
            return bounds;
        }
        if let Some(bounds) = low_bits(b, a) {
            return bounds;
        }
    }
    let ((zeros_a, ones_a), (zeros_b, ones_b)) = (known_bits(a), known_bits(b));
    let (zeros, ones) = match op {
        Binary::And => (zeros_a | zeros_b, ones_a & ones_b),
        Binary::Or => (zeros_a & zeros_b, ones_a | ones_b),
        _ => (
            zeros_a & zeros_b | ones_a & ones_b,
            zeros_a & ones_b | ones_a & zeros_b,
        ),
    };
    // An unknown sign makes the least value negative, other unknown bits make it smaller by being 0.
    let sign = 1 << 31;
    let unknown = !(zeros | ones);
    let mut lo = (ones | unknown & sign) as i32;
    let mut hi = (ones | unknown & !sign) as i32;
    match op {
        // No greater than an operand that is not negative.
        Binary::And => {
            if a.0 >= 0 {
                hi = hi.min(a.1);
            }
            if b.0 >= 0 {
                hi = hi.min(b.1);
            }
        }
        // No less than either of two that are not negative.
        Binary::Or if a.0 >= 0 && b.0 >= 0 => lo = lo.max(a.0).max(b.0),
        _ => {}
    }
    Bounds::Int { lo, hi }
}

#[inline(always)]
fn shifted(op: Binary, a: Range, b: Range) -> Bounds {
    let places = if b.0 >> 5 == b.1 >> 5 {
        (b.0 & 31, b.1 & 31)
    } else {
        (0, 31)
    };
    bounds(match op {
        Binary::Shl => at_corners(a, places, |a, b| a << (b & 31)),
        _ => at_corners(a, places, |a, b| a >> (b & 31)),
    })
}

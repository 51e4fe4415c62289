//! Bounds of whole numbers. Where arithmetic may wrap around, nothing is known.

use super::Bounds;
use crate::expression::arithmetic::Real;
use crate::expression::{Binary, Type, Unary};

type Range = (i32, i32);

/// The bounds of values from `lo` to `hi` that do not wrap around if they fit.
fn bounds(lo: i64, hi: i64) -> Bounds {
    match (i32::try_from(lo), i32::try_from(hi)) {
        (Ok(lo), Ok(hi)) => Bounds::Int { lo, hi },
        _ => Bounds::all(Type::I32),
    }
}

/// The bounds of a function that is greatest and least at corners.
fn at_corners(a: Range, b: Range, f: impl Fn(i64, i64) -> i64) -> (i64, i64) {
    let corners = [(a.0, b.0), (a.0, b.1), (a.1, b.0), (a.1, b.1)];
    let values = corners.map(|(a, b)| f(i64::from(a), i64::from(b)));
    let least = values.into_iter().fold(i64::MAX, i64::min);
    (least, values.into_iter().fold(i64::MIN, i64::max))
}

/// Of numbers, towards zero.
pub fn from_nums(lo: f32, hi: f32, nan: bool) -> Bounds {
    let (lo, hi) = (lo.to_i32(), hi.to_i32());
    Bounds::Int {
        lo: if nan { lo.min(0) } else { lo },
        hi: if nan { hi.max(0) } else { hi },
    }
}

/// Of a function of one value.
pub fn unary(op: Unary, (lo, hi): Range) -> Bounds {
    let (lo, hi) = (i64::from(lo), i64::from(hi));
    match op {
        Unary::Neg => bounds(-hi, -lo),
        Unary::Abs if lo >= 0 => bounds(lo, hi),
        Unary::Abs if hi <= 0 => bounds(-hi, -lo),
        Unary::Abs => bounds(0, hi.max(-lo)),
        Unary::Not => bounds(-1 - hi, -1 - lo),
        _ => Bounds::all(Type::I32),
    }
}

/// Of a function of two values.
pub fn binary(op: Binary, a: Range, b: Range) -> Bounds {
    let corners = |f: fn(i64, i64) -> i64| {
        let (lo, hi) = at_corners(a, b, f);
        bounds(lo, hi)
    };
    match op {
        Binary::Add => corners(|a, b| a + b),
        Binary::Sub => corners(|a, b| a - b),
        Binary::Mul => corners(|a, b| a * b),
        Binary::Min => corners(i64::min),
        Binary::Max => corners(i64::max),
        Binary::Div => quotient(a, b),
        Binary::Rem => rest(a, b),
        Binary::And | Binary::Or | Binary::Xor => bitwise(op, a, b),
        Binary::Shl | Binary::Shr => shifted(op, a, b),
    }
}

/// The parts of a range below 0, at 0 and above it.
fn signs((lo, hi): Range) -> (Option<Range>, bool, Option<Range>) {
    let below = (lo < 0).then_some((lo, hi.min(-1)));
    let above = (hi > 0).then_some((lo.max(1), hi));
    (below, lo <= 0 && hi >= 0, above)
}

fn quotient(a: Range, b: Range) -> Bounds {
    let (below, has_zero, above) = signs(b);
    let mut all: Option<(i64, i64)> = has_zero.then_some((0, 0));
    for divisors in [below, above].into_iter().flatten() {
        let (lo, hi) = at_corners(a, divisors, |a, b| a / b);
        all = Some(all.map_or((lo, hi), |all| (all.0.min(lo), all.1.max(hi))));
    }
    all.map_or(Bounds::all(Type::I32), |(lo, hi)| bounds(lo, hi))
}

fn rest(a: Range, b: Range) -> Bounds {
    let (a_lo, a_hi) = (i64::from(a.0), i64::from(a.1));
    let (b_lo, b_hi) = (i64::from(b.0), i64::from(b.1));
    if b_lo == b_hi && b_lo != 0 && a_lo / b_lo == a_hi / b_lo {
        return bounds(a_lo % b_lo, a_hi % b_lo);
    }
    // The rest is less than the divisor without their signs, and no further from 0 than the dividend, whose sign it has.
    let most = b_lo.abs().max(b_hi.abs()) - 1;
    let has_zero = b_lo <= 0 && b_hi >= 0;
    let limit = |x: i64| if has_zero { x } else { x.min(most) };
    let least = b_lo.abs().min(b_hi.abs());
    if !has_zero && a_hi.abs().max(a_lo.abs()) < least {
        return bounds(a_lo, a_hi);
    }
    bounds(-limit((-a_lo).max(0)), limit(a_hi.max(0)))
}

/// Bits that all values of a range have alike: those that are 0, and those that are 1.
fn known_bits((lo, hi): Range) -> (u32, u32) {
    let differing = (lo ^ hi) as u32;
    let unknown = u32::MAX.checked_shr(differing.leading_zeros()).unwrap_or(0);
    (!(lo as u32) & !unknown, lo as u32 & !unknown)
}

fn bitwise(op: Binary, a: Range, b: Range) -> Bounds {
    // The low bits of values between two multiples of their power.
    let masked = |(lo, hi): Range, mask: Range| {
        let bits = mask.0.trailing_ones();
        let is_mask = mask.0 == mask.1 && mask.0 >= 0 && mask.0.leading_zeros() + bits == 32;
        (is_mask && bits < 32 && lo >> bits == hi >> bits).then_some((lo & mask.0, hi & mask.0))
    };
    if let (Binary::And, Some((lo, hi))) = (op, masked(a, b).or_else(|| masked(b, a))) {
        return Bounds::Int { lo, hi };
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
            let limits = [a, b].into_iter().filter(|range| range.0 >= 0);
            hi = limits.map(|range| range.1).fold(hi, i32::min);
        }
        // No less than either of two that are not negative.
        Binary::Or if a.0 >= 0 && b.0 >= 0 => lo = lo.max(a.0).max(b.0),
        _ => {}
    }
    Bounds::Int { lo, hi }
}

fn shifted(op: Binary, a: Range, b: Range) -> Bounds {
    let places = if b.0 >> 5 == b.1 >> 5 {
        (b.0 & 31, b.1 & 31)
    } else {
        (0, 31)
    };
    let (lo, hi) = match op {
        Binary::Shl => at_corners(a, places, |a, b| a << b),
        _ => at_corners(a, places, |a, b| a >> b),
    };
    bounds(lo, hi)
}

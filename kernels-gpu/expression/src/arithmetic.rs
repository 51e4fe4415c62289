//! The functions of nodes, value by value. Operands of a type for which a function is not defined are returned unchanged: nodes are type-checked.

use super::{Binary, Compare, Unary};

/// The numbers of evaluation: `f32`, in which each function is rounded, and `f64` as the oracle.
pub trait Real: Copy + PartialOrd + std::fmt::Debug {
    /// 0.
    const ZERO: Self;

    /// The same number.
    fn from_f32(x: f32) -> Self;

    /// The nearest number.
    fn from_i32(x: i32) -> Self;

    /// The integer towards zero; saturates, and is 0 for NaN.
    fn to_i32(self) -> i32;

    /// A function from numbers to numbers.
    fn unary(self, op: Unary) -> Self;

    /// A function from numbers to numbers.
    fn binary(self, op: Binary, other: Self) -> Self;
}

/// For the standard library's numbers. −0 is less than 0, as on a GPU.
macro_rules! implement_real {
    ($real:ident) => {
        impl Real for $real {
            const ZERO: $real = 0.0;

            fn from_f32(x: f32) -> $real {
                $real::from(x)
            }

            fn from_i32(x: i32) -> $real {
                x as $real
            }

            fn to_i32(self) -> i32 {
                self as i32
            }

            fn unary(self, op: Unary) -> $real {
                match op {
                    Unary::Neg => -self,
                    Unary::Abs => self.abs(),
                    Unary::Exp2(_) => self.exp2(),
                    Unary::Ln(_) => self.ln(),
                    Unary::Tanh(_) => self.tanh(),
                    Unary::Sigmoid(_) => 1.0 / (1.0 + (-self).exp()),
                    Unary::Sqrt(_) => self.sqrt(),
                    Unary::Not | Unary::ToF32 | Unary::ToI32 => self,
                }
            }

            fn binary(self, op: Binary, other: $real) -> $real {
                let is_less =
                    || self < other || self == other && self.is_sign_negative() || other.is_nan();
                match op {
                    Binary::Add => self + other,
                    Binary::Sub => self - other,
                    Binary::Mul => self * other,
                    Binary::Div => self / other,
                    Binary::Min if is_less() => self,
                    Binary::Min => other,
                    Binary::Max if other.is_nan() || !(is_less() || self.is_nan()) => self,
                    Binary::Max => other,
                    Binary::Rem
                    | Binary::And
                    | Binary::Or
                    | Binary::Xor
                    | Binary::Shl
                    | Binary::Shr => self,
                }
            }
        }
    };
}

implement_real!(f32);
implement_real!(f64);

/// A function from integers to integers.
pub(super) fn unary_int(op: Unary, a: i32) -> i32 {
    match op {
        Unary::Neg => a.wrapping_neg(),
        Unary::Abs => a.wrapping_abs(),
        Unary::Not => !a,
        Unary::ToF32
        | Unary::ToI32
        | Unary::Exp2(_)
        | Unary::Ln(_)
        | Unary::Tanh(_)
        | Unary::Sigmoid(_)
        | Unary::Sqrt(_) => a,
    }
}

/// A function from integers to integers.
pub(super) fn binary_int(op: Binary, a: i32, b: i32) -> i32 {
    match op {
        Binary::Add => a.wrapping_add(b),
        Binary::Sub => a.wrapping_sub(b),
        Binary::Mul => a.wrapping_mul(b),
        Binary::Div if b == 0 => 0,
        Binary::Div => a.wrapping_div(b),
        Binary::Rem if b == 0 => a,
        Binary::Rem => a.wrapping_rem(b),
        Binary::Min => a.min(b),
        Binary::Max => a.max(b),
        Binary::And => a & b,
        Binary::Or => a | b,
        Binary::Xor => a ^ b,
        Binary::Shl => a.wrapping_shl(b as u32),
        Binary::Shr => a.wrapping_shr(b as u32),
    }
}

/// A function from booleans to booleans.
pub(super) fn binary_bool(op: Binary, a: bool, b: bool) -> bool {
    match op {
        Binary::And => a & b,
        Binary::Or => a | b,
        Binary::Xor => a ^ b,
        Binary::Add
        | Binary::Sub
        | Binary::Mul
        | Binary::Div
        | Binary::Rem
        | Binary::Min
        | Binary::Max
        | Binary::Shl
        | Binary::Shr => a,
    }
}

/// How two values compare.
pub(super) fn compare<T: PartialOrd>(op: Compare, a: T, b: T) -> bool {
    match op {
        Compare::Lt => a < b,
        Compare::Le => a <= b,
        Compare::Eq => a == b,
        Compare::Ne => a != b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lesser_and_the_greater_know_nan_and_the_sign_of_zero() {
        let check = |op, a: f32, b: f32, wanted: f32| {
            for (a, b) in [(a, b), (b, a)] {
                let given = a.binary(op, b);
                let is_same =
                    given.to_bits() == wanted.to_bits() || given.is_nan() && wanted.is_nan();
                assert!(is_same, "{op:?} {a} {b}: {given}");
                let given = f64::from(a).binary(op, f64::from(b));
                let wanted = f64::from(wanted);
                assert!(given.to_bits() == wanted.to_bits() || given.is_nan() && wanted.is_nan());
            }
        };
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        for (a, b) in [
            (-0.0, 0.0),
            (1.0, 2.0),
            (-inf, inf),
            (-2.0, 0.0),
            (3.0, inf),
        ] {
            check(Binary::Min, a, b, a);
            check(Binary::Max, a, b, b);
        }
        for x in [-inf, -1.0, -0.0, 0.0, inf, nan] {
            for op in [Binary::Min, Binary::Max] {
                check(op, x, nan, x);
                check(op, x, x, x);
            }
        }
    }

    #[test]
    fn whole_numbers_wrap_around_and_divide_by_all() {
        let (min, max) = (i32::MIN, i32::MAX);
        for (op, a, b, wanted) in [
            (Binary::Add, max, 1, min),
            (Binary::Sub, min, 1, max),
            (Binary::Mul, max, 2, -2),
            (Binary::Div, 7, 0, 0),
            (Binary::Rem, -7, 0, -7),
            (Binary::Div, min, -1, min),
            (Binary::Rem, min, -1, 0),
            (Binary::Div, -7, 2, -3),
            (Binary::Rem, -7, 2, -1),
            (Binary::Shl, 3, 33, 6),
            (Binary::Shr, -5, 33, -3),
            (Binary::Shr, min, -1, -1),
        ] {
            assert_eq!(binary_int(op, a, b), wanted, "{op:?} {a} {b}");
        }
        assert_eq!(unary_int(Unary::Neg, min), min);
        assert_eq!(unary_int(Unary::Abs, min), min);
        assert_eq!(f32::NAN.to_i32(), 0);
        assert_eq!(3e9_f64.to_i32(), max);
        assert_eq!((-1.9_f32).to_i32(), -1);
    }
}

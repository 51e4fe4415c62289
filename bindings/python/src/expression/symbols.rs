//! The symbols that functions compute with: numbers, whole numbers, truth values.

use std::ops::{Neg, Not};

use ferroflash::expression::{Cond as TracedCond, Int as TracedInt, Num as TracedNum};
use pyo3::basic::CompareOp;
use pyo3::prelude::*;

use super::operand::{Number, Pair, Truth, Value, Whole};
use super::operators::{
    Answer, add, and, answer, binary, compare, div, exponential, greater, lesser, method, mul,
    no_truth_value, or, power, quotient, rest, shl, shr, sub, wrong, xor,
};

/// A number of each pair of a query and a key, in float32.
#[pyclass(frozen, module = "ferroflash._native")]
pub(crate) struct Num(pub(crate) TracedNum);

/// A whole number of each pair of a query and a key, of 32 bits; arithmetic wraps around.
#[pyclass(frozen, module = "ferroflash._native")]
pub(crate) struct Int(pub(crate) TracedInt);

/// A truth value of each pair of a query and a key.
#[pyclass(frozen, module = "ferroflash._native")]
pub(crate) struct Cond(pub(crate) TracedCond);

/// A class of numbers: what both have alike, and what one has alone.
macro_rules! arithmetic {
    ($class:ident { $($own:tt)* }) => {
        #[pymethods]
        impl $class {
            /// Scalars of numpy leave operators to the other operand.
            #[classattr]
            fn __array_ufunc__() -> Option<bool> {
                None
            }

            fn __bool__(&self) -> PyResult<bool> {
                Err(no_truth_value())
            }

            fn __richcmp__(&self, other: &Bound<'_, PyAny>, op: CompareOp) -> Answer {
                binary(Value::$class(self.0), other, |a, b| compare(a, b, op))
            }

            fn __add__(&self, other: &Bound<'_, PyAny>) -> Answer {
                binary(Value::$class(self.0), other, add)
            }

            fn __radd__(&self, other: &Bound<'_, PyAny>) -> Answer {
                binary(Value::$class(self.0), other, |a, b| add(b, a))
            }

            fn __sub__(&self, other: &Bound<'_, PyAny>) -> Answer {
                binary(Value::$class(self.0), other, sub)
            }

            fn __rsub__(&self, other: &Bound<'_, PyAny>) -> Answer {
                binary(Value::$class(self.0), other, |a, b| sub(b, a))
            }

            fn __mul__(&self, other: &Bound<'_, PyAny>) -> Answer {
                binary(Value::$class(self.0), other, mul)
            }

            fn __rmul__(&self, other: &Bound<'_, PyAny>) -> Answer {
                binary(Value::$class(self.0), other, |a, b| mul(b, a))
            }

            fn __truediv__(&self, other: &Bound<'_, PyAny>) -> Answer {
                binary(Value::$class(self.0), other, div)
            }

            fn __rtruediv__(&self, other: &Bound<'_, PyAny>) -> Answer {
                binary(Value::$class(self.0), other, |a, b| div(b, a))
            }

            fn __pow__(&self, exponent: &Bound<'_, PyAny>, _modulo: &Bound<'_, PyAny>) -> Answer {
                power(Value::$class(self.0), exponent)
            }

            fn __neg__(&self) -> $class {
                $class(self.0.neg())
            }

            fn __abs__(&self) -> $class {
                $class(self.0.abs())
            }

            /// The lesser; of a number and NaN the number.
            fn min(&self, other: &Bound<'_, PyAny>) -> Answer {
                method("min", Value::$class(self.0), other, lesser)
            }

            /// The greater; of a number and NaN the number.
            fn max(&self, other: &Bound<'_, PyAny>) -> Answer {
                method("max", Value::$class(self.0), other, greater)
            }

            $($own)*
        }
    };
}

arithmetic!(Num {
    fn __rpow__(&self, base: &Bound<'_, PyAny>, _modulo: &Bound<'_, PyAny>) -> Answer {
        exponential(base, self.0)
    }

    /// eˣ, of one instruction's exactness.
    fn exp(&self) -> Num {
        Num(self.0.exp())
    }

    /// eˣ, within a few units of the last place; the error grows with x.
    fn exp_full(&self) -> Num {
        Num(self.0.exp_full())
    }

    /// 2ˣ, of one instruction's exactness.
    fn exp2(&self) -> Num {
        Num(self.0.exp2())
    }

    /// 2ˣ, within a few units of the last place.
    fn exp2_full(&self) -> Num {
        Num(self.0.exp2_full())
    }

    /// The natural logarithm, of one instruction's exactness.
    fn ln(&self) -> Num {
        Num(self.0.ln())
    }

    /// The natural logarithm, within a few units of the last place.
    fn ln_full(&self) -> Num {
        Num(self.0.ln_full())
    }

    /// The hyperbolic tangent, of one instruction's exactness.
    fn tanh(&self) -> Num {
        Num(self.0.tanh())
    }

    /// The hyperbolic tangent, within a few units of the last place.
    fn tanh_full(&self) -> Num {
        Num(self.0.tanh_full())
    }

    /// 1 / (1 + e⁻ˣ), of one instruction's exactness.
    fn sigmoid(&self) -> Num {
        Num(self.0.sigmoid())
    }

    /// 1 / (1 + e⁻ˣ), within a few units of the last place.
    fn sigmoid_full(&self) -> Num {
        Num(self.0.sigmoid_full())
    }

    /// The square root, of one instruction's exactness.
    fn sqrt(&self) -> Num {
        Num(self.0.sqrt())
    }

    /// The square root, within a few units of the last place.
    fn sqrt_full(&self) -> Num {
        Num(self.0.sqrt_full())
    }

    /// The whole number towards zero; the nearest there is for one that is too large, 0 for NaN.
    fn to_i32(&self) -> Int {
        Int(self.0.to_i32())
    }
});

arithmetic!(Int {
    fn __rpow__(&self, base: &Bound<'_, PyAny>, _modulo: &Bound<'_, PyAny>) -> Answer {
        exponential(base, self.0.to_f32())
    }

    fn __floordiv__(&self, other: &Bound<'_, PyAny>) -> Answer {
        binary(Value::Int(self.0), other, quotient)
    }

    fn __rfloordiv__(&self, other: &Bound<'_, PyAny>) -> Answer {
        binary(Value::Int(self.0), other, |a, b| quotient(b, a))
    }

    fn __mod__(&self, other: &Bound<'_, PyAny>) -> Answer {
        binary(Value::Int(self.0), other, rest)
    }

    fn __rmod__(&self, other: &Bound<'_, PyAny>) -> Answer {
        binary(Value::Int(self.0), other, |a, b| rest(b, a))
    }

    fn __lshift__(&self, other: &Bound<'_, PyAny>) -> Answer {
        binary(Value::Int(self.0), other, shl)
    }

    fn __rlshift__(&self, other: &Bound<'_, PyAny>) -> Answer {
        binary(Value::Int(self.0), other, |a, b| shl(b, a))
    }

    fn __rshift__(&self, other: &Bound<'_, PyAny>) -> Answer {
        binary(Value::Int(self.0), other, shr)
    }

    fn __rrshift__(&self, other: &Bound<'_, PyAny>) -> Answer {
        binary(Value::Int(self.0), other, |a, b| shr(b, a))
    }

    fn __and__(&self, other: &Bound<'_, PyAny>) -> Answer {
        binary(Value::Int(self.0), other, and)
    }

    fn __rand__(&self, other: &Bound<'_, PyAny>) -> Answer {
        binary(Value::Int(self.0), other, and)
    }

    fn __or__(&self, other: &Bound<'_, PyAny>) -> Answer {
        binary(Value::Int(self.0), other, or)
    }

    fn __ror__(&self, other: &Bound<'_, PyAny>) -> Answer {
        binary(Value::Int(self.0), other, or)
    }

    fn __xor__(&self, other: &Bound<'_, PyAny>) -> Answer {
        binary(Value::Int(self.0), other, xor)
    }

    fn __rxor__(&self, other: &Bound<'_, PyAny>) -> Answer {
        binary(Value::Int(self.0), other, xor)
    }

    fn __invert__(&self) -> Int {
        Int(self.0.not())
    }

    /// The number, rounded to the nearest.
    fn to_f32(&self) -> Num {
        Num(self.0.to_f32())
    }
});

#[pymethods]
impl Cond {
    /// Scalars of numpy leave operators to the other operand.
    #[classattr]
    fn __array_ufunc__() -> Option<bool> {
        None
    }

    fn __bool__(&self) -> PyResult<bool> {
        Err(no_truth_value())
    }

    fn __and__(&self, other: &Bound<'_, PyAny>) -> Answer {
        binary(Value::Cond(self.0), other, and)
    }

    fn __rand__(&self, other: &Bound<'_, PyAny>) -> Answer {
        binary(Value::Cond(self.0), other, and)
    }

    fn __or__(&self, other: &Bound<'_, PyAny>) -> Answer {
        binary(Value::Cond(self.0), other, or)
    }

    fn __ror__(&self, other: &Bound<'_, PyAny>) -> Answer {
        binary(Value::Cond(self.0), other, or)
    }

    fn __xor__(&self, other: &Bound<'_, PyAny>) -> Answer {
        binary(Value::Cond(self.0), other, xor)
    }

    fn __rxor__(&self, other: &Bound<'_, PyAny>) -> Answer {
        binary(Value::Cond(self.0), other, xor)
    }

    fn __invert__(&self) -> Cond {
        Cond(self.0.not())
    }

    /// `a if self else b`. Both are computed.
    fn select(&self, a: &Bound<'_, PyAny>, b: &Bound<'_, PyAny>) -> Answer {
        macro_rules! selected {
            ($type:ident, $of:ident, $a:expr, $b:expr) => {
                Value::$of(match ($a, $b) {
                    ($type::Symbol(a), $type::Symbol(b)) => self.0.select(a, b),
                    ($type::Symbol(a), $type::Constant(b)) => self.0.select(a, b),
                    ($type::Constant(a), $type::Symbol(b)) => self.0.select(a, b),
                    ($type::Constant(a), $type::Constant(b)) => self.0.select(a, b),
                })
            };
        }
        let pair = match (Value::of(a)?, Value::of(b)?) {
            (Some(a), Some(b)) => a.with(b),
            _ => None,
        };
        let value = match pair {
            Some(Pair::Numbers(a, b)) => selected!(Number, Num, a, b),
            Some(Pair::Wholes(a, b)) => selected!(Whole, Int, a, b),
            Some(Pair::Truths(a, b)) => selected!(Truth, Cond, a, b),
            None => return Err(wrong("select", b, "two numbers, or two truth values")),
        };
        answer(a.py(), Some(value))
    }
}

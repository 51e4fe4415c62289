//! Operators between symbols, and between symbols and constants: which type a result has, and that it is there.

use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Rem, Shl, Shr, Sub};

use ferroflash::expression::Num as TracedNum;
use pyo3::basic::CompareOp;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use super::operand::{Number, Pair, Truth, Value, Whole, of_two};
use super::symbols::{Cond, Int, Num};

/// What an operator gives Python: a symbol, or `NotImplemented`.
pub(super) type Answer = PyResult<Py<PyAny>>;

pub(super) fn answer(py: Python<'_>, value: Option<Value>) -> Answer {
    Ok(match value {
        Some(Value::Num(x)) => Num(x).into_pyobject(py)?.into_any().unbind(),
        Some(Value::Int(x)) => Int(x).into_pyobject(py)?.into_any().unbind(),
        Some(Value::Cond(x)) => Cond(x).into_pyobject(py)?.into_any().unbind(),
        Some(Value::F32(_) | Value::I32(_) | Value::Bool(_)) | None => py.NotImplemented(),
    })
}

/// An operator of two operands, one of which is a symbol.
pub(super) fn binary(
    a: Value,
    b: &Bound<'_, PyAny>,
    of: impl FnOnce(Value, Value) -> Option<Value>,
) -> Answer {
    let b_value = Value::of(b)?;
    answer(b.py(), b_value.and_then(|b| of(a, b)))
}

/// Operators of numbers and of whole numbers.
macro_rules! arithmetic {
    ($($name:ident, $method:ident;)*) => {
        $(pub(super) fn $name(a: Value, b: Value) -> Option<Value> {
            match a.with(b)? {
                Pair::Numbers(a, b) => of_two!(Number, a, b, |x, y| Some(Value::Num(x.$method(y))), None),
                Pair::Wholes(a, b) => of_two!(Whole, a, b, |x, y| Some(Value::Int(x.$method(y))), None),
                Pair::Truths(..) => None,
            }
        })*
    };
}

/// Operators of whole numbers alone.
macro_rules! of_wholes {
    ($($name:ident, $method:ident;)*) => {
        $(pub(super) fn $name(a: Value, b: Value) -> Option<Value> {
            let (a, b) = (a.whole()?, b.whole()?);
            of_two!(Whole, a, b, |x, y| Some(Value::Int(x.$method(y))), None)
        })*
    };
}

/// Operators of truth values, and of whole numbers bit by bit.
macro_rules! bitwise {
    ($($name:ident, $method:ident;)*) => {
        $(pub(super) fn $name(a: Value, b: Value) -> Option<Value> {
            match a.with(b)? {
                Pair::Truths(a, b) => of_two!(Truth, a, b, |x, y| Some(Value::Cond(x.$method(y))), None),
                Pair::Wholes(a, b) => of_two!(Whole, a, b, |x, y| Some(Value::Int(x.$method(y))), None),
                Pair::Numbers(..) => None,
            }
        })*
    };
}

arithmetic! { add, add; sub, sub; mul, mul; }
of_wholes! { quotient, div; rest, rem; shl, shl; shr, shr; }
bitwise! { and, bitand; or, bitor; xor, bitxor; }

/// The quotient of numbers; whole ones are taken for numbers.
pub(super) fn div(a: Value, b: Value) -> Option<Value> {
    let (a, b) = (a.number()?, b.number()?);
    of_two!(Number, a, b, |x, y| Some(Value::Num(x.div(y))), None)
}

/// Whether two numbers compare so. Python turns comparisons round so that the first is a symbol.
pub(super) fn compare(a: Value, b: Value, op: CompareOp) -> Option<Value> {
    macro_rules! compared {
        ($x:expr, $y:expr) => {
            Some(Value::Cond(match op {
                CompareOp::Lt => $x.lt($y),
                CompareOp::Le => $x.le($y),
                CompareOp::Eq => $x.eq($y),
                CompareOp::Ne => $x.ne($y),
                CompareOp::Gt => $x.gt($y),
                CompareOp::Ge => $x.ge($y),
            }))
        };
    }
    match a.with(b)? {
        Pair::Numbers(Number::Symbol(x), Number::Symbol(y)) => compared!(x, y),
        Pair::Numbers(Number::Symbol(x), Number::Constant(y)) => compared!(x, y),
        Pair::Wholes(Whole::Symbol(x), Whole::Symbol(y)) => compared!(x, y),
        Pair::Wholes(Whole::Symbol(x), Whole::Constant(y)) => compared!(x, y),
        _ => None,
    }
}

/// A symbol and another operand, the lesser or greater of which is asked for.
macro_rules! extreme {
    ($($name:ident, $method:ident;)*) => {
        $(pub(super) fn $name(a: Value, b: Value) -> Option<Value> {
            match a.with(b)? {
                Pair::Numbers(Number::Symbol(x), Number::Symbol(y)) => Some(Value::Num(x.$method(y))),
                Pair::Numbers(Number::Symbol(x), Number::Constant(y)) => Some(Value::Num(x.$method(y))),
                Pair::Wholes(Whole::Symbol(x), Whole::Symbol(y)) => Some(Value::Int(x.$method(y))),
                Pair::Wholes(Whole::Symbol(x), Whole::Constant(y)) => Some(Value::Int(x.$method(y))),
                _ => None,
            }
        })*
    };
}
extreme! { lesser, min; greater, max; }

/// What a method gives that takes another operand: no `NotImplemented`, but an error.
pub(super) fn method(
    name: &str,
    a: Value,
    b: &Bound<'_, PyAny>,
    of: impl FnOnce(Value, Value) -> Option<Value>,
) -> Answer {
    match Value::of(b)?.and_then(|b| of(a, b)) {
        Some(value) => answer(b.py(), Some(value)),
        None => Err(wrong(name, b, "a number")),
    }
}

pub(super) fn wrong(name: &str, given: &Bound<'_, PyAny>, allowed: &str) -> PyErr {
    match given.get_type().name() {
        Ok(of) => PyTypeError::new_err(format!("{name} was given {of}; allowed: {allowed}")),
        Err(error) => error,
    }
}

/// The largest power that is written as products.
const MAX_POWER: i32 = 16;

/// `x ** n`, as products or as the square root.
pub(super) fn power(x: Value, exponent: &Bound<'_, PyAny>) -> Answer {
    let value = match (x, Value::of(exponent)?) {
        (Value::Num(x), Some(Value::F32(0.5))) => Some(Value::Num(x.sqrt())),
        (Value::Num(x), Some(Value::I32(n @ 1..=MAX_POWER))) => Some(Value::Num(product(x, n))),
        (Value::Int(x), Some(Value::I32(n @ 1..=MAX_POWER))) => Some(Value::Int(product(x, n))),
        _ => None,
    };
    match value {
        Some(value) => answer(exponent.py(), Some(value)),
        None => Err(PyTypeError::new_err(format!(
            "** was given the exponent {exponent}; allowed: constants, whole numbers from 1 to {MAX_POWER}, and of numbers 0.5. For others write \
             (y * x.ln()).exp()"
        ))),
    }
}

/// x multiplied with itself: squared for every binary digit of n, and multiplied by x where that is 1.
fn product<T: Copy + Mul<Output = T>>(x: T, n: i32) -> T {
    (0..n.ilog2()).rev().fold(x, |so_far, digit| {
        let square = so_far * so_far;
        match n >> digit & 1 {
            1 => square * x,
            _ => square,
        }
    })
}

/// `base ** x` of a constant: a power of 2.
pub(super) fn exponential(base: &Bound<'_, PyAny>, x: TracedNum) -> Answer {
    let py = base.py();
    let base = match Value::of(base)?.and_then(Value::number) {
        Some(Number::Constant(base)) if base > 0.0 => base,
        _ => {
            return Err(wrong(
                "**",
                base,
                "a base that is a constant greater than 0",
            ));
        }
    };
    let exponent = match base {
        2.0 => x,
        _ => x * base.log2(),
    };
    answer(py, Some(Value::Num(exponent.exp2())))
}

/// What Python asks of a value that is none yet.
pub(super) fn no_truth_value() -> PyErr {
    PyTypeError::new_err(
        "a value of an expression is neither true nor false while its function is traced; write a & b for `a and b`, a | b for `a or b`, ~a for \
         `not a`, condition.select(a, b) for `a if condition else b`, (a <= x) & (x < b) for `a <= x < b`, a.min(b) and a.max(b) for min and max",
    )
}

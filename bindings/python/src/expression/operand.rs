//! Values of Python as operands: symbols, constants, and which of two types a result has.
//!
//! A whole number beside a number becomes one. A truth value stays what it is.

use ferroflash::expression::{At, Cond, Int, Num};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyFloat, PyInt, PyType};

use super::symbols;

/// A symbol or a constant.
#[derive(Clone, Copy)]
pub(super) enum Value {
    Num(Num),
    Int(Int),
    Cond(Cond),
    F32(f32),
    I32(i32),
    Bool(bool),
}

/// An operand that is a number.
#[derive(Clone, Copy)]
pub(super) enum Number {
    Symbol(Num),
    Constant(f32),
}

/// An operand that is a whole number.
#[derive(Clone, Copy)]
pub(super) enum Whole {
    Symbol(Int),
    Constant(i32),
}

/// An operand that is a truth value.
#[derive(Clone, Copy)]
pub(super) enum Truth {
    Symbol(Cond),
    Constant(bool),
}

/// Two operands of one type.
#[derive(Clone, Copy)]
pub(super) enum Pair {
    Numbers(Number, Number),
    Wholes(Whole, Whole),
    Truths(Truth, Truth),
}

/// What a function of two operands of one type gives: `$f` is written out for each choice of symbols and constants. Two constants have no trace to
/// belong to, and give what `$none` says.
macro_rules! of_two {
    ($type:ident, $a:expr, $b:expr, |$x:ident, $y:ident| $f:expr, $none:expr) => {
        match ($a, $b) {
            ($type::Symbol($x), $type::Symbol($y)) => $f,
            ($type::Symbol($x), $type::Constant($y)) => $f,
            ($type::Constant($x), $type::Symbol($y)) => $f,
            ($type::Constant(_), $type::Constant(_)) => $none,
        }
    };
}
pub(super) use of_two;

impl Value {
    /// A symbol of a trace, or a number of Python; `None` for everything else. Numbers are those of Python and of numpy, none of tensors.
    pub(super) fn of(given: &Bound<'_, PyAny>) -> PyResult<Option<Value>> {
        if let Ok(symbol) = given.cast::<symbols::Num>() {
            return Ok(Some(Value::Num(symbol.get().0)));
        }
        if let Ok(symbol) = given.cast::<symbols::Int>() {
            return Ok(Some(Value::Int(symbol.get().0)));
        }
        if let Ok(symbol) = given.cast::<symbols::Cond>() {
            return Ok(Some(Value::Cond(symbol.get().0)));
        }
        if let Ok(constant) = given.cast::<PyBool>() {
            return Ok(Some(Value::Bool(constant.is_true())));
        }
        if given.is_instance_of::<PyInt>() || is_number(given, &INTEGRAL, "Integral")? {
            return whole(given).map(|constant| Some(Value::I32(constant)));
        }
        if given.is_instance_of::<PyFloat>() || is_number(given, &REAL, "Real")? {
            return real(given).map(|constant| Some(Value::F32(constant)));
        }
        Ok(None)
    }

    pub(super) fn number(self) -> Option<Number> {
        match self {
            Value::Num(x) => Some(Number::Symbol(x)),
            Value::Int(x) => Some(Number::Symbol(x.to_f32())),
            Value::F32(x) => Some(Number::Constant(x)),
            Value::I32(x) => Some(Number::Constant(x as f32)),
            Value::Cond(_) | Value::Bool(_) => None,
        }
    }

    pub(super) fn whole(self) -> Option<Whole> {
        match self {
            Value::Int(x) => Some(Whole::Symbol(x)),
            Value::I32(x) => Some(Whole::Constant(x)),
            _ => None,
        }
    }

    pub(super) fn truth(self) -> Option<Truth> {
        match self {
            Value::Cond(x) => Some(Truth::Symbol(x)),
            Value::Bool(x) => Some(Truth::Constant(x)),
            _ => None,
        }
    }

    /// Both as one type, if there is one.
    pub(super) fn with(self, other: Value) -> Option<Pair> {
        if let (Some(a), Some(b)) = (self.truth(), other.truth()) {
            return Some(Pair::Truths(a, b));
        }
        if let (Some(a), Some(b)) = (self.whole(), other.whole()) {
            return Some(Pair::Wholes(a, b));
        }
        Some(Pair::Numbers(self.number()?, other.number()?))
    }
}

impl Number {
    /// As a symbol of this trace.
    pub(super) fn within(self, at: At) -> Num {
        match self {
            Number::Symbol(x) => x,
            Number::Constant(x) => at.constant(x),
        }
    }
}

impl Whole {
    /// As a symbol of this trace.
    pub(super) fn within(self, at: At) -> Int {
        match self {
            Whole::Symbol(x) => x,
            Whole::Constant(x) => at.constant(x),
        }
    }
}

impl Truth {
    /// As a symbol of this trace.
    pub(super) fn within(self, at: At) -> Cond {
        match self {
            Truth::Symbol(x) => x,
            Truth::Constant(x) => at.constant(x),
        }
    }
}

/// Classes of the module `numbers`, of which numpy's scalars are, too.
static INTEGRAL: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static REAL: PyOnceLock<Py<PyType>> = PyOnceLock::new();

fn is_number(
    given: &Bound<'_, PyAny>,
    class: &PyOnceLock<Py<PyType>>,
    name: &str,
) -> PyResult<bool> {
    given.is_instance(class.import(given.py(), "numbers", name)?)
}

fn whole(given: &Bound<'_, PyAny>) -> PyResult<i32> {
    let refused = || {
        let text = format!("the constant {given} was given; allowed: whole numbers of 32 bits");
        PyValueError::new_err(text)
    };
    given.extract::<i32>().map_err(|_| refused())
}

fn real(given: &Bound<'_, PyAny>) -> PyResult<f32> {
    let wide: f64 = given.extract()?;
    let constant = wide as f32;
    if constant.is_infinite() && wide.is_finite() {
        let text = format!("the constant {given} was given; allowed: numbers that float32 has");
        return Err(PyValueError::new_err(text));
    }
    Ok(constant)
}

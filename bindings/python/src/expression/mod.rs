//! Scores and masks of the caller's own: functions of Python, traced once.
//!
//! | file | what |
//! |---|---|
//! | `operand` | values of Python as operands: symbols, constants, and which of two types a result has |
//! | `symbols` | the symbols that functions compute with |
//! | `operators` | what Python's operators make of them |
//! | `at` | where a score lies, parameters, tensors |

mod at;
mod operand;
mod operators;
mod symbols;

use ferroflash::MaskExpression;
use ferroflash::expression::{ElementType, Expression, ExpressionError, Type};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

pub(crate) use self::at::{At, Tensor};
use self::operand::Value;
pub(crate) use self::symbols::{Cond, Int, Num};

/// What takes the place of every score: an expression, kept for as long as the process.
#[pyclass(frozen, module = "ferroflash._native")]
pub(crate) struct Score(pub(crate) ferroflash::Score);

/// Which keys a query sees: an expression, kept for as long as the process.
#[pyclass(frozen, module = "ferroflash._native")]
pub(crate) struct Mask(pub(crate) MaskExpression);

/// Parameters, each with its name and type.
type Params = Vec<(&'static str, &'static str)>;

/// Tensors, each with its name, the type of its elements, and how many dimensions it has.
type Tensors = Vec<(&'static str, &'static str, usize)>;

#[pymethods]
impl Score {
    /// Traces a function of a number, the score, and of where it lies, whose value is a number.
    #[staticmethod]
    fn trace(function: &Bound<'_, PyAny>) -> PyResult<Score> {
        let mut failed = None;
        let score = ferroflash::Score::new(|score, at| {
            let value = function.call1((Num(score), At(at)));
            let value = value.and_then(|value| {
                let number = Value::of(&value)?.and_then(Value::number);
                number.ok_or_else(|| returned(&value, "a number"))
            });
            value.map_or_else(|error| kept(&mut failed, error, score), |x| x.within(at))
        });
        failed.map_or_else(|| score.map(Score).map_err(refused), Err)
    }

    /// The expression of a text.
    #[staticmethod]
    fn parse(text: &str) -> PyResult<Score> {
        let expression = Expression::parse(text).map_err(refused)?;
        let score = ferroflash::Score::from_expression(expression);
        score.map(Score).map_err(refused)
    }

    /// All of the expression, as text.
    fn text(&self) -> String {
        self.0.expression().to_text()
    }

    /// What calls give it.
    fn takes(&self) -> (Params, Tensors) {
        takes(self.0.expression())
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }
}

#[pymethods]
impl Mask {
    /// Traces a function of where a score lies, whose value is a truth value.
    #[staticmethod]
    fn trace(function: &Bound<'_, PyAny>) -> PyResult<Mask> {
        let mut failed = None;
        let mask = ferroflash::Mask::new(|at| {
            let value = function.call1((At(at),));
            let value = value.and_then(|value| {
                let truth = Value::of(&value)?.and_then(Value::truth);
                truth.ok_or_else(|| returned(&value, "a truth value, as of a comparison"))
            });
            let any = at.constant(true);
            value.map_or_else(|error| kept(&mut failed, error, any), |x| x.within(at))
        });
        failed.map_or_else(|| mask.map(Mask).map_err(refused), Err)
    }

    /// The expression of a text.
    #[staticmethod]
    fn parse(text: &str) -> PyResult<Mask> {
        let expression = Expression::parse(text).map_err(refused)?;
        let mask = MaskExpression::from_expression(expression);
        mask.map(Mask).map_err(refused)
    }

    /// All of the expression, as text.
    fn text(&self) -> String {
        self.0.expression().to_text()
    }

    /// What calls give it.
    fn takes(&self) -> (Params, Tensors) {
        takes(self.0.expression())
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }
}

fn takes(expression: &'static Expression) -> (Params, Tensors) {
    let params = expression.params().iter().map(|param| {
        let ty = match param.ty {
            Type::I32 => "int32",
            Type::F32 | Type::Bool => "float32",
        };
        (param.name.as_str(), ty)
    });
    let tensors = expression.tensors().iter().map(|tensor| {
        let element = match tensor.element {
            ElementType::F32 => "float32",
            ElementType::F16 => "float16",
            ElementType::Bf16 => "bfloat16",
            ElementType::I32 => "int32",
        };
        (tensor.name.as_str(), element, usize::from(tensor.rank))
    });
    (params.collect(), tensors.collect())
}

/// Keeps the exception that a function has raised, and gives the trace something to go on with.
fn kept<T>(failed: &mut Option<PyErr>, error: PyErr, instead: T) -> T {
    *failed = Some(error);
    instead
}

fn returned(value: &Bound<'_, PyAny>, allowed: &str) -> PyErr {
    let given = value.get_type();
    match given.name() {
        Ok(name) => {
            PyTypeError::new_err(format!("the function returned {name}; allowed: {allowed}"))
        }
        Err(error) => error,
    }
}

fn refused(error: ExpressionError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

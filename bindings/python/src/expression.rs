//! Custom scores and masks: Python functions, traced in Python, as text.

use ferroflash::MaskExpression;
use ferroflash::expression::{ElementType, Expression, ExpressionError, Type};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Parameters, each with its name and type.
type Params = Vec<(&'static str, &'static str)>;

/// Tensors, each with its name, the type of its elements, and how many dimensions it has.
type Tensors = Vec<(&'static str, &'static str, usize)>;

/// A class of expressions, which live as long as the process.
macro_rules! expression {
    ($(#[$doc:meta])* $class:ident($of:ty)) => {
        $(#[$doc])*
        #[pyclass(frozen, module = "ferroflash._native")]
        pub(crate) struct $class(pub(crate) $of);

        #[pymethods]
        impl $class {
            /// The expression of a text.
            #[staticmethod]
            fn parse(text: &str) -> PyResult<$class> {
                let expression = Expression::parse(text).and_then(<$of>::from_expression);
                expression.map($class).map_err(refused)
            }

            /// The whole expression as text.
            fn text(&self) -> String {
                self.0.expression().to_text()
            }

            /// Its parameters and tensors.
            fn takes(&self) -> (Params, Tensors) {
                takes(self.0.expression())
            }

            fn __str__(&self) -> String {
                self.0.to_string()
            }
        }
    };
}

expression! {
    /// A replacement for every score.
    Score(ferroflash::Score)
}

expression! {
    /// Which keys a query sees.
    Mask(MaskExpression)
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

fn refused(error: ExpressionError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

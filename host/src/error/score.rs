//! What is wrong with what a call gives the expressions of its scores.

use ferroflash_expression::{ElementType, ExpressionError, NoReadDims, Type, Use};

use crate::dtype::ScalarType;

/// The expressions of a problem do not go together, or a call does not give what they take.
///
/// The [module](crate::error) has an example.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScoreError {
    /// The score and the mask cannot be of one problem.
    #[error("the expressions of the score and the mask together: {error}")]
    Together {
        /// Why not.
        error: ExpressionError,
    },
    /// The score has no derivative that kernels take: there is no backward pass.
    #[error("the derivative of the score: {error}")]
    NoDerivative {
        /// Why not.
        error: ExpressionError,
    },
    /// More parameters or tensors than any problem's expressions take.
    #[error("{given} {what} were given to the expressions; at most {allowed} are allowed")]
    TooMany {
        /// "parameters", "tensors" or "gradients of tensors".
        what: &'static str,
        /// How many were given.
        given: usize,
        /// How many are allowed.
        allowed: usize,
    },
    /// A parameter or a tensor was given that no expression takes.
    #[error("{what} {name} was given; the expressions take {}", names(.taken))]
    Unknown {
        /// "parameter", "tensor" or "gradient of tensor".
        what: &'static str,
        /// The name given.
        name: String,
        /// The names of those that they take.
        taken: Vec<String>,
    },
    /// A parameter or a tensor was given twice.
    #[error("{name} was given twice; allowed: once")]
    Twice {
        /// Its name.
        name: String,
    },
    /// A parameter or a tensor was not given.
    #[error("{name} is missing: the expressions take {needed}")]
    Missing {
        /// Its name.
        name: String,
        /// What it stands for.
        needed: Use,
    },
    /// A parameter is of another type.
    #[error("parameter {name} is {given}; needed: {needed}")]
    ParamType {
        /// Its name.
        name: String,
        /// Its type.
        given: Type,
        /// The type needed.
        needed: Type,
    },
    /// A tensor has elements of another type.
    #[error("tensor {name} is {given}; needed: {needed}")]
    TensorType {
        /// Its name.
        name: String,
        /// The type of its elements.
        given: ScalarType,
        /// The type needed.
        needed: ElementType,
    },
    /// A tensor has another number of dimensions, or of strides.
    #[error("tensor {name} has {given} {what}; needed: {needed}")]
    TensorRank {
        /// Its name.
        name: String,
        /// "dimensions" or "strides".
        what: &'static str,
        /// How many it has.
        given: usize,
        /// How many are needed.
        needed: usize,
    },
    /// A dimension of a tensor is empty, too long, or has no element for each sequence or head that indexes it.
    #[error("dimension {dim} of tensor {name} has {given} elements; allowed: {min} to {max}")]
    TensorExtent {
        /// Its name.
        name: String,
        /// The dimension, from 0 on.
        dim: usize,
        /// Its elements.
        given: usize,
        /// Least.
        min: usize,
        /// Most.
        max: usize,
    },
    /// A stride of a tensor is negative or beyond what kernels count with.
    #[error("the stride of dimension {dim} of tensor {name} is {given}; allowed: 0 to {max}")]
    TensorStride {
        /// Its name.
        name: String,
        /// The dimension, from 0 on.
        dim: usize,
        /// Its stride, in elements.
        given: i64,
        /// Most.
        max: i64,
    },
    /// The gradient of a tensor was asked for, and it has none.
    #[error("tensor {name} has no gradient: {why}")]
    NoTensorGradient {
        /// Its name.
        name: String,
        /// Why not.
        why: NoReadDims,
    },
    /// A tensor reaches beyond its memory.
    #[error("tensor {name} covers {needed} elements; the memory has {given}")]
    TensorMemory {
        /// Its name.
        name: String,
        /// Elements it reaches over.
        needed: u64,
        /// Elements of the memory.
        given: u64,
    },
    /// A tensor starts at no multiple of its elements' size.
    #[error("tensor {name} lies at {address:#x}, not a multiple of {alignment} bytes")]
    TensorMisaligned {
        /// Its name.
        name: String,
        /// Its address.
        address: u64,
        /// What it must be a multiple of.
        alignment: u64,
    },
}

/// All names, or that there are none.
fn names(taken: &[String]) -> String {
    match taken {
        [] => "none".to_owned(),
        _ => taken.join(", "),
    }
}

//! Errors of expressions.

use std::fmt;

use super::{ElementType, MAX_RANK, Type};

/// The meaning of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Use {
    /// A parameter of this type.
    Param(Type),
    /// A tensor.
    Tensor {
        /// The type of its elements.
        element: ElementType,
        /// How many dimensions it has.
        rank: usize,
    },
}

/// Why there is no expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExpressionError {
    /// There are no nodes.
    Empty,
    /// There are too many nodes (for a traced expression, after simplification).
    Nodes {
        /// How many there are.
        given: usize,
        /// How many there may be.
        allowed: usize,
    },
    /// There are too many parameters.
    Params {
        /// How many there are.
        given: usize,
        /// How many there may be.
        allowed: usize,
    },
    /// There are too many tensors.
    Tensors {
        /// How many there are.
        given: usize,
        /// How many there may be.
        allowed: usize,
    },
    /// A name is not an identifier.
    Name {
        /// The name.
        name: String,
    },
    /// A name has two different meanings.
    Conflict {
        /// The name.
        name: String,
        /// Its first meaning.
        first: Use,
        /// Its later meaning.
        second: Use,
    },
    /// A tensor has no dimensions or too many.
    Rank {
        /// The tensor.
        name: String,
        /// Its dimensions.
        given: usize,
    },
    /// A parameter is neither a number nor an integer.
    ParamType {
        /// The parameter.
        name: String,
    },
    /// A handle was used in the tracing of another expression.
    Foreign,
    /// A mask depends on the score.
    ScoreInMask,
    /// The value does not have the required type.
    Value {
        /// What it is.
        given: Type,
        /// What it must be.
        wanted: Type,
    },
    /// A node refers to one that does not come before it.
    Order {
        /// The node.
        node: usize,
        /// The node that it refers to.
        operand: u32,
    },
    /// A node has operands of types that it is not defined for.
    Operands {
        /// The node.
        node: usize,
    },
    /// A node names a parameter or tensor that is not in the list.
    Missing {
        /// The node.
        node: usize,
        /// The index in the list.
        slot: u8,
    },
    /// The parameters of a call are not those of the expression.
    Given {
        /// What is wrong.
        reason: String,
    },
    /// A line of a text cannot be read.
    Text {
        /// The line, from 1 on.
        line: usize,
        /// What is wrong.
        reason: &'static str,
    },
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Type::F32 => "f32",
            Type::I32 => "i32",
            Type::Bool => "bool",
        })
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ElementType::F32 => "f32",
            ElementType::F16 => "f16",
            ElementType::Bf16 => "bf16",
            ElementType::I32 => "i32",
        })
    }
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Use::Param(ty) => write!(f, "a parameter of type {ty}"),
            Use::Tensor { element, rank } => {
                write!(f, "a tensor of {element} with {rank} dimensions")
            }
        }
    }
}

impl fmt::Display for ExpressionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExpressionError::Empty => f.write_str("an expression without nodes has no value"),
            ExpressionError::Nodes { given, allowed } => {
                write!(
                    f,
                    "the expression has {given} nodes; at most {allowed} are allowed"
                )
            }
            ExpressionError::Params { given, allowed } => {
                write!(
                    f,
                    "the expression has {given} parameters; at most {allowed} are allowed"
                )
            }
            ExpressionError::Tensors { given, allowed } => {
                write!(
                    f,
                    "the expression reads {given} tensors; at most {allowed} are allowed"
                )
            }
            ExpressionError::Name { name } => write!(
                f,
                "{name:?} is no name: a name is made of letters, digits and underscores and does not begin with a digit"
            ),
            ExpressionError::Conflict {
                name,
                first,
                second,
            } => {
                write!(f, "{name} is {first} and later {second}")
            }
            ExpressionError::Rank { name, given } => {
                write!(
                    f,
                    "the tensor {name} has {given} dimensions; 1 to {MAX_RANK} are allowed"
                )
            }
            ExpressionError::ParamType { name } => {
                write!(f, "the parameter {name} must be of type f32 or i32")
            }
            ExpressionError::Foreign => {
                f.write_str("a value was used in the tracing of an expression that it is not of")
            }
            ExpressionError::ScoreInMask => f.write_str("a mask must not depend on the score"),
            ExpressionError::Value { given, wanted } => {
                write!(f, "the value is of type {given} and must be {wanted}")
            }
            ExpressionError::Order { node, operand } => {
                write!(
                    f,
                    "node {node} names node {operand}, which does not come before it"
                )
            }
            ExpressionError::Operands { node } => {
                write!(f, "node {node} is not defined for operands of these types")
            }
            ExpressionError::Missing { node, slot } => {
                write!(
                    f,
                    "node {node} names number {slot} of a list that is not as long"
                )
            }
            ExpressionError::Given { reason } => f.write_str(reason),
            ExpressionError::Text { line, reason } => write!(f, "line {line}: {reason}"),
        }
    }
}

impl std::error::Error for ExpressionError {}

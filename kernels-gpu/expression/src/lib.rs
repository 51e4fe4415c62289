//! Custom scores and masks: expressions that are traced once from a closure, evaluated on the CPU, and inserted as PTX into precompiled kernels.
//! This crate knows no kernel.
//!
//! | module | contents |
//! |---|---|
//! | `build`, `text`, `check` | expressions are made by tracing closures, read from text, and checked |
//! | `simplify`, `band` | equal nodes are merged and constants folded; the sides of a band are split off a mask |
//! | `evaluate`, `bounds`, `derivative`, `reads` | the value at a place, bounds on it in a box of places, derivatives, which elements are read |
//! | [`ptx`] | expressions as PTX in a kernel's text |
//! | `mask_program` | a mask as instructions that a kernel interprets |
//! | `device` | the part that kernels use: the one folder that is also compiled for GPUs |

/// The folder of this crate, in which the builder of device code finds `device`.
pub const MANIFEST_DIR: &str = env!("CARGO_MANIFEST_DIR");

mod arithmetic;
mod band;
mod bounds;
mod build;
mod check;
mod derivative;
mod device;
mod display;
mod error;
mod evaluate;
mod intern;
mod kept;
mod mask_program;
pub mod named;
mod node;
pub mod ptx;
#[doc(hidden)]
pub mod random;
mod reads;
mod simplify;
mod text;

pub use arithmetic::Real;
pub use band::{Seqlens, Sides, WithoutBand};
pub use bounds::{Bounds, MaskOver, Ranges, TensorBounds, Truth};
pub use build::{At, Cond, Int, Num, Operand};
pub use check::{Dependencies, MAX_NAME, MAX_NODES};
pub use device::*;
pub use error::{ExpressionError, Use};
pub use evaluate::{
    Contiguous, Elements, Evaluator, NoTensors, ParamValue, ScoreIndices, Tensors, Value,
};
pub use kept::{Kept, Pool};
pub use mask_program::{MaskMapping, TooLong, mask_mapping, mask_program};
pub use node::{
    Binary, Compare, ElementType, Id, Index, Node, Param, Precision, Tensor, Type, Unary,
};
pub use reads::{NoReadDims, ReadDims};

/// Nodes, each made of those before it. The last is the value. Equal nodes are stored once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Expression {
    nodes: Box<[Node]>,
    params: Box<[Param]>,
    tensors: Box<[Tensor]>,
}

impl Expression {
    /// The nodes, each made of those before it. The last is the value.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The values that each call gives. An expression may name some that its value does not depend on.
    pub fn params(&self) -> &[Param] {
        &self.params
    }

    /// The tensors that each call gives. An expression may name some that its value does not depend on.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }
}

//! Scores and masks of the user's own: expressions that are traced once from a closure, evaluated on the CPU, and written as PTX into kernels
//! that were compiled long before.

mod node;
pub mod ptx;

pub use node::{
    Binary, Compare, ElementType, Id, Index, MAX_RANK, Node, Param, Precision, Tensor, Type, Unary,
};

/// Nodes, each made of those before it, of which the last is the value. Equal nodes are one.
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

    /// The values that each call gives anew.
    pub fn params(&self) -> &[Param] {
        &self.params
    }

    /// The tensors that each call gives anew.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }
}

//! The nodes of an expression.

use core::fmt;

use crate::device::MAX_RANK;
pub use crate::device::interval::{Binary, Compare, Index, Precision, Type, Unary};

/// A node's number in its expression: nodes that it is made of have smaller ones.
pub type Id = u32;

/// A node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Node {
    /// The score: q · k times softmax_scale.
    Score,
    /// Where the score lies.
    Index(Index),
    /// A constant, by its bits.
    F32(u32),
    /// A constant.
    I32(i32),
    /// A constant.
    Bool(bool),
    /// A parameter of the expression, by its place in the list: its value is of the call.
    Param(u8),
    /// A function of one value.
    Unary(Unary, Id),
    /// A function of two values.
    Binary(Binary, Id, Id),
    /// A comparison of two numbers, or of two whole numbers.
    Compare(Compare, Id, Id),
    /// `if .0 { .1 } else { .2 }`.
    Select(Id, Id, Id),
    /// An element of a tensor of the caller's, by its place in the list. Indices behind the tensor's rank are 0, of no meaning. An index outside the
    /// tensor is moved to the nearest one inside.
    Read(u8, [Id; MAX_RANK]),
}

/// A value that each call gives anew.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Param {
    /// By which the call names it.
    pub name: String,
    /// [`Type::F32`] or [`Type::I32`].
    pub ty: Type,
}

/// What the elements of a tensor are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ElementType {
    /// 32 bits: a number.
    F32,
    /// 16 bits: a number.
    F16,
    /// 16 bits: a number.
    Bf16,
    /// 32 bits: a whole number.
    I32,
}

/// A tensor that each call gives anew.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tensor {
    /// By which the call names it.
    pub name: String,
    /// Of its elements.
    pub element: ElementType,
    /// How many dimensions it has: 1 to [`MAX_RANK`].
    pub rank: u8,
}

impl ElementType {
    /// What an element read is.
    pub const fn ty(self) -> Type {
        match self {
            ElementType::F32 | ElementType::F16 | ElementType::Bf16 => Type::F32,
            ElementType::I32 => Type::I32,
        }
    }

    /// Bytes of an element.
    pub const fn size_bytes(self) -> u32 {
        match self {
            ElementType::F32 | ElementType::I32 => 4,
            ElementType::F16 | ElementType::Bf16 => 2,
        }
    }
}

impl fmt::Display for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Index::Batch => "batch",
            Index::Head => "head",
            Index::KvHead => "kv_head",
            Index::Query => "q",
            Index::Key => "k",
            Index::SeqlenQ => "seqlen_q",
            Index::SeqlenK => "seqlen_k",
        })
    }
}

//! The nodes of an expression.

use core::fmt;

use crate::device::MAX_RANK;
pub use crate::device::interval::{Binary, Compare, Index, Precision, Type, Unary};

/// A node's number in its expression: its operands have smaller ones.
pub type Id = u32;

/// A node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Node {
    /// The score: q · k times softmax_scale.
    Score,
    /// An index of the score's position.
    Index(Index),
    /// A constant, by its bits.
    F32(u32),
    /// A constant.
    I32(i32),
    /// A constant.
    Bool(bool),
    /// A parameter of the expression, by its index in the list: each call gives its value.
    Param(u8),
    /// A function of one value.
    Unary(Unary, Id),
    /// A function of two values.
    Binary(Binary, Id, Id),
    /// A comparison of two numbers, or of two integers.
    Compare(Compare, Id, Id),
    /// `if .0 { .1 } else { .2 }`.
    Select(Id, Id, Id),
    /// An element of a tensor of the caller, by the tensor's index in the list. Indices beyond the tensor's rank are 0 and ignored. An index outside
    /// the tensor is clamped to the nearest one inside.
    Read(u8, [Id; MAX_RANK]),
}

/// A parameter, which each call gives.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Param {
    /// Its name.
    pub name: String,
    /// [`Type::F32`] or [`Type::I32`].
    pub ty: Type,
}

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ElementType {
    /// 32 bits: a number.
    F32,
    /// 16 bits: a number.
    F16,
    /// 16 bits: a number.
    Bf16,
    /// 32 bits: an integer.
    I32,
}

/// A tensor that each call gives.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// The type of its elements.
    pub element: ElementType,
    /// How many dimensions it has: 1 to [`MAX_RANK`].
    pub rank: u8,
}

impl ElementType {
    /// The type of an element that is read.
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

//! Expressions as PTX in precompiled kernels.
//!
//! A kernel's PTX has placeholder instructions that ptxas does not know; [`Program::splice`] replaces them before the driver compiles:
//!
//! ```text
//! ferroflash_score_tile BATCH, HEAD, KV_HEAD, SEQLEN_Q, SEQLEN_K, OWN0, OWN1;
//! ferroflash_score_block FIRST;
//! ferroflash_score_block_apart FIRST;
//! ferroflash_score_with_rows M0, M1;
//! ferroflash_score_without_rows M0, M1;
//! ferroflash_score_is_capped P;
//! ferroflash_score X0, X1, X2, X3, C;
//! ferroflash_score_gradient X0, X1, X2, X3, D0, D1, D2, D3, C;
//! ```
//!
//! A thread has two rows, OWN0 and OWN1, which its tile fixes. `X0` and `X1` are row OWN0's raw scores q · k at the running
//! indices FIRST + C and FIRST + C + 1; `X2` and `X3` are row OWN1's. [`ScoreRows`] says whether the rows are queries or keys. The score becomes
//! `f(X · softmax_scale) / unit`, since kernels continue with `exp2(unit · log₂ e · (x − m))`; −∞ where the mask hides it. `D` becomes the
//! derivative of f at the score, 0 where it is hidden. The [`Unit`] is softmax_scale, or the size
//! of a cap in f.
//!
//! After `ferroflash_score_block_apart` X lacks the common term of a row's scores ([`RowTerms`]): for `score + slope · (k − q)` that is
//! `slope · (FIRST − q)`, so that a score costs one multiply-add instead of two. A kernel adds it to a row's maximum, or subtracts it, by
//! `ferroflash_score_with_rows` and `ferroflash_score_without_rows`.
//!
//! `P` of `ferroflash_score_is_capped` becomes 1 if the unit is the size of a cap, else 0: each score then takes a tanh in addition to its
//! exponential, and some kernels schedule their work accordingly.
//!
//! # Where values are computed
//!
//! Values that depend only on the launch, heads or rows are computed once per tile, those that depend on FIRST once per block, and the rest with the
//! scores: once for each column if they do not depend on the row. The code has no branches. Values are passed from one place to another in registers
//! that LLVM does not see.
//!
//! - Scaling is algebraic: for `score + t` the kernel adds `t / softmax_scale`, for `cap · tanh(score / cap)` it computes tanh, and a mask scales nothing.
//! - A multiple of the running index is its value at FIRST plus an immediate, and a bound of it is compared with one.
//!
//! # Exactness
//!
//! Sums and products of numbers are reassociated, and products fused into sums: an error is a few units in the last place of
//! the greatest term. A multiple of an index, converted to a number, is exact below 2²⁴. Integers and masks of them are exact if no sum that is
//! compared or converted to f32 wraps around.
//!
//! | function | fast | full |
//! |---|---|---|
//! | `exp2` | 4 ulp, denormals are 0 | 4 ulp |
//! | `ln` | 2⁻²² absolute near 1, else 2⁻²² relative; denormals count as 0 | 2 ulp |
//! | `tanh` | 2⁻¹¹ relative | 4 ulp |
//! | `sigmoid` | 2⁻¹¹ absolute | 6 ulp; below −87 as there |
//! | `sqrt` | 2 ulp, denormals are 0 | rounded to the nearest |
//! | a / b | 2 ulp where 2⁻¹²⁶ ≤ \|b\| ≤ 2¹²⁶; a divisor that the tile fixes becomes a factor, 2 ulp | |

mod bound;
mod coefficient;
mod emit;
mod error;
mod functions;
mod integer;
#[cfg(test)]
mod interpret;
mod linear;
mod lower;
mod op;
mod reached;
mod scope;
mod splice;
mod tensor;
mod unit;
mod unscaled;

#[cfg(test)]
mod tests;

use std::fmt;

use super::{Expression, Id, Node, Param, Tensor};
use emit::Values;
use lower::Launch;
use op::{Arena, Given, OpId};

pub use crate::device::{RowTerms, ScoreRows};
pub use emit::Program;
pub use error::SpliceError;
pub use op::IndexUse;
pub use reached::reached;
pub use splice::{BLOCK_APART, INSTRUCTION};
pub use tensor::{TENSOR_BYTES, TENSOR_LEN, TENSOR_STRIDE};
pub use unit::{Cap, Unit};

/// Offsets in bytes of a launch's values in the entry's parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ParamOffsets {
    /// softmax_scale as f32: positive and finite.
    pub scale: u32,
    /// The inverse of the [`Edit::unit`] as f32.
    pub inverse_unit: u32,
    /// 32 bits for each of [`Edit::params`].
    pub params: u32,
    /// [`TENSOR_BYTES`] for each of [`Edit::tensors`].
    pub tensors: u32,
}

/// The edit of a call's scores.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Edit {
    /// The new score, a number. Without one scores are unchanged.
    pub score: Option<Expression>,
    /// Whether a score is visible. Without one all are.
    pub mask: Option<Expression>,
    /// The derivative of the new score by the score, a number. Kernels that ask for it need it if there is a new score.
    pub derivative: Option<Expression>,
}

impl Edit {
    fn expressions(&self) -> impl Iterator<Item = &Expression> {
        [&self.score, &self.mask, &self.derivative]
            .into_iter()
            .flatten()
    }

    /// Whether gradients of scores change beyond the mask: the derivative is not 1 everywhere.
    pub fn has_gradient(&self) -> bool {
        let one = [Node::F32(1f32.to_bits())];
        let derivative = self.derivative.as_ref();
        derivative.is_some_and(|derivative| derivative.nodes() != one)
    }

    /// The parameters of the launch in the order of their indices: those of the score, then the new ones of the mask and the derivative. Equal names
    /// and types are merged.
    pub fn params(&self) -> Vec<Param> {
        merged(self.expressions().map(Expression::params))
    }

    /// The tensors of the launch in the order of their indices: those of the score, then the new ones of the mask and the derivative.
    pub fn tensors(&self) -> Vec<Tensor> {
        merged(self.expressions().map(Expression::tensors))
    }
}

/// The union of the lists.
fn merged<'a, T: Clone + PartialEq + 'a>(lists: impl Iterator<Item = &'a [T]>) -> Vec<T> {
    let mut all: Vec<T> = Vec::new();
    for item in lists.flatten() {
        if !all.contains(item) {
            all.push(item.clone());
        }
    }
    all
}

/// An expression cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteError {
    /// A node has operands that do not fit.
    Malformed {
        /// The node, or a later one.
        node: Id,
    },
    /// A score or a derivative is not a number.
    NoNumber,
    /// A mask is not a boolean.
    NoCondition,
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WriteError::Malformed { node } => {
                write!(
                    f,
                    "node {node} of the expression is made of what does not fit"
                )
            }
            WriteError::NoNumber => f.write_str("the expression of a score is no number"),
            WriteError::NoCondition => f.write_str("the expression of a mask is no truth value"),
        }
    }
}

impl std::error::Error for WriteError {}

/// Whether a score is visible.
fn mask_of(edit: &Edit, launch: &Launch<'_>, arena: &mut Arena) -> Result<OpId, WriteError> {
    match &edit.mask {
        Some(mask) => lower::condition(launch, mask, arena),
        None => Ok(arena.bool(true)),
    }
}

impl Program {
    /// The program of an edit, for kernels that take whole scores.
    pub fn new(edit: &Edit, rows: ScoreRows, places: ParamOffsets) -> Result<Program, WriteError> {
        Program::with_row_terms(edit, rows, places, RowTerms::InScores)
    }

    /// The program of an edit's mask, which keeps the scores that the mask shows. Parameters and tensors are those of the whole edit.
    pub fn of_mask(
        edit: &Edit,
        rows: ScoreRows,
        places: ParamOffsets,
    ) -> Result<Program, WriteError> {
        let (params, tensors) = (edit.params(), edit.tensors());
        let launch = Launch {
            rows,
            places,
            params: &params,
            tensors: &tensors,
        };
        let mut arena = Arena::default();
        let keep = mask_of(edit, &launch, &mut arena)?;
        let score = arena.given(Given::X);
        let hidden = arena.f32(f32::NEG_INFINITY);
        let values = Values {
            score: arena.select(score, hidden, keep),
            gradient: None,
            of_row: None,
            terms: RowTerms::InScores,
            is_capped: false,
        };
        Ok(Program::of(arena, values))
    }

    /// The program of an edit.
    pub fn with_row_terms(
        edit: &Edit,
        rows: ScoreRows,
        places: ParamOffsets,
        terms: RowTerms,
    ) -> Result<Program, WriteError> {
        let (params, tensors) = (edit.params(), edit.tensors());
        let launch = Launch {
            rows,
            places,
            params: &params,
            tensors: &tensors,
        };
        let mut arena = Arena::default();
        let keep = mask_of(edit, &launch, &mut arena)?;
        let (score, of_row) = match &edit.score {
            Some(score) => lower::score(&launch, score, edit.unit(), terms, &mut arena)?,
            None => (arena.given(Given::X), None),
        };
        let hidden = arena.f32(f32::NEG_INFINITY);
        let masked = arena.select(score, hidden, keep);
        let unchanged = match &edit.score {
            Some(score) => score.nodes() == [Node::Score],
            None => true,
        };
        let derivative = match &edit.derivative {
            Some(derivative) => Some(lower::number(&launch, derivative, &mut arena)?),
            None if unchanged => Some(arena.f32(1.0)),
            None => None,
        };
        let zero = arena.f32(0.0);
        let gradient = derivative.map(|derivative| arena.select(derivative, zero, keep));
        let values = Values {
            score: masked,
            gradient,
            of_row,
            terms,
            is_capped: edit.is_capped(),
        };
        Ok(Program::of(arena, values))
    }

    /// The text of a kernel with this program in place of the placeholder instructions. A text without them is unchanged.
    pub fn splice(&self, text: &str) -> Result<String, SpliceError> {
        splice::splice(self, text)
    }
}

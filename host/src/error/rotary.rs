//! What is wrong with a rotary position embedding.

use crate::dtype::ScalarType;
use crate::terms::{Layout, MAX_ROTARY_DIM};

/// The embedding, its table, or the tensors it is to turn are not what [`crate::rotary`] takes.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RotaryError {
    /// Elements that form no pairs.
    #[error("rotary_dim is {given}; allowed: even numbers from 2 to {MAX_ROTARY_DIM}")]
    RotaryDim {
        /// The rotary_dim given.
        given: usize,
    },
    /// A row has fewer elements than are to be rotated.
    #[error("rotary_dim is {rotary_dim}; allowed: at most head_dim, {head_dim}")]
    HeadDim {
        /// The table's.
        rotary_dim: usize,
        /// The tensor's.
        head_dim: usize,
    },
    /// A number of the frequencies that makes no sense.
    #[error("{what} is {given}; allowed: finite numbers from {from} on")]
    Factor {
        /// Which.
        what: &'static str,
        /// The number given.
        given: f64,
        /// The least one allowed.
        from: f64,
    },
    /// A table that fits no memory.
    #[error("there is no memory for a table of {given} positions; take fewer")]
    TooManyPositions {
        /// The positions asked for.
        given: usize,
    },
    /// Tables without whole rows, or of different length.
    #[error(
        "cos has {cos} elements, sin {sin}; needed: the same number of both, a multiple of rotary_dim / 2 = {n_pairs}"
    )]
    Tables {
        /// Elements of cos.
        cos: usize,
        /// Elements of sin.
        sin: usize,
        /// Elements of a row.
        n_pairs: usize,
    },
    /// Not as many positions as rows or batch entries.
    #[error("there are {given} positions; needed: {needed}, one for each of the {what}")]
    Positions {
        /// What they are for.
        what: &'static str,
        /// How many were given.
        given: usize,
        /// How many are needed.
        needed: usize,
    },
    /// A position that the table does not have.
    #[error("a row stands at position {given}; allowed: 0 to {}", .n_positions.saturating_sub(1))]
    Position {
        /// The position.
        given: i64,
        /// Positions of the table.
        n_positions: usize,
    },
    /// The rotated tensor has another shape.
    #[error("the rotated tensor has shape {given:?}; needed: {needed:?}")]
    Shape {
        /// Its shape.
        given: [usize; 4],
        /// That of the tensor to be rotated.
        needed: [usize; 4],
    },
    /// The rotated tensor has another type.
    #[error("the rotated tensor is {given}; needed: {needed}")]
    Dtype {
        /// Its type.
        given: ScalarType,
        /// That of the tensor to be rotated.
        needed: ScalarType,
    },
    /// Rows of the rotated tensor share memory.
    #[error("rows of the rotated tensor overlap: {given}; allowed: strides that keep them apart")]
    Overlapping {
        /// Its layout.
        given: Layout,
    },
}

//! The description of a rotation by a rotary position embedding.

use std::fmt;

use super::new_rows::NewRows;
use crate::dtype::Dtype;
use crate::terms::Turns;

/// Rows to be rotated by their positions: see [`crate::Rotate`]. Plain data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RotateProblem {
    dtype: Dtype,
    batch: usize,
    rows: NewRows,
    heads: usize,
    head_dim: usize,
    turns: Turns,
}

impl RotateProblem {
    /// For tensors `[batch, seqlen, heads, head_dim]`.
    pub fn new(dtype: Dtype, shape: [usize; 4], turns: Turns) -> RotateProblem {
        let [batch, seqlen, heads, head_dim] = shape;
        RotateProblem {
            dtype,
            batch,
            rows: NewRows::Padded { seqlen },
            heads,
            head_dim,
            turns,
        }
    }

    /// For this many packed sequences, `[total, heads, head_dim]`: [`RotateInputs::cu_seqlens`](crate::RotateInputs::cu_seqlens) has the first row of each.
    pub fn packed(dtype: Dtype, batch: usize, shape: [usize; 3], turns: Turns) -> RotateProblem {
        let [total, heads, head_dim] = shape;
        RotateProblem {
            dtype,
            batch,
            rows: NewRows::Packed { total },
            heads,
            head_dim,
            turns,
        }
    }

    /// Element type of both tensors.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Number of sequences.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// How rows are rotated.
    pub fn turns(&self) -> Turns {
        self.turns
    }

    /// Shape of both tensors: `[batch, seqlen, heads, head_dim]`; packed, `[1, total, heads, head_dim]`.
    pub fn shape(&self) -> [usize; 4] {
        self.rows.shape(self.batch, self.heads, self.head_dim)
    }

    pub(crate) fn rows(&self) -> NewRows {
        self.rows
    }
}

/// `bf16 x [1, 128, 8, 64], halves 64 of 4096 positions`.
impl fmt::Display for RotateProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {:?}, {}", self.dtype, self.shape(), self.turns)
    }
}

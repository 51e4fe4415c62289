//! The description of a merge: the shape and the type of o over two parts of the keys.

use std::fmt;

use super::Problem;
use crate::dtype::Dtype;

/// o and lse over two parts of the keys, to be merged into those over all of them: see [`crate::Merge`]. Plain data.
///
/// Every o is `[batch, seqlen, heads, head_dim]`, every lse f32 `[batch, heads, seqlen]`, contiguous. Packed sequences are one batch
/// entry: o is `[total, heads, head_dim]`, lse `[heads, total]`. The number of keys of the parts does not matter, nor which of them a query sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MergeProblem {
    dtype: Dtype,
    shape: [usize; 4],
}

impl MergeProblem {
    /// For outputs `[batch, seqlen, heads, head_dim]`.
    pub fn new(dtype: Dtype, shape: [usize; 4]) -> MergeProblem {
        MergeProblem { dtype, shape }
    }

    /// For outputs of packed sequences, `[total, heads, head_dim]`.
    pub fn packed(dtype: Dtype, shape: [usize; 3]) -> MergeProblem {
        let [total, heads, head_dim] = shape;
        MergeProblem::new(dtype, [1, total, heads, head_dim])
    }

    /// For the outputs of this problem's forward pass.
    pub fn of(problem: &Problem) -> MergeProblem {
        MergeProblem::new(problem.dtype(), problem.shape_o())
    }

    /// Element type of every o.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Shape of every o: `[batch, seqlen, heads, head_dim]`.
    pub fn shape(&self) -> [usize; 4] {
        self.shape
    }

    /// Shape of every lse: `[batch, heads, seqlen]`.
    pub fn shape_lse(&self) -> [usize; 3] {
        let [batch, seqlen, heads, _] = self.shape;
        [batch, heads, seqlen]
    }

    /// Number of rows: batch · heads · seqlen. Saturates.
    pub fn n_rows(&self) -> u64 {
        let product = |n: u64, &size: &usize| n.saturating_mul(size as u64);
        match self.shape_lse() {
            sizes if sizes.contains(&0) => 0,
            sizes => sizes.iter().fold(1, product),
        }
    }
}

/// `bf16 o [1, 128, 8, 64]`.
impl fmt::Display for MergeProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} o {:?}", self.dtype, self.shape)
    }
}

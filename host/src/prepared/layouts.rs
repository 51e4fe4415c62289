//! How the tensors of a prepared call lie in memory.

use crate::error::ProblemError;
use crate::problem::Problem;
use crate::tensor::{Description, Layout, LseDescription, Place};
use crate::validate::{ForwardTensors, GradientTensors, n_rows};

/// Layouts of the tensors of a forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardLayouts {
    /// Queries.
    pub q: Layout,
    /// Keys.
    pub k: Layout,
    /// Values.
    pub v: Layout,
    /// Output.
    pub o: Layout,
}

/// Layouts of the tensors that a backward pass has beside those of the forward pass. The gradient of lse is laid out as
/// lse is, and needs no preparing: each call has it or has it not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GradientLayouts {
    /// Gradient of the output.
    pub d_o: Layout,
    /// Gradient of the queries.
    pub d_q: Layout,
    /// Gradient of the keys.
    pub d_k: Layout,
    /// Gradient of the values.
    pub d_v: Layout,
}

impl ForwardLayouts {
    /// All contiguous: `[batch, seqlen, heads, head_dim]`.
    pub fn contiguous(problem: &Problem) -> Result<ForwardLayouts, ProblemError> {
        let (q, k) = contiguous(problem)?;
        Ok(ForwardLayouts { q, k, v: k, o: q })
    }

    pub(crate) fn tensors(
        &self,
        problem: &Problem,
        place: Place,
    ) -> Result<ForwardTensors, ProblemError> {
        let describe = |layout| unplaced(layout, problem, place);
        Ok(ForwardTensors {
            q: describe(self.q),
            k: describe(self.k),
            v: describe(self.v),
            o: describe(self.o),
            lse: LseDescription::contiguous(n_rows(problem)?, place),
        })
    }
}

impl GradientLayouts {
    /// All contiguous: `[batch, seqlen, heads, head_dim]`.
    pub fn contiguous(problem: &Problem) -> Result<GradientLayouts, ProblemError> {
        let (q, k) = contiguous(problem)?;
        Ok(GradientLayouts {
            d_o: q,
            d_q: q,
            d_k: k,
            d_v: k,
        })
    }

    pub(crate) fn tensors(&self, problem: &Problem, place: Place) -> GradientTensors {
        let describe = |layout| unplaced(layout, problem, place);
        GradientTensors {
            d_o: describe(self.d_o),
            d_lse: None,
            d_q: describe(self.d_q),
            d_k: describe(self.d_k),
            d_v: describe(self.d_v),
        }
    }
}

/// The contiguous layouts of a tensor of q's shape and of one of k's.
fn contiguous(problem: &Problem) -> Result<(Layout, Layout), ProblemError> {
    Ok((
        Layout::bshd(problem.shape_q())?,
        Layout::bshd(problem.shape_k())?,
    ))
}

/// A tensor of the problem whose address is not known yet.
fn unplaced(layout: Layout, problem: &Problem, place: Place) -> Description {
    Description {
        layout,
        dtype: problem.dtype,
        place,
        address: 0,
    }
}

//! One attention call: what is computed, and what its backward pass needs of the forward pass.

use std::sync::OnceLock;

use candle_core::Tensor;
use ferroflash::Problem;

use crate::expressions::Edit;
use crate::scales::Scales;
use crate::vectors::{Ints, Vectors};

/// Calls a function for the element type that the type of a problem is.
macro_rules! by_type {
    ($dtype:expr, $function:ident($($argument:expr),*)) => {
        match $dtype {
            ferroflash::Dtype::Bf16 => $function::<half::bf16>($($argument),*),
            ferroflash::Dtype::F16 => $function::<half::f16>($($argument),*),
            ferroflash::Dtype::F32 => $function::<f32>($($argument),*),
        }
    };
}
pub(crate) use by_type;

/// What both passes of a call know.
pub(crate) struct Call {
    /// Sizes, type, mask, scale.
    pub(crate) problem: Problem,
    /// Lengths of sequences, and where they lie.
    pub(crate) vectors: Vectors<Ints>,
    /// What keys and values in 8 bits are multiplied by.
    pub(crate) scales: Option<Scales>,
    /// What expressions of the problem are given.
    pub(crate) edit: Edit,
    /// Row statistics of the forward pass, f32 `[batch, heads_q, seqlen_q]`, of packed queries `[heads_q, total_q]`: set
    /// when it has run.
    lse: OnceLock<Tensor>,
}

/// What the backward pass reads beside q, k and v.
#[derive(Clone, Copy)]
pub(crate) struct Results<'a> {
    /// Output of the forward pass; contiguous.
    pub(crate) o: &'a Tensor,
    /// Its row statistics.
    pub(crate) lse: &'a Tensor,
    /// Gradient of the output, shaped as it; contiguous.
    pub(crate) d_o: &'a Tensor,
    /// Gradient of the row statistics, shaped as they; contiguous. `None` is 0.
    pub(crate) d_lse: Option<&'a Tensor>,
}

impl Call {
    pub(crate) fn new(problem: Problem, vectors: Vectors<Ints>) -> Call {
        Call {
            problem,
            vectors,
            scales: None,
            edit: Edit::default(),
            lse: OnceLock::new(),
        }
    }

    /// Of keys and values in 8 bits.
    pub(crate) fn with_scales(self, scales: Option<Scales>) -> Call {
        Call { scales, ..self }
    }

    /// With expressions, which are given this.
    pub(crate) fn with_edit(self, edit: Edit) -> Call {
        Call { edit, ..self }
    }

    /// Shape of lse, as callers see it.
    pub(crate) fn lse_shape(&self) -> Vec<usize> {
        let [batch, heads, rows] = self.problem.shape_lse();
        match self.problem.total_q() {
            None => vec![batch, heads, rows],
            Some(_) => vec![heads, rows],
        }
    }

    /// Keeps the row statistics of the forward pass, which runs once.
    pub(crate) fn keep_lse(&self, lse: Tensor) {
        // Only this call's own forward pass writes it; a second run of it would give the same.
        let _ = self.lse.set(lse);
    }

    /// The row statistics of the forward pass. An error says that it has not run; nobody who holds its output sees one.
    pub(crate) fn lse(&self) -> candle_core::Result<&Tensor> {
        self.lse.get().ok_or(candle_core::Error::UnwrapNone)
    }
}

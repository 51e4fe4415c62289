//! One attention call: what is computed, and what its backward pass needs of the forward pass.

use std::sync::OnceLock;

use candle_core::Tensor;
use ferroflash::Problem;
use ferroflash::error::ProblemError;

use crate::carried::Carried;
use crate::error::Error;
use crate::options::Beside;
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
    /// What there is beside the mask.
    pub(crate) beside: Beside,
    /// Of which tensors beside q, k and v the backward pass gives the gradients, too.
    pub(crate) carried: Vec<Carried>,
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

/// What a backward pass has written.
pub(crate) struct AllGradients<S> {
    /// Of q, k and v.
    pub(crate) of_inputs: [S; 3],
    /// Of [`Call::carried`].
    pub(crate) of_carried: Vec<S>,
}

impl Call {
    pub(crate) fn new(problem: Problem, vectors: Vectors<Ints>) -> Call {
        Call {
            problem,
            vectors,
            scales: None,
            beside: Beside::default(),
            carried: Vec::new(),
            lse: OnceLock::new(),
        }
    }

    /// Of keys and values in 8 bits.
    pub(crate) fn with_scales(self, scales: Option<Scales>) -> Call {
        Call { scales, ..self }
    }

    /// With what there is beside the mask, and those tensors of it that ask for gradients and have them.
    pub(crate) fn with_beside(self, beside: Beside) -> Call {
        let carried = Carried::all(&self.problem, &beside);
        Call {
            beside,
            carried,
            ..self
        }
    }

    /// An error where a tensor that an expression reads asks for a gradient that it has not: it says why.
    pub(crate) fn refuse_gradients(&self) -> Result<(), Error> {
        for (name, tensor) in self.beside.edit.tensors() {
            if tensor.track_op() {
                let shape = self.problem.score_gradient_shape(name);
                shape.map_err(ProblemError::Score)?;
            }
        }
        Ok(())
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

//! One attention call: what is computed, and what its backward pass needs of the forward pass.

use std::sync::OnceLock;

use candle_core::Tensor;
use ferroflash::Problem;
use ferroflash::arguments::Argument;
use ferroflash::error::ProblemError;
use ferroflash::prepared::Layouts;

use crate::carried::{Carried, Of};
use crate::error::Error;
use crate::given::Given;

/// What both passes of a call know.
pub(crate) struct Call {
    /// Sizes, type, mask, scale.
    pub(crate) problem: Problem,
    /// What it gives beside q, k and v.
    pub(crate) given: Given,
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
    /// Of these tensors that it gives, the backward pass has the gradients of those that ask for one and have one.
    pub(crate) fn new(problem: Problem, given: Given) -> Call {
        let carried = Carried::all(&problem, &given);
        Call {
            problem,
            given,
            carried,
            lse: OnceLock::new(),
        }
    }

    /// The layouts of a backward pass that gives the gradients of what is carried, and no others.
    pub(crate) fn gradients(&self, layouts: Layouts) -> Layouts {
        let given = self.given.read.iter();
        let with_gradient = given.filter_map(|(argument, _)| argument.optional_input()?.gradient);
        let layouts = with_gradient.fold(layouts, Layouts::without);
        let carried = self.carried.iter().map(|carried| match carried.of {
            Of::Input(gradient) => gradient,
            Of::Tensor(_, place) => Argument::SCORE_TENSOR_GRADIENTS[place],
        });
        carried.fold(layouts, Layouts::giving)
    }

    /// An error where a tensor that an expression reads asks for a gradient that it has not: it says why.
    pub(crate) fn refuse_gradients(&self) -> Result<(), Error> {
        for (name, tensor) in self.given.edit.tensors() {
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

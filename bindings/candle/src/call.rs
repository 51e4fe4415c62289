//! One attention call: the problem, and what its backward pass needs from the forward pass.

use std::sync::OnceLock;

use candle_core::Tensor;
use ferroflash::Problem;
use ferroflash::arguments::Argument;
use ferroflash::error::ProblemError;
use ferroflash::prepared::Layouts;

use crate::carried::{Carried, Of};
use crate::error::Error;
use crate::given::Given;

/// The common state of both passes of a call.
pub(crate) struct Call {
    /// Sizes, type, mask, scale.
    pub(crate) problem: Problem,
    /// Its arguments other than q, k and v.
    pub(crate) given: Given,
    /// The tensors other than q, k and v whose gradients the backward pass computes.
    pub(crate) carried: Vec<Carried>,
    /// Row statistics of the forward pass, f32 `[batch, heads_q, seqlen_q]`, with packed queries `[heads_q, total_q]`: set when it has run.
    lse: OnceLock<Tensor>,
}

/// The inputs of the backward pass in addition to q, k and v.
#[derive(Clone, Copy)]
pub(crate) struct Results<'a> {
    /// Output of the forward pass; contiguous.
    pub(crate) o: &'a Tensor,
    /// Its row statistics.
    pub(crate) lse: &'a Tensor,
    /// Gradient of the output, in its shape; contiguous.
    pub(crate) d_o: &'a Tensor,
    /// Gradient of the row statistics, in their shape; contiguous. `None` is 0.
    pub(crate) d_lse: Option<&'a Tensor>,
}

/// The results of a backward pass.
pub(crate) struct AllGradients<S> {
    /// Gradients of q, k and v.
    pub(crate) of_inputs: [S; 3],
    /// Gradients of [`Call::carried`].
    pub(crate) of_carried: Vec<S>,
}

impl Call {
    /// Of these arguments, the backward pass computes the gradients of those that require one and have one.
    pub(crate) fn new(problem: Problem, given: Given) -> Call {
        let carried = Carried::all(&problem, &given);
        Call {
            problem,
            given,
            carried,
            lse: OnceLock::new(),
        }
    }

    /// The layouts of a backward pass that computes the gradients of [`Call::carried`], and no other optional ones.
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

    /// An error if a tensor that an expression reads requires a gradient but has none: it says why.
    pub(crate) fn refuse_gradients(&self) -> Result<(), Error> {
        for (name, tensor) in self.given.edit.tensors() {
            if tensor.track_op() {
                let shape = self.problem.score_gradient_shape(name);
                shape.map_err(ProblemError::Score)?;
            }
        }
        Ok(())
    }

    /// Shape of lse for callers.
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

    /// The row statistics of the forward pass. An error says that it has not run; with its output in hand this cannot happen.
    pub(crate) fn lse(&self) -> candle_core::Result<&Tensor> {
        self.lse.get().ok_or(candle_core::Error::UnwrapNone)
    }
}

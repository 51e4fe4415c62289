//! The optional inputs that calls give.

use ferroflash_kernels::params::{Argument, Extent, VectorType};

use super::{Problem, ProblemBuilder};
use crate::dtype::ScalarType;
use crate::terms::ArgumentSet;

impl ProblemBuilder {
    /// States that calls give this one of the [`optional_inputs`](ferroflash_kernels::optional_inputs). A call that leaves it out is refused.
    ///
    /// A call does not need it: its [`Inputs`](crate::Inputs) say what is given. It is for plans made before a call, such as those of
    /// [`Attention::explain`](crate::Attention::explain). An argument that is not an optional input changes nothing.
    pub fn giving(self, argument: Argument) -> Self {
        let given = [argument].into_iter().collect();
        self.with(|problem| *problem = problem.with_given(given))
    }

    /// Heads have sinks: [`Inputs::sinks`](crate::Inputs::sinks), as [`ProblemBuilder::giving`].
    ///
    /// ```
    /// use ferroflash::{Attention, Device, Dtype, Inputs, Outputs, Problem, Tensor, TensorMut};
    ///
    /// // One query, two keys whose scores are 0, and a sink of ln 2: half of the weight goes to the sink.
    /// let problem = Problem::builder(Dtype::F32).seqlen_q(1).seqlen_k(2).heads(1).head_dim(1).build()?;
    /// let (q, k, v) = ([0f32], [0f32; 2], [3f32, 5.]);
    /// let inputs = Inputs::new(
    ///     &Tensor::bshd(&q, problem.shape_q())?,
    ///     &Tensor::bshd(&k, problem.shape_k())?,
    ///     &Tensor::bshd(&v, problem.shape_v())?,
    /// );
    /// let sinks = [2f32.ln()];
    /// let (mut o, mut lse) = ([0f32], [0f32]);
    /// let mut outputs = Outputs::new(TensorMut::bshd(&mut o, problem.shape_o())?, &mut lse);
    /// Attention::new(&Device::cpu(), problem)?.forward(&inputs.sinks(&sinks), &mut outputs)?;
    /// assert!((o[0] - 2.0).abs() < 1e-6 && (lse[0] - 4f32.ln()).abs() < 1e-6);
    /// # Ok::<(), ferroflash::Error>(())
    /// ```
    pub fn sinks(self) -> Self {
        self.giving(Argument::Sinks)
    }
}

impl Problem {
    /// Whether calls give this one of the optional inputs: see [`ProblemBuilder::giving`].
    pub fn gives(&self, argument: Argument) -> bool {
        self.given.contains(argument)
    }

    /// Type and number of elements of one of the optional inputs; `None` for any other argument.
    pub fn optional_input(&self, argument: Argument) -> Option<(ScalarType, usize)> {
        let input = argument.optional_input()?;
        let dtype = match input.dtype {
            VectorType::I32 => ScalarType::I32,
            VectorType::F32 => ScalarType::F32,
        };
        let n_elems = match input.extent {
            Extent::Batch => self.batch,
            Extent::HeadsQ => self.heads_q,
        };
        Some((dtype, n_elems))
    }

    /// Whether heads have sinks: see [`ProblemBuilder::sinks`].
    pub fn has_sinks(&self) -> bool {
        self.gives(Argument::Sinks)
    }

    /// The same problem for calls that also give these optional inputs; other arguments are ignored.
    pub(crate) fn with_given(&self, arguments: ArgumentSet) -> Problem {
        Problem {
            given: self.given.union(arguments.optional_inputs()),
            ..*self
        }
    }
}

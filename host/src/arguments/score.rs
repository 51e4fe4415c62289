//! The inputs of a call's score expressions, by name.

use ferroflash_expression::{MAX_PARAMS, MAX_TENSORS, ParamValue};
use ferroflash_kernels::params::ScoreParams;

use super::declare::Put;
use super::{Argument, Gradients, Inputs, Operands};
use crate::tensor::{ReadTensor, Vector, VectorMut};

/// Parameters and tensors of the expressions of a problem, by name, in any order: see [`Inputs::score_param`] and [`Inputs::score_tensor`].
#[derive(Clone, Copy, Debug, Default)]
pub struct ScoreInputs<'a> {
    pub(crate) params: Named<'a, ParamValue, MAX_PARAMS>,
    pub(crate) tensors: Named<'a, ReadTensor<'a>, MAX_TENSORS>,
}

/// Outputs for the gradients of tensors that a score reads, by name, in any order: see [`Gradients::d_score_tensor`].
#[derive(Debug, Default)]
pub struct ScoreGradients<'a> {
    pub(crate) tensors: Named<'a, VectorMut<'a>, MAX_TENSORS>,
}

/// Named values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named<'a, T, const N: usize> {
    values: [Option<(&'a str, T)>; N],
    n_given: usize,
}

impl<T, const N: usize> Default for Named<'_, T, N> {
    fn default() -> Self {
        Named {
            values: [const { None }; N],
            n_given: 0,
        }
    }
}

impl<'a, T, const N: usize> Named<'a, T, N> {
    /// Adds one. Those that do not fit are counted: the call refuses them.
    pub(crate) fn push(&mut self, name: &'a str, value: T) {
        if let Some(place) = self.values.get_mut(self.n_given) {
            *place = Some((name, value));
        }
        self.n_given += 1;
    }

    /// How many were given.
    pub(crate) fn n_given(&self) -> usize {
        self.n_given
    }

    /// Those that fit.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &(&'a str, T)> {
        self.values.iter().flatten()
    }

    /// All of them, converted.
    fn reborrow<'o, U>(&'o mut self, of: impl Fn(&'o mut T) -> U) -> Named<'o, U, N> {
        let mut named = Named {
            n_given: self.n_given,
            ..Named::default()
        };
        for (place, value) in named.values.iter_mut().zip(&mut self.values) {
            *place = value.as_mut().map(|(name, value)| (*name, of(value)));
        }
        named
    }

    /// Those that fit, by value.
    pub(crate) fn into_values(self) -> impl Iterator<Item = (&'a str, T)> {
        self.values.into_iter().flatten()
    }

    /// The value of a name.
    pub(crate) fn get(&self, name: &str) -> Option<&T> {
        let found = self.iter().find(|(given, _)| *given == name);
        found.map(|(_, value)| value)
    }
}

impl<'a> Inputs<'a> {
    /// With the value of a parameter that an expression of the problem names. It may differ at each call: kernels are not compiled again, and a
    /// prepared call takes any value.
    #[must_use]
    pub fn score_param(mut self, name: &'a str, value: impl Into<ParamValue>) -> Inputs<'a> {
        self.score.params.push(name, value.into());
        self
    }

    /// With a tensor that an expression of the problem names. It may differ at each call, in shape as well.
    #[must_use]
    pub fn score_tensor(mut self, name: &'a str, tensor: ReadTensor<'a>) -> Inputs<'a> {
        self.score.tensors.push(name, tensor);
        self
    }
}

impl<'a> Gradients<'a> {
    /// Asks for the gradient of a tensor that the problem's score names, summed over all scores that read an element. The score must read it at a
    /// single place, whose indices are batch, head or kv_head, q and k, each once, or 0: a bias `bias[batch, head, q, k]`, or one that batch entries
    /// and heads share, `bias[0, 0, q, k]` (`at.constant(0)`).
    ///
    /// The gradient is contiguous, of the tensor's own type, and has an element for each of these indices: its shape is
    /// [`Problem::score_gradient_shape`](crate::Problem::score_gradient_shape). Sums are in f32 and in a fixed order. Elements of masked pairs are
    /// 0. On a GPU it takes one more kernel, which recomputes the scores and writes none of them to memory.
    ///
    /// A prepared call declares this argument ([`Layouts::giving`](crate::prepared::Layouts::giving)): [`Argument::SCORE_TENSOR_GRADIENTS`], in the
    /// order in which the score names its tensors.
    ///
    /// ```
    /// use ferroflash::{
    ///     Attention, Device, Dtype, Gradients, Inputs, OutputGradients, Outputs, Problem, ReadTensor, Saved, Score, Tensor, TensorMut,
    /// };
    ///
    /// // One query that sees two keys, with a bias; the loss is o.
    /// let score = Score::new(|s, at| s + at.tensor_f32("bias", [at.q, at.k]))?;
    /// let problem = Problem::builder(Dtype::F32).seqlen_q(1).seqlen_k(2).heads(1).head_dim(1).score(score).build()?;
    /// let attention = Attention::new(&Device::cpu(), problem)?;
    /// let (q, k, v, bias) = ([0f32], [0f32; 2], [5f32, 7f32], [0f32, 3f32.ln()]);
    /// let inputs = Inputs::new(
    ///     &Tensor::bshd(&q, problem.shape_q())?,
    ///     &Tensor::bshd(&k, problem.shape_k())?,
    ///     &Tensor::bshd(&v, problem.shape_v())?,
    /// )
    /// .score_tensor("bias", ReadTensor::new(&bias, [1, 2]));
    /// let (mut o, mut lse) = ([0f32], [0f32]);
    /// attention.forward(&inputs, &mut Outputs::new(TensorMut::bshd(&mut o, problem.shape_o())?, &mut lse))?;
    ///
    /// let (mut d_q, mut d_k, mut d_v) = ([0f32], [0f32; 2], [0f32; 2]);
    /// let mut d_bias = [0f32; 2];
    /// let mut gradients = Gradients::new(
    ///     TensorMut::bshd(&mut d_q, problem.shape_q())?,
    ///     TensorMut::bshd(&mut d_k, problem.shape_k())?,
    ///     TensorMut::bshd(&mut d_v, problem.shape_v())?,
    /// )
    /// .d_score_tensor("bias", &mut d_bias);
    /// attention.backward(
    ///     &inputs,
    ///     &Saved::new(&Tensor::bshd(&o, problem.shape_o())?, &lse),
    ///     &OutputGradients::new(&Tensor::bshd(&[1f32], problem.shape_o())?),
    ///     &mut gradients,
    /// )?;
    /// // Weights are 1/4 and 3/4, o is 6.5: p (v − o).
    /// assert!((d_bias[0] + 0.375).abs() < 1e-6 && (d_bias[1] - 0.375).abs() < 1e-6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn d_score_tensor(
        mut self,
        name: &'a str,
        gradient: impl Into<VectorMut<'a>>,
    ) -> Gradients<'a> {
        self.d_score.tensors.push(name, gradient.into());
        self
    }
}

impl<'o> Put<'o> for ScoreInputs<'o> {
    fn put(self, operands: &mut Operands<'o>) {
        operands.put_score_inputs(self);
    }
}

impl<'o> Put<'o> for &'o mut ScoreGradients<'_> {
    fn put(self, operands: &mut Operands<'o>) {
        operands.put_score_gradients(ScoreGradients {
            tensors: self.tensors.reborrow(VectorMut::reborrow),
        });
    }
}

impl<'a> Operands<'a> {
    /// Adds the gradients that the call asks for by name.
    pub(crate) fn put_score_gradients(&mut self, gradients: ScoreGradients<'a>) {
        self.score_gradients = gradients;
    }

    /// Takes them out.
    pub(crate) fn take_score_gradients(&mut self) -> ScoreGradients<'a> {
        std::mem::take(&mut self.score_gradients)
    }

    /// Assigns the gradient of the tensor of this index to the argument that passes expect.
    pub(crate) fn put_score_gradient(&mut self, place: usize, gradient: VectorMut<'a>) {
        self.put(Argument::SCORE_TENSOR_GRADIENTS[place], gradient);
    }

    /// Adds the inputs that the call gives by name.
    pub(crate) fn put_score_inputs(&mut self, given: ScoreInputs<'a>) {
        self.score_inputs = given;
    }

    /// Whether the call gives nothing by name, and asks for no gradient by name.
    pub(crate) fn names_nothing(&self) -> bool {
        let ScoreInputs { params, tensors } = &self.score_inputs;
        let gradients = &self.score_gradients.tensors;
        params.n_given + tensors.n_given + gradients.n_given == 0
    }

    /// The inputs that the call gives by name.
    pub(crate) fn score_inputs(&self) -> &ScoreInputs<'a> {
        &self.score_inputs
    }

    /// Replaces the named inputs by the validated ones; the tensors are in the order in which expressions take them.
    pub(crate) fn put_score(
        &mut self,
        params: ScoreParams,
        tensors: impl IntoIterator<Item = Vector<'a>>,
    ) {
        self.values.score = params;
        for (argument, tensor) in Argument::SCORE_TENSORS.into_iter().zip(tensors) {
            self.put(argument, tensor);
        }
    }
}

//! The first call: [`attend()`], attention as one writes it on paper. It allocates its results, and is a thin layer over [`Attention`].

use std::marker::PhantomData;

use ferroflash_expression::{At, Cond, Num, Operand, ParamValue};

use crate::arguments::{Gradients, Inputs, OutputGradients, Outputs, Saved};
use crate::attention::{Attention, Ran};
use crate::device::Device;
use crate::dtype::Element;
use crate::error::Error;
use crate::place::{Data, Place, Shape};
use crate::problem::{Mask, Order, Problem, ProblemBuilder, Score};
use crate::tensor::{Layout, ReadTensor};

/// o = softmax(q·kᵀ · softmax_scale, masked) · v, and its gradients.
///
/// Each tensor is a pair of data and shape, `[batch, seqlen, heads, head_dim]`, or `[seqlen, heads, head_dim]` for a batch of one. Data are a slice,
/// a `Vec` or an array of `half::bf16`, `half::f16` or `f32`, or a [`DeviceBuffer`](crate::backend::cuda::memory::DeviceBuffer) on a GPU. Results
/// are in the same memory as q. Any [`Layout`] can stand in place of a shape.
///
/// The call states what differs from full attention, then where it runs:
///
/// ```
/// use ferroflash::{Device, attend};
///
/// // One sequence of two tokens, one head of two columns.
/// let shape = [1, 2, 1, 2];
/// let (q, k, v) = ([1f32, 0.0, 0.0, 1.0], [1f32, 0.0, 0.0, 1.0], [1f32, 2.0, 3.0, 4.0]);
///
/// let attended = attend((&q, shape), (&k, shape), (&v, shape)).causal().forward(&Device::best())?;
/// assert_eq!(attended.o[..2], [1.0, 2.0]); // the first token sees itself alone
///
/// let d_o = [1f32; 4];
/// let gradients = attended.backward(&d_o)?;
/// assert_eq!(gradients.d_v[2..], gradients.d_v[3..4].repeat(2));
/// println!("{}", attended.ran); // the backend, the algorithm, the kernels, and why
/// # Ok::<(), ferroflash::Error>(())
/// ```
///
/// Prepare a call once if you make it often on a GPU: [`Attention::prepare_forward`].
pub fn attend<'a, Q, K, V>(
    q: (Q, impl Shape),
    k: (K, impl Shape),
    v: (V, impl Shape),
) -> Call<'a, Q::Element, Q::Place>
where
    Q: Data<'a>,
    K: Data<'a, Element = Q::Element, Place = Q::Place>,
    V: Data<'a, Element = Q::Element, Place = Q::Place>,
{
    let posed = || {
        let (of_q, of_k, of_v) = (q.1.layout()?, k.1.layout()?, v.1.layout()?);
        let (q, k, v) = (q.0.tensor(of_q)?, k.0.tensor(of_k)?, v.0.tensor(of_v)?);
        let problem = Problem::of(Q::Element::DTYPE, of_q, of_k);
        let problem = match of_v.head_dim == of_q.head_dim {
            true => problem,
            false => problem.head_dim_v(of_v.head_dim),
        };
        Ok((problem, Inputs::new(&q, &k, &v)))
    };
    Call {
        place: q.0.place(),
        posed: posed(),
        element: PhantomData,
    }
}

/// A call of [`attend()`] that has not run yet. Errors are reported when it runs.
#[derive(Debug)]
#[must_use = "nothing is computed before `forward`"]
pub struct Call<'a, T, P> {
    place: P,
    posed: Result<(ProblemBuilder, Inputs<'a>), Error>,
    element: PhantomData<T>,
}

impl<'a, T: Element, P: Place> Call<'a, T, P> {
    pub(crate) fn new(place: P, problem: ProblemBuilder, inputs: Inputs<'a>) -> Self {
        Call {
            place,
            posed: Ok((problem, inputs)),
            element: PhantomData,
        }
    }

    /// A query sees the keys up to its own position; the last query is at the position of the last key ([`Mask::Causal`]).
    pub fn causal(self) -> Self {
        self.mask(Mask::Causal)
    }

    /// A query sees its own key, `left` keys before it and `right` keys after it ([`Mask::Window`]).
    pub fn window(self, left: impl Into<Option<usize>>, right: impl Into<Option<usize>>) -> Self {
        self.mask(Mask::Window {
            left: left.into(),
            right: right.into(),
        })
    }

    /// Which keys a query sees.
    pub fn mask(self, mask: Mask) -> Self {
        self.problem(|problem| problem.mask(mask))
    }

    /// Which keys a query sees: a closure decides by the position of the score. With [`Call::mask`] as well, a query sees the keys that both show.
    ///
    /// ```
    /// # use ferroflash::{Device, attend};
    /// # let (x, shape) = ([0.5f32; 64], [1, 8, 1, 8]);
    /// // Every second key.
    /// let call = attend((&x, shape), (&x, shape), (&x, shape)).mask_where(|at| (at.k % 2).eq(0));
    /// assert_eq!(call.forward(&Device::cpu())?.o, x);
    /// # Ok::<(), ferroflash::Error>(())
    /// ```
    pub fn mask_where<R: Operand<Handle = Cond>>(self, f: impl FnOnce(At) -> R) -> Self {
        self.and_then(|problem, inputs| Ok((problem.mask_expression(Mask::new(f)?), inputs)))
    }

    /// Replaces each score, q · k times softmax_scale: a closure computes the new score from it and its position.
    ///
    /// ```
    /// # use ferroflash::{Device, attend};
    /// # let (x, shape) = ([0.5f32; 64], [1, 8, 1, 8]);
    /// // ALiBi: the further away, the less.
    /// let call = attend((&x, shape), (&x, shape), (&x, shape));
    /// let call = call.causal().score(|s, at| s - at.f32("slope") * at.distance().to_f32()).param("slope", 0.5f32);
    /// # call.forward(&Device::cpu())?;
    /// # Ok::<(), ferroflash::Error>(())
    /// ```
    pub fn score<R: Operand<Handle = Num>>(self, f: impl FnOnce(Num, At) -> R) -> Self {
        self.and_then(|problem, inputs| Ok((problem.score(Score::new(f)?), inputs)))
    }

    /// A parameter that the score or the mask names ([`Inputs::score_param`]).
    pub fn param(self, name: &'a str, value: impl Into<ParamValue>) -> Self {
        self.inputs(|inputs| inputs.score_param(name, value))
    }

    /// A tensor that the score or the mask names ([`Inputs::score_tensor`]).
    pub fn tensor(self, name: &'a str, tensor: ReadTensor<'a>) -> Self {
        self.inputs(|inputs| inputs.score_tensor(name, tensor))
    }

    /// The factor of the scores; by default 1/√head_dim.
    pub fn softmax_scale(self, softmax_scale: f32) -> Self {
        self.problem(|problem| problem.softmax_scale(softmax_scale))
    }

    /// Each weight is 0 with probability `p`, the others are divided by 1 − p. Equal seeds and offsets drop the same weights.
    pub fn dropout(self, p: f32, seed: u64, offset: u64) -> Self {
        let call = self.problem(|problem| problem.dropout(p));
        call.inputs(|inputs| inputs.dropout_rng(seed, offset))
    }

    /// Gives up determinism in the backward pass for speed: the results of two runs may differ in their last bits ([`Order::Fastest`]).
    pub fn fastest(self) -> Self {
        self.problem(|problem| problem.order(Order::Fastest))
    }

    /// Any other setting of the problem.
    pub fn problem(self, f: impl FnOnce(ProblemBuilder) -> ProblemBuilder) -> Self {
        self.and_then(|problem, inputs| Ok((f(problem), inputs)))
    }

    /// Any other input: sinks, lengths, a block mask.
    pub fn inputs(self, f: impl FnOnce(Inputs<'a>) -> Inputs<'a>) -> Self {
        self.and_then(|problem, inputs| Ok((problem, f(inputs))))
    }

    fn and_then(
        self,
        f: impl FnOnce(ProblemBuilder, Inputs<'a>) -> Result<(ProblemBuilder, Inputs<'a>), Error>,
    ) -> Self {
        Call {
            posed: self.posed.and_then(|(problem, inputs)| f(problem, inputs)),
            ..self
        }
    }

    /// Runs the forward pass and waits for it. If the device is a GPU, tensors on the host are copied there and back.
    pub fn forward(self, device: &Device) -> Result<Attended<'a, T, P>, Error> {
        let (problem, inputs) = self.posed?;
        let problem = problem.build()?;
        let attention = Attention::new(device, problem)?;
        let [shape_o, shape_lse] = [n(problem.shape_o()), n(problem.shape_lse())];
        let (mut o, mut lse) = (self.place.room::<T>(shape_o)?, self.place.room(shape_lse)?);
        let layout = Layout::bshd(problem.shape_o())?;
        let o_mut = P::tensor_mut(&mut o, layout)?;
        let ran = attention.forward(&inputs, &mut Outputs::new(o_mut, P::vector_mut(&mut lse)))?;
        Ok(Attended {
            o,
            lse,
            ran,
            attention,
            inputs,
            place: self.place,
        })
    }
}

/// The results of [`Call::forward`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Attended<'a, T: Element, P: Place> {
    /// `[batch, seqlen_q, heads_q, head_dim_v]`, contiguous.
    pub o: P::Buffer<T>,
    /// `[batch, heads_q, seqlen_q]`: the natural logarithm of each row's sum of exponentials.
    pub lse: P::Buffer<f32>,
    /// What ran, and why.
    pub ran: Ran,
    attention: Attention,
    inputs: Inputs<'a>,
    place: P,
}

impl<T: Element, P: Place> Attended<'_, T, P> {
    /// The problem of the call and the device it ran on, for further calls of [`Attention`].
    pub fn attention(&self) -> &Attention {
        &self.attention
    }

    /// Runs the backward pass, given the gradient of o, `[batch, seqlen_q, heads_q, head_dim_v]`, contiguous, and waits for it.
    pub fn backward<'d>(
        &self,
        d_o: impl Data<'d, Element = T, Place = P>,
    ) -> Result<Differentiated<T, P>, Error> {
        let problem = self.attention.problem();
        let layout = Layout::bshd(problem.shape_o())?;
        let shapes = [problem.shape_q(), problem.shape_k(), problem.shape_v()];
        let [q, k, v] = shapes.map(|shape| self.place.room::<T>(n(shape)));
        let (mut d_q, mut d_k, mut d_v) = (q?, k?, v?);
        let [of_q, of_k, of_v] = shapes.map(Layout::bshd);
        let ran = self.attention.backward(
            &self.inputs,
            &Saved::new(&P::tensor(&self.o, layout)?, P::vector(&self.lse)),
            &OutputGradients::new(&d_o.tensor(layout)?),
            &mut Gradients::new(
                P::tensor_mut(&mut d_q, of_q?)?,
                P::tensor_mut(&mut d_k, of_k?)?,
                P::tensor_mut(&mut d_v, of_v?)?,
            ),
        )?;
        Ok(Differentiated { d_q, d_k, d_v, ran })
    }
}

/// The results of [`Attended::backward`]: gradients, each contiguous and of the shape of its tensor.
#[derive(Debug)]
#[non_exhaustive]
pub struct Differentiated<T: Element, P: Place> {
    /// Gradient of the queries.
    pub d_q: P::Buffer<T>,
    /// Gradient of the keys.
    pub d_k: P::Buffer<T>,
    /// Gradient of the values.
    pub d_v: P::Buffer<T>,
    /// What ran, and why.
    pub ran: Ran,
}

fn n<const N: usize>(shape: [usize; N]) -> usize {
    shape.iter().product()
}

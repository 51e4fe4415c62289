//! What a call is given: structs of tensors and vectors, of which some may be left out.

use super::{Argument, DropoutRng, Operands, ScoreGradients, ScoreInputs};
use crate::tensor::{Tensor, TensorMut, Vector, VectorMut};

/// What both passes read.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Inputs<'a> {
    /// Queries.
    pub q: Tensor<'a>,
    /// Keys.
    pub k: Tensor<'a>,
    /// Values; `None` where they are columns of the keys.
    pub v: Option<Tensor<'a>>,
    /// Where each sequence of packed queries begins, and where the last one ends: i32 `[batch + 1]`, in rows.
    pub cu_seqlens_q: Option<Vector<'a>>,
    /// The same of packed keys and values.
    pub cu_seqlens_k: Option<Vector<'a>>,
    /// How many of its queries each sequence uses, from the first on: i32 `[batch]`. All, where it is left out.
    pub seqused_q: Option<Vector<'a>>,
    /// How many of its keys and values each sequence uses, from the first on: i32 `[batch]`. All, where it is left out.
    pub seqused_k: Option<Vector<'a>>,
    /// At which of its keys and values each sequence begins: i32 `[batch]`. [`Inputs::seqused_k`] counts from the first row on, the
    /// padding before this one among them. 0, where it is left out.
    pub leftpad_k: Option<Vector<'a>>,
    /// Which page of the pool each page of a sequence is, where keys and values lie in pages: i32 `[batch, columns]`; see
    /// [`Pages`](crate::Pages).
    pub page_table: Option<Vector<'a>>,
    /// What elements of k in 8 bits are to be multiplied by: f32 `[batch, heads_k]` or `[n_pages, heads_k]`, as
    /// [`Fp8Kv`](crate::Fp8Kv) says.
    pub k_descale: Option<Vector<'a>>,
    /// The same of v.
    pub v_descale: Option<Vector<'a>>,
    /// The map of the problem's block mask, u8, of [`Problem::block_mask_shape`](crate::Problem::block_mask_shape): see
    /// [`BlockMask`](crate::BlockMask).
    pub block_mask: Option<Vector<'a>>,
    /// The sinks of the heads, where the problem has some, f32 `[heads_q]`: see [`ProblemBuilder::sinks`](crate::ProblemBuilder::sinks).
    pub sinks: Option<Vector<'a>>,
    /// Seed and offset, where the problem drops weights: see [`Inputs::dropout_rng`].
    pub dropout: Option<DropoutRng<'a>>,
    /// Parameters and tensors of the problem's expressions: see [`Inputs::score_param`] and [`Inputs::score_tensor`].
    pub score: ScoreInputs<'a>,
}

/// What the forward pass writes.
#[derive(Debug)]
#[non_exhaustive]
pub struct Outputs<'a> {
    /// Output.
    pub o: TensorMut<'a>,
    /// Row statistics, f32: the natural logarithm of each row's sum of exponentials. The backward pass reads them; a program that has
    /// none may leave them out.
    pub lse: Option<VectorMut<'a>>,
    /// The weights, softmax(q·kᵀ · softmax_scale, masked), laid out as [`crate::Problem::weights_layout`] says. Only `standard`
    /// holds them: a device without it gives an error. Some rows of one head, on any device: [`Attention::weights`](crate::Attention::weights).
    pub weights: Option<TensorMut<'a>>,
}

/// What the forward pass has written and the backward pass reads.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Saved<'a> {
    /// Output of the forward pass.
    pub o: Tensor<'a>,
    /// Row statistics of the forward pass.
    pub lse: Vector<'a>,
}

/// Gradients of a loss with respect to what the forward pass gave: what the backward pass starts from.
///
/// Most losses depend on o alone. Where lse enters the loss too (merged parts of attention, ring attention), its gradient
/// is added; it costs one subtraction per row.
///
/// ```
/// use ferroflash::{
///     Attention, Device, Dtype, Gradients, Inputs, OutputGradients, Outputs, Problem, Saved, Tensor, TensorMut,
/// };
///
/// // One row that sees two keys, all of one column; the loss is lse.
/// let problem = Problem::builder(Dtype::F32).seqlen_q(1).seqlen_k(2).heads(1).head_dim(1).softmax_scale(1.0).build()?;
/// let attention = Attention::new(&Device::cpu(), problem)?;
/// let (q, k, v) = ([1f32], [0f32, 3f32.ln()], [5f32, 7f32]);
/// let (shape_q, shape_k) = (problem.shape_q(), problem.shape_k());
/// let inputs =
///     Inputs::new(&Tensor::bshd(&q, shape_q)?, &Tensor::bshd(&k, shape_k)?, &Tensor::bshd(&v, problem.shape_v())?);
/// let (mut o, mut lse) = ([0f32], [0f32]);
/// attention.forward(&inputs, &mut Outputs::new(TensorMut::bshd(&mut o, problem.shape_o())?, &mut lse))?;
///
/// let (mut d_q, mut d_k, mut d_v) = ([0f32], [0f32; 2], [0f32; 2]);
/// attention.backward(
///     &inputs,
///     &Saved::new(&Tensor::bshd(&o, problem.shape_o())?, &lse),
///     &OutputGradients::new(&Tensor::bshd(&[0f32], problem.shape_o())?).d_lse(&[1f32]),
///     &mut Gradients::new(
///         TensorMut::bshd(&mut d_q, shape_q)?,
///         TensorMut::bshd(&mut d_k, shape_k)?,
///         TensorMut::bshd(&mut d_v, problem.shape_v())?,
///     ),
/// )?;
/// // The gradient of lse by a score is its weight: 1/4 and 3/4 here.
/// assert!((d_k[0] - 0.25).abs() < 1e-6 && (d_k[1] - 0.75).abs() < 1e-6);
/// assert!((d_q[0] - 0.75 * 3f32.ln()).abs() < 1e-6);
/// assert_eq!(d_v, [0.0; 2]);
/// # Ok::<(), ferroflash::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct OutputGradients<'a> {
    /// Gradient of the output.
    pub d_o: Tensor<'a>,
    /// Gradient of lse; `None` where the loss does not depend on it. What it says of a row whose lse is −∞ is ignored.
    pub d_lse: Option<Vector<'a>>,
}

/// What the backward pass writes.
#[derive(Debug)]
#[non_exhaustive]
pub struct Gradients<'a> {
    /// Of the queries.
    pub d_q: TensorMut<'a>,
    /// Of the keys.
    pub d_k: TensorMut<'a>,
    /// Of the values.
    pub d_v: TensorMut<'a>,
    /// Of the sinks, f32 `[heads_q]`; `None` where there are none, or nobody wants their gradients.
    pub d_sinks: Option<VectorMut<'a>>,
    /// Of tensors that the problem's score reads: see [`Gradients::d_score_tensor`].
    pub d_score: ScoreGradients<'a>,
}

impl<'a> Inputs<'a> {
    /// Queries, keys and values.
    pub fn new(q: &Tensor<'a>, k: &Tensor<'a>, v: &Tensor<'a>) -> Inputs<'a> {
        Inputs {
            v: Some(*v),
            ..Inputs::latent(q, k)
        }
    }

    /// Queries, and keys whose first columns are the values:
    /// [`ProblemBuilder::values_in_keys`](crate::ProblemBuilder::values_in_keys).
    pub fn latent(q: &Tensor<'a>, k: &Tensor<'a>) -> Inputs<'a> {
        Inputs {
            q: *q,
            k: *k,
            v: None,
            cu_seqlens_q: None,
            cu_seqlens_k: None,
            seqused_q: None,
            seqused_k: None,
            leftpad_k: None,
            page_table: None,
            k_descale: None,
            v_descale: None,
            block_mask: None,
            sinks: None,
            dropout: None,
            score: ScoreInputs::default(),
        }
    }

    /// With [`Inputs::cu_seqlens_q`].
    #[must_use]
    pub fn cu_seqlens_q(self, cu_seqlens_q: impl Into<Vector<'a>>) -> Inputs<'a> {
        Inputs {
            cu_seqlens_q: Some(cu_seqlens_q.into()),
            ..self
        }
    }

    /// With [`Inputs::cu_seqlens_k`].
    #[must_use]
    pub fn cu_seqlens_k(self, cu_seqlens_k: impl Into<Vector<'a>>) -> Inputs<'a> {
        Inputs {
            cu_seqlens_k: Some(cu_seqlens_k.into()),
            ..self
        }
    }

    /// With [`Inputs::seqused_q`].
    #[must_use]
    pub fn seqused_q(self, seqused_q: impl Into<Vector<'a>>) -> Inputs<'a> {
        Inputs {
            seqused_q: Some(seqused_q.into()),
            ..self
        }
    }

    /// With [`Inputs::seqused_k`].
    #[must_use]
    pub fn seqused_k(self, seqused_k: impl Into<Vector<'a>>) -> Inputs<'a> {
        Inputs {
            seqused_k: Some(seqused_k.into()),
            ..self
        }
    }

    /// With [`Inputs::leftpad_k`].
    #[must_use]
    pub fn leftpad_k(self, leftpad_k: impl Into<Vector<'a>>) -> Inputs<'a> {
        Inputs {
            leftpad_k: Some(leftpad_k.into()),
            ..self
        }
    }

    /// With [`Inputs::page_table`].
    #[must_use]
    pub fn page_table(self, page_table: impl Into<Vector<'a>>) -> Inputs<'a> {
        Inputs {
            page_table: Some(page_table.into()),
            ..self
        }
    }

    /// With [`Inputs::k_descale`].
    #[must_use]
    pub fn k_descale(self, k_descale: impl Into<Vector<'a>>) -> Inputs<'a> {
        Inputs {
            k_descale: Some(k_descale.into()),
            ..self
        }
    }

    /// With [`Inputs::v_descale`].
    #[must_use]
    pub fn v_descale(self, v_descale: impl Into<Vector<'a>>) -> Inputs<'a> {
        Inputs {
            v_descale: Some(v_descale.into()),
            ..self
        }
    }

    /// With [`Inputs::block_mask`].
    #[must_use]
    pub fn block_mask(self, block_mask: impl Into<Vector<'a>>) -> Inputs<'a> {
        Inputs {
            block_mask: Some(block_mask.into()),
            ..self
        }
    }

    /// With [`Inputs::sinks`].
    #[must_use]
    pub fn sinks(self, sinks: impl Into<Vector<'a>>) -> Inputs<'a> {
        Inputs {
            sinks: Some(sinks.into()),
            ..self
        }
    }

    pub(super) fn put(&self, operands: &mut Operands<'a>) {
        let Inputs {
            q,
            k,
            v,
            cu_seqlens_q,
            cu_seqlens_k,
            seqused_q,
            seqused_k,
            leftpad_k,
            page_table,
            k_descale,
            v_descale,
            block_mask,
            sinks,
            dropout,
            score,
        } = *self;
        operands.put(Argument::Q, q);
        operands.put(Argument::K, k);
        operands.put_optional(Argument::V, v);
        operands.put_optional(Argument::CuSeqlensQ, cu_seqlens_q);
        operands.put_optional(Argument::CuSeqlensK, cu_seqlens_k);
        operands.put_optional(Argument::SeqUsedQ, seqused_q);
        operands.put_optional(Argument::SeqUsedK, seqused_k);
        operands.put_optional(Argument::LeftpadK, leftpad_k);
        operands.put_optional(Argument::PageTable, page_table);
        operands.put_optional(Argument::KDescale, k_descale);
        operands.put_optional(Argument::VDescale, v_descale);
        operands.put_optional(Argument::BlockMask, block_mask);
        operands.put_optional(Argument::Sinks, sinks);
        operands.put_dropout(dropout);
        operands.put_score_inputs(score);
    }
}

impl<'a> Outputs<'a> {
    /// o and lse, without the weights.
    pub fn new(o: TensorMut<'a>, lse: impl Into<VectorMut<'a>>) -> Outputs<'a> {
        Outputs {
            o,
            lse: Some(lse.into()),
            weights: None,
        }
    }

    /// o alone: for a program that has no backward pass. Kernels write lse to the workspace.
    pub fn without_lse(o: TensorMut<'a>) -> Outputs<'a> {
        Outputs {
            o,
            lse: None,
            weights: None,
        }
    }

    /// The weights too.
    #[must_use]
    pub fn weights(self, weights: TensorMut<'a>) -> Outputs<'a> {
        Outputs {
            weights: Some(weights),
            ..self
        }
    }

    pub(super) fn put<'o>(&'o mut self, operands: &mut Operands<'o>) {
        let Outputs { o, lse, weights } = self;
        operands.put(Argument::O, o.reborrow());
        operands.put_optional(Argument::Lse, lse.as_mut().map(VectorMut::reborrow));
        operands.put_optional(Argument::Weights, weights.as_mut().map(TensorMut::reborrow));
    }
}

impl<'a> Saved<'a> {
    /// o and lse.
    pub fn new(o: &Tensor<'a>, lse: impl Into<Vector<'a>>) -> Saved<'a> {
        Saved {
            o: *o,
            lse: lse.into(),
        }
    }

    pub(super) fn put(&self, operands: &mut Operands<'a>) {
        let Saved { o, lse } = *self;
        operands.put(Argument::O, o);
        operands.put(Argument::Lse, lse);
    }
}

impl<'a> OutputGradients<'a> {
    /// Of o alone.
    pub fn new(d_o: &Tensor<'a>) -> OutputGradients<'a> {
        OutputGradients {
            d_o: *d_o,
            d_lse: None,
        }
    }

    /// Of lse too: f32.
    #[must_use]
    pub fn d_lse(self, d_lse: impl Into<Vector<'a>>) -> OutputGradients<'a> {
        OutputGradients {
            d_lse: Some(d_lse.into()),
            ..self
        }
    }

    pub(super) fn put(&self, operands: &mut Operands<'a>) {
        let OutputGradients { d_o, d_lse } = *self;
        operands.put(Argument::DO, d_o);
        operands.put_optional(Argument::DLse, d_lse);
    }
}

impl<'a> Gradients<'a> {
    /// Of queries, keys and values.
    pub fn new(d_q: TensorMut<'a>, d_k: TensorMut<'a>, d_v: TensorMut<'a>) -> Gradients<'a> {
        Gradients {
            d_q,
            d_k,
            d_v,
            d_sinks: None,
            d_score: ScoreGradients::default(),
        }
    }

    /// Of the sinks, too: f32.
    #[must_use]
    pub fn d_sinks(self, d_sinks: impl Into<VectorMut<'a>>) -> Gradients<'a> {
        Gradients {
            d_sinks: Some(d_sinks.into()),
            ..self
        }
    }

    pub(super) fn put<'o>(&'o mut self, operands: &mut Operands<'o>) {
        operands.put(Argument::DQ, self.d_q.reborrow());
        operands.put(Argument::DK, self.d_k.reborrow());
        operands.put(Argument::DV, self.d_v.reborrow());
        let d_sinks = self.d_sinks.as_mut().map(VectorMut::reborrow);
        operands.put_optional(Argument::DSinks, d_sinks);
        operands.put_score_gradients(&mut self.d_score);
    }
}

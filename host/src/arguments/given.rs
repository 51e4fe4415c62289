//! What a call is given: structs of tensors and vectors, of which some may be left out.

use ferroflash_kernels::optional_inputs;

use super::declare::{Give, Put, arguments};
use super::{Argument, DropoutRng, Operands, ScoreGradients, ScoreInputs};
use crate::tensor::{Tensor, TensorMut, Vector, VectorMut};

/// [`Inputs`] and [`Gradients`], with the fields of the [`optional_inputs`].
macro_rules! inputs_and_gradients {
    ($(
        $(#[$doc:meta])*
        $argument:ident $field:ident: $dtype:ident [$extent:ident], of $effect:ident $(compiled $constant:literal)? $(, gradient $gradient:ident $of_field:ident)?;
    )*) => {
        arguments! {
            /// What both passes read.
            #[derive(Clone, Copy, Debug)]
            read struct Inputs {
                required {
                    /// Queries.
                    q: Tensor = Q,
                    /// Keys.
                    k: Tensor = K,
                }
                optional {
                    /// Values; `None` where they are columns of the keys.
                    v: Tensor = V,
                    /// Where each sequence of packed queries begins, and where the last one ends: i32 `[batch + 1]`, in rows.
                    cu_seqlens_q: Vector = CuSeqlensQ,
                    /// The same of packed keys and values.
                    cu_seqlens_k: Vector = CuSeqlensK,
                    /// Which page of the pool each page of a sequence is, where keys and values lie in pages: i32 `[batch, columns]`; see
                    /// [`Pages`](crate::Pages).
                    page_table: Vector = PageTable,
                    /// What elements of k in 8 bits are to be multiplied by: f32 `[batch, heads_k]` or `[n_pages, heads_k]`, as
                    /// [`Fp8Kv`](crate::Fp8Kv) says.
                    k_descale: Vector = KDescale,
                    /// The same of v.
                    v_descale: Vector = VDescale,
                    /// The map of the problem's block mask, u8, of [`Problem::block_mask_shape`](crate::Problem::block_mask_shape): see
                    /// [`BlockMask`](crate::BlockMask).
                    block_mask: Vector = BlockMask,
                    $($(#[$doc])* $field: Vector = $argument,)*
                }
                others {
                    /// Seed and offset, where the problem drops weights: see [`Inputs::dropout_rng`].
                    dropout: Option<DropoutRng<'a>> = None,
                    /// Parameters and tensors of the problem's expressions: see [`Inputs::score_param`] and [`Inputs::score_tensor`].
                    score: ScoreInputs<'a> = ScoreInputs::default(),
                }
            }
        }

        impl<'a> Inputs<'a> {
            /// With the vector of this name: `inputs.with(Argument::SeqUsedK, v)` is `inputs.seqused_k(v)`. What is no such vector changes nothing.
            #[must_use]
            pub fn with(mut self, argument: Argument, vector: impl Into<Vector<'a>>) -> Inputs<'a> {
                let place = match argument {
                    Argument::CuSeqlensQ => &mut self.cu_seqlens_q,
                    Argument::CuSeqlensK => &mut self.cu_seqlens_k,
                    Argument::PageTable => &mut self.page_table,
                    Argument::KDescale => &mut self.k_descale,
                    Argument::VDescale => &mut self.v_descale,
                    Argument::BlockMask => &mut self.block_mask,
                    $(Argument::$argument => &mut self.$field,)*
                    _ => return self,
                };
                *place = Some(vector.into());
                self
            }
        }

        arguments! {
            /// What the backward pass writes.
            #[derive(Debug)]
            write struct Gradients {
                required {
                    /// Of the queries.
                    d_q: TensorMut = DQ,
                    /// Of the keys.
                    d_k: TensorMut = DK,
                    /// Of the values.
                    d_v: TensorMut = DV,
                }
                optional {
                    $($(
                        #[doc = concat!("Of the ", stringify!($field), ", of the same type and shape; `None` where there are none, or nobody wants it.")]
                        $of_field: VectorMut = $gradient,
                    )?)*
                }
                others {
                    /// Of tensors that the problem's score reads: see [`Gradients::d_score_tensor`].
                    d_score: ScoreGradients<'a> = ScoreGradients::default(),
                }
            }
        }
    };
}
optional_inputs! { inputs_and_gradients!() }

arguments! {
    /// What the forward pass writes.
    #[derive(Debug)]
    write struct Outputs {
        required {
            /// Output.
            o: TensorMut = O,
        }
        optional {
            /// Row statistics, f32: the natural logarithm of each row's sum of exponentials. The backward pass reads them; a program
            /// that has none may leave them out.
            lse: VectorMut = Lse,
            /// The weights, softmax(q·kᵀ · softmax_scale, masked), laid out as [`crate::Problem::weights_layout`] says. Only `standard`
            /// holds them: a device without it gives an error. Some rows of one head, on any device:
            /// [`Attention::weights`](crate::Attention::weights).
            weights: TensorMut = Weights,
        }
        others {}
    }
}

arguments! {
    /// What the forward pass has written and the backward pass reads.
    #[derive(Clone, Copy, Debug)]
    read struct Saved {
        required {
            /// Output of the forward pass.
            o: Tensor = O,
            /// Row statistics of the forward pass.
            lse: Vector = Lse,
        }
        optional {}
        others {}
    }
}

arguments! {
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
    read struct OutputGradients {
        required {
            /// Gradient of the output.
            d_o: Tensor = DO,
        }
        optional {
            /// Gradient of lse, f32; `None` where the loss does not depend on it. What it says of a row whose lse is −∞ is ignored.
            d_lse: Vector = DLse,
        }
        others {}
    }
}

impl<'a> Inputs<'a> {
    /// Queries, keys and values.
    pub fn new(q: &Tensor<'a>, k: &Tensor<'a>, v: &Tensor<'a>) -> Inputs<'a> {
        Inputs::required(*q, *k).v(v)
    }

    /// Queries, and keys whose first columns are the values:
    /// [`ProblemBuilder::values_in_keys`](crate::ProblemBuilder::values_in_keys).
    pub fn latent(q: &Tensor<'a>, k: &Tensor<'a>) -> Inputs<'a> {
        Inputs::required(*q, *k)
    }
}

impl<'a> Outputs<'a> {
    /// o and lse, without the weights.
    pub fn new(o: TensorMut<'a>, lse: impl Into<VectorMut<'a>>) -> Outputs<'a> {
        Outputs::required(o).lse(lse)
    }

    /// o alone: for a program that has no backward pass. Kernels write lse to the workspace.
    pub fn without_lse(o: TensorMut<'a>) -> Outputs<'a> {
        Outputs::required(o)
    }
}

impl<'a> Saved<'a> {
    /// o and lse.
    pub fn new(o: &Tensor<'a>, lse: impl Into<Vector<'a>>) -> Saved<'a> {
        Saved::required(*o, lse.into())
    }
}

impl<'a> OutputGradients<'a> {
    /// Of o alone.
    pub fn new(d_o: &Tensor<'a>) -> OutputGradients<'a> {
        OutputGradients::required(*d_o)
    }
}

impl<'a> Gradients<'a> {
    /// Of queries, keys and values.
    pub fn new(d_q: TensorMut<'a>, d_k: TensorMut<'a>, d_v: TensorMut<'a>) -> Gradients<'a> {
        Gradients::required(d_q, d_k, d_v)
    }
}

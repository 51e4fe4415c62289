//! The arguments of attention: structs of tensors and vectors, some of them optional.

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
            /// The inputs of both passes.
            ///
            /// The [crate's documentation](crate) has an example.
            #[derive(Clone, Copy, Debug)]
            read struct Inputs {
                required {
                    /// Queries.
                    q: Tensor = Q,
                    /// Keys.
                    k: Tensor = K,
                }
                optional {
                    /// Values; `None` if they are columns of the keys.
                    v: Tensor = V,
                    /// The first row of each sequence of packed queries, and the end of the last: i32 `[batch + 1]`.
                    cu_seqlens_q: Vector = CuSeqlensQ,
                    /// The same for packed keys and values.
                    cu_seqlens_k: Vector = CuSeqlensK,
                    /// The pages of each sequence in the pool, if keys and values are in pages: i32 `[batch, columns]`; see
                    /// [`Pages`](crate::Pages).
                    page_table: Vector = PageTable,
                    /// The scales of k in 8 bits: f32 `[batch, heads_k]` or `[n_pages, heads_k]`, as
                    /// [`Fp8Kv`](crate::Fp8Kv) says.
                    k_descale: Vector = KDescale,
                    /// Scales of queries in 8 bits: f32, the shape is what [`Fp8`](crate::Fp8) says.
                    q_descale: Vector = QDescale,
                    /// The scales of v.
                    v_descale: Vector = VDescale,
                    /// The map of the problem's block mask, u8, of [`Problem::block_mask_shape`](crate::Problem::block_mask_shape): see
                    /// [`BlockMask`](crate::BlockMask).
                    block_mask: Vector = BlockMask,
                    $($(#[$doc])* $field: Vector = $argument,)*
                }
                others {
                    /// Seed and offset of dropout: see [`Inputs::dropout_rng`].
                    dropout: Option<DropoutRng<'a>> = None,
                    /// Parameters and tensors of the problem's expressions: see [`Inputs::score_param`] and [`Inputs::score_tensor`].
                    score: ScoreInputs<'a> = ScoreInputs::default(),
                }
            }
        }

        impl<'a> Inputs<'a> {
            /// With the vector of this name: `inputs.with(Argument::SeqUsedK, v)` is `inputs.seqused_k(v)`. An argument that is not an optional
            /// vector changes nothing.
            #[must_use]
            pub fn with(mut self, argument: Argument, vector: impl Into<Vector<'a>>) -> Inputs<'a> {
                let place = match argument {
                    Argument::CuSeqlensQ => &mut self.cu_seqlens_q,
                    Argument::CuSeqlensK => &mut self.cu_seqlens_k,
                    Argument::PageTable => &mut self.page_table,
                    Argument::QDescale => &mut self.q_descale,
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
            /// The outputs of the backward pass.
            ///
            /// [`OutputGradients`] has an example.
            #[derive(Debug)]
            write struct Gradients {
                required {
                    /// Gradient of the queries.
                    d_q: TensorMut = DQ,
                    /// Gradient of the keys.
                    d_k: TensorMut = DK,
                    /// Gradient of the values.
                    d_v: TensorMut = DV,
                }
                optional {
                    $($(
                        #[doc = concat!("Of the ", stringify!($field), ", of the same type and shape; `None` where there are none, or nobody wants it.")]
                        $of_field: VectorMut = $gradient,
                    )?)*
                }
                others {
                    /// Gradients of tensors that the problem's score reads: see [`Gradients::d_score_tensor`].
                    d_score: ScoreGradients<'a> = ScoreGradients::default(),
                }
            }
        }
    };
}
optional_inputs! { inputs_and_gradients!() }

arguments! {
    /// The outputs of the forward pass.
    ///
    /// The [crate's documentation](crate) has an example.
    #[derive(Debug)]
    write struct Outputs {
        required {
            /// Output.
            o: TensorMut = O,
        }
        optional {
            /// Row statistics, f32: the natural logarithm of each row's sum of exponentials. The backward pass reads them; a program without a
            /// backward pass may leave them out.
            lse: VectorMut = Lse,
            /// The weights, softmax(q·kᵀ · softmax_scale, masked), in the layout [`crate::Problem::weights_layout`]. Only `standard` computes them:
            /// a device without it gives an error. For some rows of one head, on any device:
            /// [`Attention::weights`](crate::Attention::weights).
            weights: TensorMut = Weights,
        }
        others {}
    }
}

arguments! {
    /// Results of the forward pass that the backward pass reads.
    ///
    /// [`OutputGradients`] has an example.
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
    /// Gradients of a loss with respect to the results of the forward pass: the inputs of the backward pass.
    ///
    /// Most losses depend on o alone. If lse enters the loss as well (merged parts of attention, ring attention), its gradient is added; that costs
    /// one subtraction per row.
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
            /// Gradient of lse, f32; `None` if the loss does not depend on it. It is ignored for a row whose lse is −∞.
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

    /// Only o: for a program without a backward pass. Kernels write lse to the workspace.
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
    /// Only the gradient of o.
    pub fn new(d_o: &Tensor<'a>) -> OutputGradients<'a> {
        OutputGradients::required(*d_o)
    }
}

impl<'a> Gradients<'a> {
    /// The gradients of queries, keys and values.
    pub fn new(d_q: TensorMut<'a>, d_k: TensorMut<'a>, d_v: TensorMut<'a>) -> Gradients<'a> {
        Gradients::required(d_q, d_k, d_v)
    }
}

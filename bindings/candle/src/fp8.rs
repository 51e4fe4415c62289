//! Attention in 8 bits with gradients: q, k and v are rounded to e4m3 on the way.

use std::sync::OnceLock;

use candle_core::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Tensor};
use ferroflash::arguments::Argument;
use ferroflash::{Fp8, Fp8Sums, QuantizeProblem};

use crate::call::Call;
use crate::error::Error;
use crate::given::{Given, Source};
use crate::layout::{aligned, tensor};
use crate::memory::{Host, Place, Stored};
use crate::operation::rounded_attention;
use crate::passes;
use crate::request::{Checked, Request, Sequences};
use crate::rules::{backend, dims, dtype, has_rank, has_shape, has_type, same_device};

/// As [`flash_attn_windowed`](crate::flash_attn_windowed), with the products of the forward pass in 8 bits: o, in the shape and type of `q`.
///
/// q, k and v are rounded to e4m3 first, each sequence and head of keys with a scale of its own, the greatest magnitude / 448. What is kept for the backward pass
/// are the rounded tensors. It takes them out of 8 bits, and multiplies in the type of `q`; its gradients are those of what the rounded tensors stand for, and go to
/// q, k and v as they are (a straight-through estimator). With an infinity or a NaN in a tensor, the result is NaN.
///
/// * `q`, `k`, `v`, `softmax_scale`, windows: as for [`flash_attn_windowed`](crate::flash_attn_windowed). On a GPU of compute capability 9.0, head_dims that are multiples of 16 up
///   to 256.
/// * `sums`: [`Fp8Sums::TwoLevels`], or [`Fp8Sums::OneLevel`] for speed above head_dim 128 and under masks: o is then too small where the values of a column have a mean, the
///   more the longer the sequence, by 2 % at 2048 keys and 18 % at 16384 where mean and deviation are alike.
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use candle_ferroflash::Fp8Sums;
///
/// let x = Var::randn(0f32, 1f32, (2, 128, 4, 64), &Device::Cpu)?;
/// let o = candle_ferroflash::flash_attn_fp8(&x, &x, &x, 0.125, None, Some(0), Fp8Sums::TwoLevels)?;
/// let exact = candle_ferroflash::flash_attn(&x, &x, &x, 0.125, true)?;
/// let error = (&o - &exact)?.sqr()?.mean_all()?.to_scalar::<f32>()?.sqrt();
/// assert!(error > 0.0 && error < 0.1);
/// assert!(o.sum_all()?.backward()?.get(&x).is_some());
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn flash_attn_fp8(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    sums: Fp8Sums,
) -> Result<Tensor> {
    let request =
        Request::new([q, k, v], softmax_scale).window(window_size_left, window_size_right);
    attention(request.dense()?, sums)
}

/// As [`flash_attn_fp8`], of packed sequences, as for [`flash_attn_varlen_windowed`](crate::flash_attn_varlen_windowed): each sequence and head of keys has a scale of
/// its own.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_ferroflash::Fp8Sums;
///
/// // Sequences of 3 and 5 rows.
/// let x = Tensor::randn(0f32, 1f32, (8, 4, 64), &Device::Cpu)?;
/// let ends = Tensor::new(&[0u32, 3, 8], &Device::Cpu)?;
/// let o = candle_ferroflash::flash_attn_varlen_fp8(&x, &x, &x, &ends, &ends, 5, 5, 0.125, None, Some(0), Fp8Sums::TwoLevels)?;
/// assert_eq!(o.dims(), [8, 4, 64]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[expect(
    clippy::too_many_arguments,
    reason = "those of candle-flash-attn, and one"
)]
pub fn flash_attn_varlen_fp8(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    sums: Fp8Sums,
) -> Result<Tensor> {
    let request =
        Request::new([q, k, v], softmax_scale).window(window_size_left, window_size_right);
    let sequences = Sequences {
        seqlens_q,
        seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
    };
    attention(request.packed(sequences)?, sums)
}

/// A checked call on tensors that are rounded first.
fn attention(Checked { call, inputs }: Checked, sums: Fp8Sums) -> Result<Tensor> {
    let problem = call.problem.to_builder().fp8(Fp8::PerHead).fp8_sums(sums);
    let problem = problem.build();
    let problem = problem.map_err(Error::from)?;
    let of_q = (problem.seqlen_q(), call.given.source(Argument::CuSeqlensQ));
    let of_k = (problem.seqlen_k(), call.given.source(Argument::CuSeqlensK));
    let rounded = |at: usize, (max_seqlen, lengths): (usize, Option<Source>)| {
        let (x, heads_k) = (inputs[at].detach(), problem.heads_k());
        let of_x = match lengths {
            None => QuantizeProblem::new(problem.dtype(), dims(&x), Fp8::PerHead),
            Some(_) => {
                let (dtype, batch) = (problem.dtype(), problem.batch());
                QuantizeProblem::packed(dtype, batch, max_seqlen, dims(&x), Fp8::PerHead)
            }
        };
        let given = Given::default().with_optional(Argument::CuSeqlens, lengths);
        Quantizing::new(of_x.heads_k(heads_k), given).round(&x)
    };
    let [(q, of_q), (k, of_k), (v, of_v)] = [
        rounded(0, of_q)?,
        rounded(1, of_k.clone())?,
        rounded(2, of_k)?,
    ];
    let given = call
        .given
        .with(Argument::QDescale, Source::Tensor(of_q))
        .with(Argument::KDescale, Source::Tensor(of_k))
        .with(Argument::VDescale, Source::Tensor(of_v));
    rounded_attention(inputs, [q, k, v], Call::new(problem, given))
}

/// A tensor in e4m3, and its scales, f32 `[batch, heads_k]`: an element stands for the number times its scale. Without gradients.
///
/// Each sequence and head of keys has a scale, the greatest magnitude / 448; 1 where all elements are 0. With an infinity or a NaN, all that share its scale are NaN.
///
/// * `x`: `[batch, seqlen, heads, head_dim]`, bf16, f16 or f32. On a GPU head_dim is a multiple of 16 up to 256.
/// * `heads_k`: heads of keys, whose number divides that of the heads: heads that share one share its scale.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
///
/// // One row of two heads of two columns.
/// let x = Tensor::new(&[[[[896f32, 2.0], [-448.0, 0.0]]]], &Device::Cpu)?;
/// let (rounded, descale) = candle_ferroflash::quantize(&x, 2)?;
/// assert_eq!(descale.to_vec2::<f32>()?, [[2.0, 1.0]]);
/// let rounded = rounded.to_dtype(DType::F32)?.flatten_all()?;
/// assert_eq!(rounded.to_vec1::<f32>()?, [448.0, 1.0, -448.0, 0.0]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn quantize(x: &Tensor, heads_k: usize) -> Result<(Tensor, Tensor)> {
    let (x, problem) = quantizing(x, heads_k)?;
    Quantizing::new(problem, Given::default()).round(&x)
}

/// As [`quantize`], with given scales, such as those of [`DelayedScaling`](ferroflash::quantize::DelayedScaling): the tensor in e4m3, and its greatest magnitudes, f32
/// `[batch, heads_k]`, for the next step. A GPU reads x once.
///
/// What is beyond ±448 times its scale becomes that. The greatest magnitudes are those of `x`, before anything is cut.
///
/// * `descale`: f32 `[batch, heads_k]`, on the device of `x`, greater than 0 and finite. On a GPU their values are not checked.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use ferroflash::quantize::DelayedScaling;
///
/// // One row of two heads of two columns, in two steps.
/// let x = Tensor::new(&[[[[896f32, 2.0], [-448.0, 0.0]]]], &Device::Cpu)?;
/// let mut scaling = DelayedScaling::new(2);
/// for first in [448.0, 896.0] {
///     let descale = Tensor::from_vec(scaling.descale(), (1, 2), &Device::Cpu)?;
///     let (rounded, amax) = candle_ferroflash::quantize_with_descale(&x, 2, &descale)?;
///     let rounded = rounded.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
///     assert_eq!(rounded[0] * scaling.descale()[0], first);
///     scaling.update(&amax.flatten_all()?.to_vec1()?).map_err(candle_core::Error::wrap)?;
/// }
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn quantize_with_descale(
    x: &Tensor,
    heads_k: usize,
    descale: &Tensor,
) -> Result<(Tensor, Tensor)> {
    let (x, problem) = quantizing(x, heads_k)?;
    same_device("descale", descale, &x)?;
    has_type("descale", descale, &[DType::F32])?;
    has_shape("descale", descale, &[problem.batch(), heads_k])?;
    let descale = Source::Tensor(descale.contiguous()?);
    let given = Given::default().with(Argument::Descale, descale);
    Quantizing::new(problem.giving_descale(), given).round(&x)
}

/// The tensor as kernels read it, and its rounding.
fn quantizing(x: &Tensor, heads_k: usize) -> Result<(Tensor, QuantizeProblem)> {
    backend("x", x)?;
    has_rank("x", x, 4)?;
    let (x, shape) = (aligned(&contiguous_rows(x)?)?, dims(x));
    let problem = QuantizeProblem::new(dtype("x", &x)?, shape, Fp8::PerHead).heads_k(heads_k);
    Ok((x, problem))
}

/// The tensor with contiguous rows.
fn contiguous_rows(x: &Tensor) -> Result<Tensor> {
    match x.stride().last() {
        Some(1) => Ok(x.clone()),
        _ => x.force_contiguous(),
    }
}

/// A tensor → its numbers in 8 bits. What is found of each scale is kept.
struct Quantizing {
    problem: QuantizeProblem,
    /// The lengths of packed sequences, and scales.
    given: Given,
    /// The scales; amax, if they are given.
    found: OnceLock<Tensor>,
}

impl Quantizing {
    fn new(problem: QuantizeProblem, given: Given) -> Quantizing {
        Quantizing {
            problem,
            given,
            found: OnceLock::new(),
        }
    }

    /// The rounded tensor, and its scales; amax, if they are given.
    fn round(self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let rounded = x.apply_op1_no_bwd(&self)?;
        // With the rounded tensor in hand they are there.
        let found = self.found.into_inner();
        Ok((rounded, found.ok_or(candle_core::Error::UnwrapNone)?))
    }

    fn run<P: Place>(&self, x: Stored<P>) -> Result<(P::Storage, Shape)> {
        let (rounded, found) = passes::quantize::<P>(self.problem, &self.given, x)?;
        let batch = self.problem.batch();
        let scales = (batch, self.problem.n_scales() as usize / batch.max(1));
        let found = tensor(P::wrap(found), scales);
        // candle calls an operation once.
        self.found.get_or_init(|| found);
        Ok((rounded, x.1.shape().clone()))
    }
}

impl CustomOp1 for Quantizing {
    fn name(&self) -> &'static str {
        "ferroflash-quantize"
    }

    fn cpu_fwd(&self, x: &CpuStorage, of_x: &Layout) -> Result<(CpuStorage, Shape)> {
        self.run::<Host>((x, of_x))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        x: &candle_core::CudaStorage,
        of_x: &Layout,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        self.run::<crate::memory::Cuda>((x, of_x))
    }
}

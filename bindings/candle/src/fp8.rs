//! Attention in 8 bits with gradients: q, k and v are rounded to e4m3 on the way.

use std::sync::OnceLock;

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};
use ferroflash::arguments::Argument;
use ferroflash::{Fp8, QuantizeProblem};

use crate::call::Call;
use crate::error::Error;
use crate::given::{Given, Source};
use crate::layout::{aligned, tensor};
use crate::memory::{Host, Place, Stored};
use crate::operation::rounded_attention;
use crate::passes;
use crate::request::{Checked, Request};
use crate::rules::{backend, dims, dtype, has_rank};

/// As [`flash_attn_windowed`](crate::flash_attn_windowed), with the products of the forward pass in 8 bits: o, in the shape and type of `q`.
///
/// q, k and v are rounded to e4m3 first, each sequence and head of keys with a scale of its own, the greatest magnitude / 448. What is kept for the backward pass
/// are the rounded tensors. It takes them out of 8 bits, and multiplies in the type of `q`; its gradients are those of what the rounded tensors stand for, and go to
/// q, k and v as they are (a straight-through estimator). With an infinity or a NaN in a tensor, the result is NaN.
///
/// * `q`, `k`, `v`, `softmax_scale`, windows: as for [`flash_attn_windowed`](crate::flash_attn_windowed). On a GPU of compute capability 9.0, head_dims that are multiples of 16 up
///   to 256.
///
/// ```
/// use candle_core::{Device, Tensor, Var};
///
/// let x = Var::randn(0f32, 1f32, (2, 128, 4, 64), &Device::Cpu)?;
/// let o = candle_ferroflash::flash_attn_fp8(&x, &x, &x, 0.125, None, Some(0))?;
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
) -> Result<Tensor> {
    let request =
        Request::new([q, k, v], softmax_scale).window(window_size_left, window_size_right);
    let Checked { call, inputs } = request.dense()?;
    let problem = call.problem.to_builder().fp8(Fp8::PerHead).build();
    let problem = problem.map_err(Error::from)?;
    let heads_k = problem.heads_k();
    let quantized = |at: usize| quantize(&inputs[at].detach(), heads_k);
    let [(q, of_q), (k, of_k), (v, of_v)] = [quantized(0)?, quantized(1)?, quantized(2)?];
    let given = Given::default()
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
    backend("x", x)?;
    has_rank("x", x, 4)?;
    let (x, shape) = (aligned(&contiguous_rows(x)?)?, dims(x));
    let problem = QuantizeProblem::new(dtype("x", &x)?, shape, Fp8::PerHead).heads_k(heads_k);
    let quantizing = Quantizing {
        problem,
        descale: OnceLock::new(),
    };
    let rounded = x.apply_op1_no_bwd(&quantizing)?;
    let descale = quantizing.descale.into_inner();
    Ok((
        rounded,
        descale.ok_or(candle_core::Error::Msg(NOT_RUN.into()))?,
    ))
}

/// What an operation has that candle never called.
const NOT_RUN: &str = "the tensor was not rounded";

/// The tensor with contiguous rows.
fn contiguous_rows(x: &Tensor) -> Result<Tensor> {
    match x.stride().last() {
        Some(1) => Ok(x.clone()),
        _ => x.force_contiguous(),
    }
}

/// A tensor → its numbers in 8 bits. The scales are kept.
struct Quantizing {
    problem: QuantizeProblem,
    descale: OnceLock<Tensor>,
}

impl Quantizing {
    fn run<P: Place>(&self, x: Stored<P>) -> Result<(P::Storage, Shape)> {
        let (rounded, descale) = passes::quantize::<P>(self.problem, x)?;
        let shape = self.problem.shape();
        let scales = (shape[0], self.problem.n_scales() as usize / shape[0].max(1));
        let scales = tensor(P::wrap(descale), scales);
        // candle calls an operation once.
        self.descale.get_or_init(|| scales);
        Ok((rounded, shape.as_slice().into()))
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

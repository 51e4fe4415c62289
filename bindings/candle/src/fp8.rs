//! Attention in 8 bits with gradients: q, k and v are rounded to e4m3 on the way.

use candle_core::{DType, Result, Tensor};
use ferroflash::Fp8;
use ferroflash::arguments::Argument;

use crate::call::Call;
use crate::error::Error;
use crate::given::{Given, Source};
use crate::operation::rounded_attention;
use crate::request::{Checked, Request};
use crate::rules::dims;

/// The greatest number of e4m3.
const GREATEST: f64 = 448.0;

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

/// A tensor `[batch, seqlen, heads, head_dim]` in e4m3, and its scales, f32 `[batch, heads_k]`: 1 where all elements are 0.
fn quantize(tensor: &Tensor, heads_k: usize) -> Result<(Tensor, Tensor)> {
    let [batch, _, heads, _] = dims(tensor);
    if tensor.elem_count() == 0 {
        let descale = Tensor::ones((batch, heads_k), DType::F32, tensor.device())?;
        return Ok((tensor.to_dtype(DType::F8E4M3)?.contiguous()?, descale));
    }
    let group_size = heads / heads_k;
    let tensor = tensor.to_dtype(DType::F32)?;
    let amax = tensor.abs()?.max(3)?.max(1)?;
    let amax = amax.reshape((batch, heads_k, group_size))?.max(2)?;
    let is_zero = amax.eq(0f64)?;
    let descale = is_zero.where_cond(&amax.ones_like()?, &(amax / GREATEST)?)?;
    let of_heads = descale
        .unsqueeze(2)?
        .broadcast_as((batch, heads_k, group_size))?;
    let of_heads = of_heads.reshape((batch, 1, heads, 1))?;
    let codes = tensor
        .broadcast_div(&of_heads)?
        .clamp(-GREATEST, GREATEST)?;
    Ok((
        codes.to_dtype(DType::F8E4M3)?.contiguous()?,
        descale.contiguous()?,
    ))
}

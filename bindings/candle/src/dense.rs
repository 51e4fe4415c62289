//! The functions of candle-flash-attn on tensors `[batch, seqlen, heads, head_dim]`.

use candle_core::{Result, Tensor};

use crate::alibi;
use crate::expressed::flash_attn_with_expressions;
use crate::options::Options;
use crate::with_options::flash_attn_with_options;

/// Attention, causal or not: o, in the shape and type of `q`.
///
/// * `q`: `[batch, seqlen_q, heads_q, head_dim]`.
/// * `k`, `v`: `[batch, seqlen_k, heads_k, head_dim]`; `heads_q` is a multiple of `heads_k`.
/// * `softmax_scale`: factor of the scores, greater than 0; usually 1/√head_dim.
/// * `causal`: whether a query sees only the keys up to its own position, `i + seqlen_k − seqlen_q` for query `i`.
pub fn flash_attn(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    flash_attn_windowed(q, k, v, softmax_scale, None, causal.then_some(0))
}

/// Attention with a sliding window: o, in the shape and type of `q`.
///
/// * `q`, `k`, `v`, `softmax_scale`: as for [`flash_attn`].
/// * `window_size_left`: how many keys before its own position a query sees; `None` is no limit.
/// * `window_size_right`: how many keys after it. `None` and `Some(0)` together are a causal mask.
pub fn flash_attn_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    flash_attn_with_options(
        q,
        k,
        v,
        &Options::new(),
        softmax_scale,
        window_size_left,
        window_size_right,
    )
}

/// Attention with ALiBi: slope · |k − (q + seqlen_k − seqlen_q)| is subtracted from each score. o, in the shape and type of `q`.
///
/// * `alibi_slopes`: f32 `[heads_q]`. It has no gradient: if it requires one, the backward pass is an error.
/// * The others: as for [`flash_attn`].
pub fn flash_attn_alibi(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    let right = causal.then_some(0);
    flash_attn_alibi_windowed(q, k, v, alibi_slopes, softmax_scale, None, right)
}

/// Attention with ALiBi and a sliding window: o, in the shape and type of `q`.
///
/// * `alibi_slopes`: as for [`flash_attn_alibi`].
/// * The others: as for [`flash_attn_windowed`].
pub fn flash_attn_alibi_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    flash_attn_alibi_windowed_softcap(
        q,
        k,
        v,
        Some(alibi_slopes),
        softmax_scale,
        window_size_left,
        window_size_right,
        0.0,
    )
}

/// Attention with ALiBi, a sliding window and a soft cap: o, in the shape and type of `q`.
///
/// * `alibi_slopes`: as for [`flash_attn_alibi`]; `None` is none.
/// * `softcap`: bound of the scores, softcap · tanh(s / softcap), before slopes; 0 is none.
/// * The others: as for [`flash_attn_windowed`].
#[expect(clippy::too_many_arguments, reason = "those of candle-flash-attn")]
pub fn flash_attn_alibi_windowed_softcap(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: Option<&Tensor>,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    softcap: f32,
) -> Result<Tensor> {
    let expressions = alibi::expressions(q, alibi_slopes, softcap, window_size_right)?;
    flash_attn_with_expressions(
        q,
        k,
        v,
        &expressions,
        softmax_scale,
        window_size_left,
        window_size_right,
    )
}

//! The functions of candle-flash-attn on packed sequences: tensors `[total, heads, head_dim]`, one sequence after the other, and vectors with the
//! first row of each.
#![expect(clippy::too_many_arguments, reason = "those of candle-flash-attn")]

use candle_core::{Result, Tensor};

use crate::alibi;
use crate::expressed::flash_attn_varlen_with_expressions;
use crate::options::Options;
use crate::with_options::flash_attn_varlen_with_options;

/// Attention on packed sequences, causal or not: o, in the shape and type of `q`.
///
/// * `q`: `[total_q, heads_q, head_dim]`.
/// * `k`, `v`: `[total_k, heads_k, head_dim]`; `heads_q` is a multiple of `heads_k`.
/// * `seqlens_q`: u32 or i32 `[batch + 1]`, the first row of each sequence in `q`, and the end of the last.
/// * `seqlens_k`: the same for `k` and `v`.
/// * `max_seqlen_q`, `max_seqlen_k`: the most rows of a sequence.
/// * `softmax_scale`: factor of the scores, greater than 0; usually 1/√head_dim.
/// * `causal`: whether a query sees only the keys up to its own position, aligned to the bottom right of its sequence.
///
/// Lengths that contradict each other or the tensors are an error on the CPU. On a GPU they are not checked, as that would wait for the device; the
/// results are then undefined.
pub fn flash_attn_varlen(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    flash_attn_varlen_windowed(
        q,
        k,
        v,
        seqlens_q,
        seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        softmax_scale,
        None,
        causal.then_some(0),
    )
}

/// Attention on packed sequences with a sliding window: o, in the shape and type of `q`.
///
/// * `window_size_left`: how many keys before its own position a query sees; `None` is no limit.
/// * `window_size_right`: how many keys after it. `None` and `Some(0)` together are a causal mask.
/// * The others: as for [`flash_attn_varlen`].
pub fn flash_attn_varlen_windowed(
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
) -> Result<Tensor> {
    flash_attn_varlen_with_options(
        q,
        k,
        v,
        &Options::new(),
        seqlens_q,
        seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        softmax_scale,
        window_size_left,
        window_size_right,
    )
}

/// Attention on packed sequences with ALiBi: o, in the shape and type of `q`.
///
/// * `alibi_slopes`: f32 `[heads_q]`, as for [`flash_attn_alibi`](crate::flash_attn_alibi).
/// * The others: as for [`flash_attn_varlen`].
pub fn flash_attn_varlen_alibi(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    flash_attn_varlen_alibi_windowed(
        q,
        k,
        v,
        alibi_slopes,
        seqlens_q,
        seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        softmax_scale,
        None,
        causal.then_some(0),
    )
}

/// Attention on packed sequences with ALiBi and a sliding window: o, in the shape and type of `q`.
///
/// * `alibi_slopes`: f32 `[heads_q]`, as for [`flash_attn_alibi`](crate::flash_attn_alibi).
/// * The others: as for [`flash_attn_varlen_windowed`].
pub fn flash_attn_varlen_alibi_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    flash_attn_varlen_alibi_windowed_softcap(
        q,
        k,
        v,
        Some(alibi_slopes),
        seqlens_q,
        seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        softmax_scale,
        window_size_left,
        window_size_right,
        0.0,
    )
}

/// Attention on packed sequences with ALiBi, a sliding window and a soft cap: o, in the shape and type of `q`.
///
/// * `alibi_slopes`: f32 `[heads_q]`, as for [`flash_attn_alibi`](crate::flash_attn_alibi); `None` is none.
/// * `softcap`: bound of the scores, softcap · tanh(s / softcap), before slopes; 0 is none.
/// * The others: as for [`flash_attn_varlen_windowed`].
pub fn flash_attn_varlen_alibi_windowed_softcap(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: Option<&Tensor>,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    softcap: f32,
) -> Result<Tensor> {
    let expressions = alibi::expressions(q, alibi_slopes, softcap, window_size_right)?;
    flash_attn_varlen_with_expressions(
        q,
        k,
        v,
        &expressions,
        seqlens_q,
        seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        softmax_scale,
        window_size_left,
        window_size_right,
    )
}

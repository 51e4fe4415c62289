//! Functions beyond candle-flash-attn: attention with custom scores and masks.

use candle_core::{Result, Tensor};

use crate::expressions::Expressions;
use crate::options::Options;
use crate::with_options::{flash_attn_varlen_with_options, flash_attn_with_options};

/// As [`flash_attn_windowed`](crate::flash_attn_windowed), with a custom score and mask: o, in the shape and type of `q`.
///
/// * `expressions`: a replacement for every score, and which keys a query sees of those that the window shows.
///
/// q, k and v have gradients, and so has a tensor that a score reads at its own position: see [`Expressions::tensor`].
pub fn flash_attn_with_expressions(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    expressions: &Expressions,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    let options = Options::new().expressions(expressions);
    flash_attn_with_options(
        q,
        k,
        v,
        &options,
        softmax_scale,
        window_size_left,
        window_size_right,
    )
}

/// As [`flash_attn_varlen_windowed`](crate::flash_attn_varlen_windowed), with a custom score and mask: see [`flash_attn_with_expressions`]. Queries
/// and keys count from the first ones of their sequence.
#[expect(
    clippy::too_many_arguments,
    reason = "those of candle-flash-attn, and one"
)]
pub fn flash_attn_varlen_with_expressions(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    expressions: &Expressions,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    let options = Options::new().expressions(expressions);
    flash_attn_varlen_with_options(
        q,
        k,
        v,
        &options,
        seqlens_q,
        seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        softmax_scale,
        window_size_left,
        window_size_right,
    )
}

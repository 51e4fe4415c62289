//! Functions beyond candle-flash-attn: attention with expressions, sinks and dropout.

use candle_core::{Result, Tensor};

use crate::operation::attention;
use crate::options::Options;
use crate::request::{Request, Sequences};

/// As [`flash_attn_windowed`](crate::flash_attn_windowed), with expressions, sinks and dropout: o, in the shape and type of `q`.
///
/// * `options`: expressions, sinks and dropout.
///
/// q, k, v and sinks have gradients, and so has a tensor that a score reads at its own position: see
/// [`Expressions::tensor`](crate::Expressions::tensor). One backward pass computes all of them.
pub fn flash_attn_with_options(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    options: &Options,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    let request =
        Request::new([q, k, v], softmax_scale).window(window_size_left, window_size_right);
    attention(request.with(*options).dense()?)
}

/// As [`flash_attn_varlen_windowed`](crate::flash_attn_varlen_windowed), with expressions, sinks and dropout: see
/// [`flash_attn_with_options`]. Queries and keys count from the first ones of their sequence.
#[expect(
    clippy::too_many_arguments,
    reason = "those of candle-flash-attn, and one"
)]
pub fn flash_attn_varlen_with_options(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    options: &Options,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    let request =
        Request::new([q, k, v], softmax_scale).window(window_size_left, window_size_right);
    let sequences = Sequences {
        seqlens_q,
        seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
    };
    attention(request.with(*options).packed(sequences)?)
}

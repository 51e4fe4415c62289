//! Functions beyond candle-flash-attn: attention with scores and masks of the caller's own.

use candle_core::{Result, Tensor};

use crate::expressions::Expressions;
use crate::operation::attention;
use crate::request::{Request, Sequences};

/// As [`flash_attn_windowed`](crate::flash_attn_windowed), with a score and a mask of the caller's own: o, shaped and typed as `q`.
///
/// * `expressions`: what takes the place of every score, and which keys a query sees, of those that the window shows.
///
/// q, k and v have gradients; what expressions read has none.
pub fn flash_attn_with_expressions(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    expressions: &Expressions,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    let request = Request::new(
        [q, k, v],
        softmax_scale,
        window_size_left,
        window_size_right,
    );
    attention(request.with(expressions).dense()?)
}

/// As [`flash_attn_varlen_windowed`](crate::flash_attn_varlen_windowed), with a score and a mask of the caller's own: see
/// [`flash_attn_with_expressions`]. Queries and keys count from the first ones of their sequence.
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
    let request = Request::new(
        [q, k, v],
        softmax_scale,
        window_size_left,
        window_size_right,
    );
    let sequences = Sequences {
        seqlens_q,
        seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
    };
    attention(request.with(expressions).packed(sequences)?)
}

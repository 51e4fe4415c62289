//! The functions beyond candle-flash-attn: those that also return lse.

use candle_core::{Result, Tensor};

use crate::operation::attention_with_lse;
use crate::request::{Request, Sequences};

/// As [`flash_attn_windowed`](crate::flash_attn_windowed), and the row statistics, which merge partial results (sinks,
/// split keys, ring attention). Returns `(o, lse)`:
///
/// * o: in the shape and type of `q`.
/// * lse: f32 `[batch, heads_q, seqlen_q]`, the natural logarithm of each row's sum of exponentials; −∞ where a row sees
///   no key.
///
/// A loss may depend on both. It then costs two backward passes: candle gives an operation the gradient of one result.
pub fn flash_attn_with_lse(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<(Tensor, Tensor)> {
    let request =
        Request::new([q, k, v], softmax_scale).window(window_size_left, window_size_right);
    attention_with_lse(request.dense()?)
}

/// As [`flash_attn_varlen_windowed`](crate::flash_attn_varlen_windowed), and the row statistics: see
/// [`flash_attn_with_lse`]. lse is f32 `[heads_q, total_q]`.
#[expect(clippy::too_many_arguments, reason = "those of candle-flash-attn")]
pub fn flash_attn_varlen_with_lse(
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
) -> Result<(Tensor, Tensor)> {
    let request =
        Request::new([q, k, v], softmax_scale).window(window_size_left, window_size_right);
    let sequences = Sequences {
        seqlens_q,
        seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
    };
    attention_with_lse(request.packed(sequences)?)
}

//! Attention over a cache of keys and values: candle-flash-attn's function for pages, and two that take lengths as inference engines have them.

use candle_core::{Result, Tensor};

use crate::alibi;
use crate::cached::{Queries, attention};
use crate::kv_cache::KvCache;
use crate::options::Options;
use crate::refuse;
use crate::request::{Request, Sequences};

/// Attention on packed queries, and on keys and values in pages, with a sliding window: o, in the shape and type of `q`.
///
/// * `q`: `[total_q, heads_q, head_dim]`.
/// * `k`, `v`: `[n_pages, page_block_size, heads_k, head_dim]`; pages of any size up to 256.
/// * `seqlens_q`: u32 or i32 `[batch + 1]`, the first row of each sequence in `q`, and the end of the last.
/// * `seqlens_k`: the same for keys, although they are in pages: sequence `b` has `seqlens_k[b + 1] − seqlens_k[b]` keys. On a GPU only u32 is
///   accepted, and one small kernel converts it to lengths: [`flash_attn_varlen_with_kvcache`] takes lengths directly.
/// * `block_table`: u32 or i32 `[batch, max_pages]`, the pages of each sequence: its row `r` is row `r % page_block_size` of page
///   `block_table[b, r / page_block_size]`.
/// * `mm_prefix_ranges`: i32 `[batch, max_ranges, 2]`, keys that the mask does not hide. Only `None` is supported.
/// * `max_seqlen_q`, `max_seqlen_k`: the most queries and keys of a sequence.
/// * `page_block_size`: rows of a page.
/// * `softcap`: bound of the scores, softcap · tanh(s / softcap); `None`, or 0, is none.
/// * The others: as for [`flash_attn_varlen_windowed`](crate::flash_attn_varlen_windowed).
///
/// There is no backward pass: a gradient through it is [`Error::Gradient`](crate::Error::Gradient). Lengths that contradict each
/// other, and pages that the pool does not have, are an error on the CPU. On a GPU they are not checked, as that would wait for the device; the
/// results are then undefined.
#[expect(clippy::too_many_arguments, reason = "those of candle-flash-attn")]
pub fn flash_attn_varlen_paged_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    block_table: &Tensor,
    mm_prefix_ranges: Option<&Tensor>,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    page_block_size: usize,
    softcap: Option<f32>,
) -> Result<Tensor> {
    refuse::mm_prefix(mm_prefix_ranges)?;
    let softcap = softcap.unwrap_or(0.0);
    let expressions = alibi::expressions(q, None, softcap, window_size_right)?;
    let request = Request::new([q, k, v], softmax_scale)
        .window(window_size_left, window_size_right)
        .with(Options::new().expressions(&expressions));
    let sequences = Sequences {
        seqlens_q,
        seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
    };
    attention(request.paged(sequences, block_table, page_block_size)?)
}

/// Attention over a cache, with the same number of queries for each sequence: a decode step. o, in the shape and type of `q`.
///
/// * `q`: `[batch, seqlen_q, heads_q, head_dim]`.
/// * `cache`: keys and values, and how many of them each sequence has. They are read in place.
/// * The others: as for [`flash_attn_windowed`](crate::flash_attn_windowed). Masks are aligned to the bottom right of each
///   sequence: its last query is at the position of its last key.
///
/// There is no backward pass: a gradient through it is [`Error::Gradient`](crate::Error::Gradient). Lengths and pages are checked only on the CPU,
/// as by [`flash_attn_varlen_paged_windowed`].
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_ferroflash::{KvCache, flash_attn_with_kvcache};
///
/// // Two sequences of 5 and of 2 keys, in pages of 4 rows; the pool has three.
/// let device = Device::Cpu;
/// let k = Tensor::randn(0f32, 1f32, (3, 4, 2, 16), &device)?;
/// let v = Tensor::randn(0f32, 1f32, (3, 4, 2, 16), &device)?;
/// let block_table = Tensor::new(&[[2u32, 0], [1, 0]], &device)?;
/// let seqused_k = Tensor::new(&[5u32, 2], &device)?;
///
/// let q = Tensor::randn(0f32, 1f32, (2, 1, 8, 16), &device)?;
/// let cache = KvCache::paged(&k, &v, &block_table, 8, &seqused_k);
/// let o = flash_attn_with_kvcache(&q, &cache, 0.25, None, Some(0))?;
/// assert_eq!(o.dims(), [2, 1, 8, 16]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn flash_attn_with_kvcache(
    q: &Tensor,
    cache: &KvCache,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    let request = Request::new([q, cache.k, cache.v], softmax_scale)
        .window(window_size_left, window_size_right);
    attention(request.cached(cache, Queries::Padded)?)
}

/// Attention over a cache, with packed queries: sequences that begin, with many queries, and sequences that continue, with one, share a call. o, in
/// the shape and type of `q`.
///
/// * `q`: `[total_q, heads_q, head_dim]`.
/// * `seqlens_q`: u32 or i32 `[batch + 1]`, the first row of each sequence in `q`, and the end of the last.
/// * `max_seqlen_q`: the most queries of a sequence.
/// * The others: as for [`flash_attn_with_kvcache`].
pub fn flash_attn_varlen_with_kvcache(
    q: &Tensor,
    seqlens_q: &Tensor,
    max_seqlen_q: usize,
    cache: &KvCache,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    let request = Request::new([q, cache.k, cache.v], softmax_scale)
        .window(window_size_left, window_size_right);
    let queries = Queries::Packed {
        seqlens_q,
        max_seqlen_q,
    };
    attention(request.cached(cache, queries)?)
}

//! New keys and values written to a cache, with rotary position embedding: [`append_kvcache`].

use candle_core::{Result, Tensor};
use ferroflash::rotary::Pairs;

use crate::append_call::AppendCall;
use crate::in_place;
use crate::kv_cache::KvCache;

/// The rows of one step: new rows of k and v for a cache, and rows of q to be rotated.
#[derive(Clone, Copy, Debug)]
pub struct NewRows<'a> {
    pub(crate) k: &'a Tensor,
    pub(crate) v: &'a Tensor,
    pub(crate) q: Option<&'a Tensor>,
    pub(crate) seqlens: Option<&'a Tensor>,
}

/// Rotary position embedding: cosines and sines of each position's angles.
#[derive(Clone, Copy, Debug)]
pub struct Rotary<'a> {
    pub(crate) pairs: Pairs,
    pub(crate) cos: &'a Tensor,
    pub(crate) sin: &'a Tensor,
}

/// The results of an append other than the rows in the cache.
#[derive(Clone, Debug)]
pub struct Appended {
    /// The rotated queries, in the shape and type of those given; `None` if none were given.
    pub q: Option<Tensor>,
    /// How many rows of the cache each sequence uses now: `[batch]`, in the type of the cache's lengths.
    pub seqused_k: Tensor,
}

impl<'a> NewRows<'a> {
    /// The same number of rows for each sequence: a decode step.
    ///
    /// * `k`, `v`: `[batch, seqlen_new, heads_k, head_dim]`.
    pub fn new(k: &'a Tensor, v: &'a Tensor) -> NewRows<'a> {
        NewRows {
            k,
            v,
            q: None,
            seqlens: None,
        }
    }

    /// Packed rows of all sequences, one sequence after the other: some sequences begin, with many rows, and others continue, with one.
    ///
    /// * `k`, `v`: `[total, heads_k, head_dim]`.
    /// * `seqlens`: u32 or i32 `[batch + 1]`, the first row of each sequence, and the end of the last.
    pub fn packed(k: &'a Tensor, v: &'a Tensor, seqlens: &'a Tensor) -> NewRows<'a> {
        NewRows {
            seqlens: Some(seqlens),
            ..NewRows::new(k, v)
        }
    }

    /// With queries of the same rows, to be rotated: `[batch, seqlen_new, heads_q, head_dim]`, or packed `[total, heads_q,
    /// head_dim]`. That needs [`Rotary`].
    #[must_use]
    pub fn with_q(self, q: &'a Tensor) -> NewRows<'a> {
        NewRows { q: Some(q), ..self }
    }
}

impl<'a> Rotary<'a> {
    /// Pair `i` is the elements `i` and `i + rotary_dim / 2`: as in `candle_nn::rotary_emb::rope`, and in candle's Llama.
    ///
    /// * `cos`, `sin`: f32 `[n_positions, rotary_dim / 2]`, for every element type of q and k. Elements from rotary_dim on are
    ///   copied.
    pub fn halves(cos: &'a Tensor, sin: &'a Tensor) -> Rotary<'a> {
        let pairs = Pairs::Halves;
        Rotary { pairs, cos, sin }
    }

    /// Pair `i` is the elements `2i` and `2i + 1`: as in `candle_nn::rotary_emb::rope_i`. The tables are those of [`Rotary::halves`].
    pub fn interleaved(cos: &'a Tensor, sin: &'a Tensor) -> Rotary<'a> {
        let pairs = Pairs::Interleaved;
        Rotary { pairs, cos, sin }
    }
}

/// Writes new rows of k and v after those that each sequence already has in the cache, in place and in one launch. With [`Rotary`] k and q are
/// rotated by their new positions; v is copied.
///
/// A cache of f8e4m3 gets them divided by its scales ([`KvCache::with_descale`]) and rounded: after the rotation, and only once.
///
/// The new row `i` of sequence `b` becomes row `seqused_k[b] + i`, which is its position. No other row of the cache is read or written.
/// The cache's own `seqused_k` stays as it is: [`Appended::seqused_k`] has the new lengths, for attention and for the next append.
///
/// On the CPU lengths that contradict each other, rows beyond the cache or the tables, and pages that the pool does not have, are
/// errors, and nothing is written. On a GPU lengths are not checked: rows that do not fit are dropped, and `seqused_k` is limited to the room in the cache.
///
/// Every view of the cache's memory sees the new rows: candle's tensors share memory, and k and v of the cache are written although they are
/// borrowed. So they must not share memory with another argument, nor with each other ([`Error::SharedMemory`](crate::Error::SharedMemory)).
/// Gradients cannot pass through memory that changes: a tensor that requires one is [`Error::Gradient`](crate::Error::Gradient); `detach` it first.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_ferroflash::{KvCache, NewRows, Rotary, append_kvcache, flash_attn_with_kvcache};
///
/// // Two sequences with 3 rows and 1 row in caches of 8. Each gets one more, and its query sees all of them.
/// let device = Device::Cpu;
/// let (k_cache, v_cache) = (
///     Tensor::zeros((2, 8, 2, 16), DType::F32, &device)?,
///     Tensor::zeros((2, 8, 2, 16), DType::F32, &device)?,
/// );
/// let seqused_k = Tensor::new(&[3u32, 1], &device)?;
/// let angles = Tensor::arange(0f32, 8.0, &device)?.unsqueeze(1)?.broadcast_mul(&Tensor::rand(0f32, 1.0, (1, 8), &device)?)?;
/// let (cos, sin) = (angles.cos()?, angles.sin()?);
///
/// let [q, k, v] = [8, 2, 2].map(|heads| Tensor::randn(0f32, 1.0, (2, 1, heads, 16), &device));
/// let (q, k, v) = (q?, k?, v?);
/// let cache = KvCache::new(&k_cache, &v_cache, &seqused_k);
/// let appended = append_kvcache(&cache, &NewRows::new(&k, &v).with_q(&q), Some(&Rotary::halves(&cos, &sin)))?;
/// assert_eq!(appended.seqused_k.to_vec1::<u32>()?, [4, 2]);
///
/// let q = appended.q.expect("queries were given");
/// let o = flash_attn_with_kvcache(&q, &cache.with_seqused_k(&appended.seqused_k), 0.25, None, Some(0))?;
/// assert_eq!(o.dims(), [2, 1, 8, 16]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn append_kvcache(cache: &KvCache, new: &NewRows, rotary: Option<&Rotary>) -> Result<Appended> {
    in_place::append(AppendCall::new(cache, new, rotary)?)
}

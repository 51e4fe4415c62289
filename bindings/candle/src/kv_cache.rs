//! A cache of keys and values, as an inference engine keeps it: [`KvCache`].

use candle_core::Tensor;
use ferroflash::Fp8Kv;

/// Keys and values of the tokens so far, of several sequences, and how many rows each of them uses: contiguous, or in pages.
///
/// Plain data: nothing is checked before a function takes it. [`append_kvcache`](crate::append_kvcache) writes to it,
/// [`flash_attn_with_kvcache`](crate::flash_attn_with_kvcache) and
/// [`flash_attn_varlen_with_kvcache`](crate::flash_attn_varlen_with_kvcache) read it.
///
/// Unused rows may have any contents, including NaN: they are not read.
///
/// k and v are of q's type, or both f8e4m3: [`KvCache::with_descale`] sets the scales of their elements, 1 by default. Attention reads such a cache
/// from compute capability 8.9 on at head_dim 64 and 128, and on the CPU. An append divides new rows by these scales, and rounds them: what is greater than 448 times its scale
/// becomes that.
#[derive(Clone, Copy, Debug)]
pub struct KvCache<'a> {
    pub(crate) k: &'a Tensor,
    pub(crate) v: &'a Tensor,
    pub(crate) seqused_k: &'a Tensor,
    pub(crate) pages: Option<PageTable<'a>>,
    pub(crate) descale: Option<Descale<'a>>,
}

/// The scales of k and v in 8 bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descale<'a> {
    pub(crate) k: &'a Tensor,
    pub(crate) v: &'a Tensor,
    pub(crate) of: Fp8Kv,
}

/// The pages of the rows of a sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageTable<'a> {
    pub(crate) block_table: &'a Tensor,
    pub(crate) max_seqlen_k: usize,
}

impl<'a> KvCache<'a> {
    /// Each sequence has its own rows, from the first one on.
    ///
    /// * `k`, `v`: `[batch, seqlen_cache, heads_k, head_dim]`.
    /// * `seqused_k`: u32 or i32 `[batch]`, how many of its rows each sequence uses. It is on the device of k, and stays there.
    pub fn new(k: &'a Tensor, v: &'a Tensor, seqused_k: &'a Tensor) -> KvCache<'a> {
        KvCache {
            k,
            v,
            seqused_k,
            pages: None,
            descale: None,
        }
    }

    /// The rows of all sequences are in the pages of one pool. Row `r` of sequence `b` is row `r % page_size` of the page
    /// `block_table[b, r / page_size]`. Sequences may share pages; a page to which rows are appended must belong to only one sequence.
    ///
    /// * `k`, `v`: `[n_pages, page_size, heads_k, head_dim]`; pages of any size up to 256.
    /// * `block_table`: u32 or i32 `[batch, columns]`. Entries after a sequence's last page are ignored.
    /// * `max_seqlen_k`: the most rows of a sequence, at most `columns · page_size`. A plan is made for each value, so give the largest that will
    ///   ever occur, or use only a few values.
    /// * `seqused_k`: as for [`KvCache::new`].
    pub fn paged(
        k: &'a Tensor,
        v: &'a Tensor,
        block_table: &'a Tensor,
        max_seqlen_k: usize,
        seqused_k: &'a Tensor,
    ) -> KvCache<'a> {
        let pages = PageTable {
            block_table,
            max_seqlen_k,
        };
        KvCache {
            k,
            v,
            seqused_k,
            pages: Some(pages),
            descale: None,
        }
    }

    /// The same cache of f8e4m3, whose elements are multiplied by the scale of their sequence and head.
    ///
    /// * `k_descale`, `v_descale`: f32 `[batch, heads_k]`.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_ferroflash::{KvCache, flash_attn_with_kvcache};
    ///
    /// let device = Device::Cpu;
    /// let q = Tensor::randn(0f32, 1f32, (2, 1, 8, 16), &device)?;
    /// let rows = Tensor::randn(0f32, 1f32, (2, 30, 2, 16), &device)?;
    /// // The largest element becomes 448, the largest number of e4m3.
    /// let largest = rows.abs()?.max_all()?.to_scalar::<f32>()?;
    /// let scale = f64::from(largest / 448.0);
    /// let k = (rows / scale)?.to_dtype(DType::F8E4M3)?;
    /// let descale = Tensor::full(scale as f32, (2, 2), &device)?;
    ///
    /// let seqused_k = Tensor::new(&[30u32, 7], &device)?;
    /// let cache = KvCache::new(&k, &k, &seqused_k).with_descale(&descale, &descale);
    /// let o = flash_attn_with_kvcache(&q, &cache, 0.25, None, Some(0))?;
    /// assert_eq!((o.dims(), o.dtype()), ([2, 1, 8, 16].as_slice(), DType::F32));
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    #[must_use]
    pub fn with_descale(self, k_descale: &'a Tensor, v_descale: &'a Tensor) -> KvCache<'a> {
        self.with(k_descale, v_descale, Fp8Kv::PerSequence)
    }

    /// The same cache of f8e4m3 in pages, whose elements are multiplied by the scale of their page and head.
    ///
    /// * `k_descale`, `v_descale`: f32 `[n_pages, heads_k]`.
    #[must_use]
    pub fn with_descale_of_pages(
        self,
        k_descale: &'a Tensor,
        v_descale: &'a Tensor,
    ) -> KvCache<'a> {
        self.with(k_descale, v_descale, Fp8Kv::PerPage)
    }

    fn with(self, k: &'a Tensor, v: &'a Tensor, of: Fp8Kv) -> KvCache<'a> {
        let descale = Some(Descale { k, v, of });
        KvCache { descale, ..self }
    }

    /// The same cache with other lengths: the result of an append.
    #[must_use]
    pub fn with_seqused_k(self, seqused_k: &'a Tensor) -> KvCache<'a> {
        KvCache { seqused_k, ..self }
    }
}

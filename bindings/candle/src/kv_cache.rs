//! A cache of keys and values, as an engine keeps it: [`KvCache`].

use candle_core::Tensor;

/// Keys and values of the tokens so far, of several sequences, and how many rows each of them uses: contiguous, or in pages.
///
/// Plain data: nothing is checked before a function takes it. [`append_kvcache`](crate::append_kvcache) writes to it,
/// [`flash_attn_with_kvcache`](crate::flash_attn_with_kvcache) and
/// [`flash_attn_varlen_with_kvcache`](crate::flash_attn_varlen_with_kvcache) read it.
///
/// Rows that no sequence uses may hold anything, NaN too: they are not read.
#[derive(Clone, Copy, Debug)]
pub struct KvCache<'a> {
    pub(crate) k: &'a Tensor,
    pub(crate) v: &'a Tensor,
    pub(crate) seqused_k: &'a Tensor,
    pub(crate) pages: Option<PageTable<'a>>,
}

/// In which pages the rows of a sequence lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageTable<'a> {
    pub(crate) block_table: &'a Tensor,
    pub(crate) max_seqlen_k: usize,
}

impl<'a> KvCache<'a> {
    /// Each sequence has rows of its own, from the first one on.
    ///
    /// * `k`, `v`: `[batch, seqlen_cache, heads_k, head_dim]`.
    /// * `seqused_k`: u32 or i32 `[batch]`, how many of its rows each sequence uses. It lies where k lies, and stays there.
    pub fn new(k: &'a Tensor, v: &'a Tensor, seqused_k: &'a Tensor) -> KvCache<'a> {
        KvCache {
            k,
            v,
            seqused_k,
            pages: None,
        }
    }

    /// The rows of all sequences lie in the pages of one pool. Row `r` of sequence `b` is row `r % page_size` of the page
    /// `block_table[b, r / page_size]`. Sequences may share pages; those that are appended to belong to one sequence alone.
    ///
    /// * `k`, `v`: `[n_pages, page_size, heads_k, head_dim]`; pages of any size up to 256.
    /// * `block_table`: u32 or i32 `[batch, columns]`. Entries behind a sequence's last page are not looked at.
    /// * `max_seqlen_k`: the most rows of a sequence, at most `columns · page_size`. A plan is made for each number, so
    ///   give the most that there will ever be, or a few numbers.
    /// * `seqused_k`: as of [`KvCache::new`].
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
        }
    }

    /// The same cache with other lengths: those that an append gives.
    #[must_use]
    pub fn with_seqused_k(self, seqused_k: &'a Tensor) -> KvCache<'a> {
        KvCache { seqused_k, ..self }
    }
}

//! What a cache of keys and values refuses.

use crate::terms::{Backend, Sequence};

/// A call of a [`KvCache`](crate::KvCache) makes no sense, or there is no room for it; nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// A pool without a page, a row, a head or a column, or with more pages than a table can name.
    #[error(
        "the pool is [n_pages, page_size, heads_k, head_dim] = {given:?}; allowed: 1 or more of each, pages up to 2147483647"
    )]
    Pool {
        /// What was asked for.
        given: [usize; 4],
    },
    /// A cache in the memory of a GPU was to be made on a device that is none.
    #[error(
        "KvCache::on_gpu was given the device {given}; allowed: a CUDA device. KvCache::on_host takes no device"
    )]
    NotOnGpu {
        /// The backend of the device.
        given: Backend,
    },
    /// Fewer pages are free than new rows need. Sequences that are removed or truncated give theirs back.
    #[error(
        "the new rows need {needed} pages; {free} are free: remove or truncate a sequence first"
    )]
    NoPages {
        /// Pages that the call needs.
        needed: usize,
        /// Pages that no sequence has.
        free: usize,
    },
    /// A sequence that was removed, or that the cache never had.
    #[error("{sequence:?} is no sequence of this cache, or was removed")]
    Unknown {
        /// Which one.
        sequence: Sequence,
    },
    /// A sequence is in a batch twice.
    #[error("{sequence:?} is in the batch twice; allowed: once")]
    Twice {
        /// Which one.
        sequence: Sequence,
    },
    /// A tensor whose batch is not the number of sequences.
    #[error("the tensor has batch {given}; needed: {needed}, one for each sequence")]
    Batch {
        /// Entries of the tensor.
        given: usize,
        /// Sequences of the call.
        needed: usize,
    },
}

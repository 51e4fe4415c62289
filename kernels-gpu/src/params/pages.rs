//! Parameters of kernels if keys and values are in pages: see [`crate::attention::pages`].

use super::parameters;

parameters! {
    /// The page table. The tensors of keys and values then are `[n_pages, page_size, heads_k, head_dim]`.
    pub struct Pages {
        /// `i32 [batch, columns]`: the pages of each sequence in the pool.
        pub table: u64 = Vector(PageTable),
        /// Entries of a sequence in the table.
        pub columns: u32,
        /// Pages of the pool.
        pub n_pages: u32,
        /// Rows of a page; 0 without pages.
        pub page_size: u32,
        /// Rows of a TMA box: this many are contiguous in a page and in a KV block, for any first row of a sequence.
        pub box_rows: u32,
    }
}

const _: () = assert!(size_of::<Pages>() == 8 + 4 * 4);

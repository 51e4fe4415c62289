//! What kernels are given where keys and values lie in pages: see [`crate::attention::pages`].

use super::parameters;

parameters! {
    /// The table of pages. The tensors of keys and values are `[n_pages, page_size, heads_k, head_dim]` then.
    pub struct Pages {
        /// `i32 [batch, columns]`: which page of the pool the pages of a sequence are, the first ones.
        pub table: u64 = Vector(PageTable),
        /// Entries of a sequence in the table.
        pub columns: u32,
        /// Pages of the pool.
        pub n_pages: u32,
        /// Rows of a page; 0 where there are none.
        pub page_size: u32,
        /// Rows of a TMA box: as many lie side by side in a page and in a KV block, wherever a sequence begins.
        pub box_rows: u32,
    }
}

const _: () = assert!(size_of::<Pages>() == 8 + 4 * 4);

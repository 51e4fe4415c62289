//! The map of a block mask as a kernel parameter.

use super::parameters;

parameters! {
    /// The map of a block mask: `u8 [batch or 1, heads_q or 1, q_blocks, k_blocks]`. The address is 0 without one.
    ///
    /// A byte describes `block_q` queries and `block_k` keys: 0, no pair is visible; 1, the mask of the problem decides for each pair;
    /// anything else, every pair is visible.
    #[derive(Eq)]
    pub struct BlockMap {
        /// Its address.
        pub map: u64 = Vector(BlockMask),
        /// Elements from one batch entry to the next; 0 if all share one map. The whole map has at most [`super::MAX_ROWS`] elements.
        pub batch_stride: u32,
        /// Elements from one query head to the next; 0 if all share one map.
        pub head_stride: u32,
        /// Rows of a map: blocks of queries.
        pub q_blocks: u32,
        /// Columns of a map: blocks of keys. From one row to the next there are as many elements.
        pub k_blocks: u32,
        /// Queries of a block: a multiple of 128.
        pub block_q: u32,
        /// Keys of a block: a multiple of 128.
        pub block_k: u32,
    }
}

/// [`BlockMap`]'s byte of a block in which no pair is visible.
pub const HIDDEN_BLOCK: u8 = 0;
/// [`BlockMap`]'s byte of a block in which the mask of the problem decides for each pair. Any other value but [`HIDDEN_BLOCK`]: every pair is
/// visible, also if the mask hides it.
pub const PARTIAL_BLOCK: u8 = 1;

/// [`BlockMap`]'s byte of a block in which every pair is visible, as written by the kernel that maps a mask.
pub const FULL_BLOCK: u8 = 2;

/// `block_q` and `block_k` are multiples of this, so that every tile of a kernel is within one block.
pub const BLOCK_MULTIPLE: u32 = 128;

const _: () = assert!(size_of::<BlockMap>() == 8 + 6 * 4);

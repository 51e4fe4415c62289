//! Block masks as kernel parameters: the caller's map, and the lists that are made from it on the device.

use super::{BlockMap, Shape, Window, parameters};

parameters! {
    /// The visible blocks of each tile under a block mask, in the workspace: [`crate::kernels::block_sparse::list`] writes them. The address is 0
    /// without a block mask.
    ///
    /// A map belongs to a (batch, head), or to several that share it; maps follow one another as the caller's do.
    #[derive(Eq)]
    pub struct BlockLists {
        /// Workspace, `u32 [maps, tiles, 1 + entries, 2]`: for each tile how many blocks are listed, and these.
        pub lists: u64 = Workspace,
        /// Workspace, in the backward pass, `u32 [maps, q_blocks, columns + 1]`: how many tiles of keys that come before a column of the map
        /// add to a query block.
        pub ranks: u64 = Workspace,
        /// Maps of a batch entry; 0 if all batch entries share them.
        pub batch_stride: u32,
        /// 1, or 0 if all heads share a map.
        pub head_stride: u32,
        /// Tiles: of queries in the forward pass, of keys in the backward pass.
        pub tiles: u32,
        /// Blocks on the other side.
        pub entries: u32,
        /// Columns of a map.
        pub columns: u32,
        /// 1 if tiles are taken in the order of a causal mask, as if later queries saw more keys; else 0.
        pub growing: u32,
    }
}

/// The output of one launch of the kernel that lists the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockListPhase {
    /// The lists of tiles of queries.
    Forward = 0,
    /// In the backward pass, first the ranks.
    Ranks = 1,
    /// Then the lists of tiles of keys.
    Backward = 2,
}

parameters! {
    /// Parameters of the kernel that lists the visible blocks of each tile under a block mask.
    pub struct BlockListParams {
        /// The caller's map.
        pub map: BlockMap = Within,
        /// The output.
        pub lists: BlockLists = Within,
        /// Sizes.
        pub shape: Shape,
        /// Window: partial blocks that it hides are not listed.
        pub window: Window,
        /// Rows of a block of queries.
        pub block_q: u32,
        /// Rows of a block of keys: 16, 32, 64 or 128.
        pub block_k: u32,
        /// Maps.
        pub n_maps: u32,
        /// A [`BlockListPhase`].
        pub phase: u32,
    }
}

const _: () = assert!(size_of::<BlockLists>() == 40);
const _: () = assert!(size_of::<BlockListParams>() == 32 + 40 + 32 + 12 + 20);

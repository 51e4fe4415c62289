//! Block masks, as kernels are given them: the map that the caller has, and the lists that are made of it on the device.

use super::{BlockMap, Shape, Window, parameters};

parameters! {
    /// What a block mask leaves of each tile's blocks, in the workspace: [`crate::kernels::block_sparse::list`] makes it. The address is 0 where
    /// there is no block mask.
    ///
    /// A map is that of a (batch, head), or of several that share it; maps lie one behind the other as the caller's do.
    #[derive(Eq)]
    pub struct BlockLists {
        /// Workspace, `u32 [maps, tiles, 1 + entries, 2]`: for each tile how many blocks are listed, and these.
        pub lists: u64 = Workspace,
        /// Workspace, in the backward pass, `u32 [maps, q_blocks, columns + 1]`: how many tiles of keys that come before a column of the map
        /// add to a query block.
        pub ranks: u64 = Workspace,
        /// Maps of a batch entry; 0 where all batch entries share them.
        pub batch_stride: u32,
        /// 1, or 0 where all heads share a map.
        pub head_stride: u32,
        /// Tiles: of queries in the forward pass, of keys in the backward pass.
        pub tiles: u32,
        /// Blocks on the other side.
        pub entries: u32,
        /// Columns of a map.
        pub columns: u32,
        /// 1 where tiles are taken in the order of a causal mask, as if later queries saw more keys; else 0.
        pub growing: u32,
    }
}

/// What is made in one launch of the kernel that lists the blocks.
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
    /// Parameters of the kernel that lists the blocks which a block mask leaves of each tile.
    pub struct BlockListParams {
        /// The caller's map.
        pub map: BlockMap = Within,
        /// Where to.
        pub lists: BlockLists = Within,
        /// Sizes.
        pub shape: Shape,
        /// Window: what it hides of a partial block is not listed.
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

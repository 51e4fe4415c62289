//! What flash1 moves in its forward pass (FlashAttention, Dao et al. 2022, Algorithm 1): the outer loop is over blocks of keys.

use super::flash::Flash;
use super::sizes::F32_BYTES;
use super::tiles::Tiles;
use super::{Counts, Launch};

impl Flash<'_> {
    /// Every query head reads its keys and values once, and for each block of them q; it reads and writes O, l and m again.
    pub(super) fn forward_of_flash1(&self) -> Counts {
        let sizes = self.sizes;
        let block_q = u64::from(self.tile_config.block_q);
        let visits = sizes.of_key_tiles(self.tile_config.block_q, self.tile_config.block_k);
        let scores = self.scores(visits);
        // O, in f32 and in the kernel's columns, l and m; of whole blocks of queries.
        let kept_of_row = self.columns * F32_BYTES + 2 * F32_BYTES;
        let kept = sizes.heads_q * sizes.seqlen_q.next_multiple_of(block_q) * kept_of_row;
        let q = visits.rows * sizes.head_dim * sizes.element;
        let streamed = sizes.heads_q * (q + visits.blocks * block_q * 2 * kept_of_row);
        let keys = sizes.group * (sizes.k() + sizes.v());
        let results = sizes.o() + sizes.row_values();
        // Written before the first block, zeros and −∞, and read after the last one.
        let bytes = keys + streamed + 2 * kept + results;
        Counts {
            launches: vec![Launch {
                name: "forward",
                flops: 2 * scores * (self.columns + self.columns_v) * sizes.products,
                exponentials: scores,
                hbm_bytes: bytes,
                l2_bytes: bytes,
            }],
            tiles: Some(Tiles::of_heads(
                sizes.heads_q,
                visits.blocks,
                u64::from(self.tile_config.block_k)
                    * (sizes.head_dim + sizes.head_dim_v)
                    * sizes.element,
                self.tile_config.blocks_per_sm,
            )),
            extra_bytes: kept,
        }
    }
}

//! Gradients of a tile's keys from registers to memory: where shared memory has no place for them on their way.

use super::Tiles;
use super::consumer::Consumer;
use super::shares::Sum;
use super::work::{WorkTile, kv_head};
use crate::attention::batch_and_head;
use crate::config::TMA_BACKWARD_STAGES as STAGES;
use crate::ptx::{spec, special};
use crate::tile::element::Element;
use crate::tile::global::{GlobalMatrix, GlobalRows};
use crate::tile::warpgroup::{self, WarpgroupTile};

impl Consumer<'_> {
    /// Writes the tile's 64 keys from `first` on of a gradient. The tile is the `n`-th work.
    ///
    /// # Safety
    /// As [`Consumer::send`].
    #[inline(always)]
    pub(super) unsafe fn store<E: Element, T: Tiles, G: WarpgroupTile>(
        &self,
        n: u32,
        sum: Sum,
        work: WorkTile,
        first: u32,
        gradient: &G,
        scale: f32,
    ) {
        let (p, config) = (self.p, T::FOOTPRINT);
        let (tensor, columns) = match sum {
            Sum::Values => (&p.d_v, p.shape.head_dim_v),
            Sum::Keys => (&p.d_k, p.shape.head_dim),
        };
        // SAFETY: rows and columns that the tensor does not have are not written.
        unsafe {
            let tile = work.tile;
            let (batch_idx, head_idx) = batch_and_head(tile.head, p.shape.heads_k);
            let head_idx = kv_head(p, head_idx);
            let rows = if spec::lengths() {
                let listed = self.layout.read_listed(n % STAGES);
                let batch_idx = p.list.batch_k(listed.sequence);
                GlobalRows::new(tensor, batch_idx, head_idx, 0)
                    .from_row(listed.k_first, listed.seqlen_k)
            } else {
                GlobalRows::new(tensor, batch_idx, head_idx, p.shape.seqlen_k)
            };
            let target = GlobalMatrix {
                rows,
                chunks: columns / 8,
            };
            let row = special::thread_idx_x() / 32 % 4 * 16;
            let first = tile.k_block * config.block_k + first + row;
            let mut gradient = *gradient;
            gradient.for_each(|_, _, x| *x *= scale);
            warpgroup::store_rows::<E, _>(target, first, &gradient);
        }
    }
}

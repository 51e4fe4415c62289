//! Which tile the producer works on, and how the others hear of it.

use crate::attention::batch_and_head;
use crate::attention::lengths::ListedTile;
use crate::attention::schedule::ForwardTile;
use crate::attention::split_kv::{n_splits, tile_and_split};
use crate::kernels::block_list::List;
use crate::kernels::forward::sm90::Tiles;
use crate::kernels::forward::sm90::layout::{Layout, WorkTile, place};
use crate::params::TmaForwardParams;
use crate::ptx::{mbarrier, spec};
use crate::tile::ring::Ring;

/// Where keys are divided among tiles: the tile of queries, and which split of its keys.
#[inline(always)]
pub(super) fn split_of<T: Tiles>(
    p: &TmaForwardParams,
    split_keys: u32,
    tile: ForwardTile,
    listed: ListedTile,
) -> (ForwardTile, u32) {
    if !(T::SPLITS_KV && spec::split_kv()) {
        return (tile, 0);
    }
    let n = if spec::lengths() {
        n_splits(listed.seqlen_k, split_keys)
    } else {
        p.split.n
    };
    let (q_block, split) = tile_and_split(tile.q_block, n);
    (ForwardTile { q_block, ..tile }, split)
}

/// The blocks of keys that a block mask leaves the tile.
#[inline(always)]
pub(super) fn list_of(p: &TmaForwardParams, tile: ForwardTile) -> List {
    let (batch_idx, head_idx) = batch_and_head(tile.head, p.shape.heads_q);
    p.blocks.list(batch_idx, head_idx, tile.q_block)
}

/// Tells the others of a tile and, where sequences have lengths of their own, what the list says of it.
#[inline(always)]
pub(super) unsafe fn announce(layout: Layout, slot: Ring, work: WorkTile, listed: ListedTile) {
    // SAFETY: the slot is empty when it is written, and the place is then free.
    unsafe {
        layout.work_ring.await_empty(slot);
        layout.write_work(slot.stage, work);
        if spec::lengths() {
            layout.write_listed(place(slot, 0), listed);
        }
        mbarrier::mbarrier_arrive_if(layout.work_ring.full(slot.stage), 1);
    }
}

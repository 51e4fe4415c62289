//! A store warp: one thread that sends one consumer's rows of O to memory.

use super::Tiles;
use super::layout::{Layout, place};
use super::pack_gqa::{Pack, PackGqa};
use super::producer::maps_of_sequence;
use crate::config::TMA_SLOTS;
use crate::kernels::lengths;
use crate::params::{BOX_COLUMNS, ForwardMap, TmaForwardParams};
use crate::ptx::{mbarrier, spec, tma};
use crate::tile::ring::Ring;
use crate::tile::warpgroup::WARPGROUP_ROWS;

/// The whole of a store warp's work.
///
/// # Safety
/// One thread of the block does it for each consumer; the barriers have been made.
#[inline(always)]
pub(super) unsafe fn store<T: Tiles>(
    p: &TmaForwardParams,
    maps: u64,
    layout: Layout,
    consumer: u32,
) {
    let config = T::FOOTPRINT;
    let packing = PackGqa::new::<T>(p);
    let mut map = ForwardMap::O.at(maps);
    let mut slot = Ring::start(TMA_SLOTS);
    let mut o = Ring::start(1);
    let (tile, ring) = (layout.o::<T>(consumer), layout.o_ring);
    // SAFETY: O is read when it is there, and its place freed when it has been read.
    unsafe {
        loop {
            mbarrier::mbarrier_wait(layout.work_ring.full(slot.stage), slot.parity);
            let work = layout.read_work::<T>(slot.stage);
            if work.blocks == 0 {
                return;
            }
            if spec::lengths() {
                let listed = layout.read_listed(place(slot, 0));
                let own = ForwardMap::O.at(maps_of_sequence(p, listed.sequence));
                lengths::acquire_maps(&mut map, own, [own]);
            }
            mbarrier::mbarrier_arrive_if(layout.work_ring.empty(slot.stage), 1);
            slot.advance();
            if T::SPLITS_KV && spec::split_kv() {
                // The consumer writes its rows itself, in f32.
                continue;
            }
            let Pack {
                batch_idx,
                head_idx,
                ..
            } = packing.pack(p, work.head);
            let first_query = work.q_block * packing.queries(config.block_q)
                + consumer * packing.queries(WARPGROUP_ROWS);

            mbarrier::mbarrier_wait(ring.full(consumer), o.parity);
            for part in 0..T::VALUE_DIM.div_ceil(BOX_COLUMNS) {
                let at = [part * BOX_COLUMNS, first_query, head_idx, batch_idx];
                tma::tma_store_if(map, at, tile.part(part).base, 1);
            }
            tma::bulk_commit_group();
            tma::bulk_wait_group_read::<0>();
            mbarrier::mbarrier_arrive_if(ring.empty(consumer), 1);
            o.advance();
        }
    }
}

//! The thread that loads V where keys and values lie in pages; where values are columns of the keys, a part of these.

use super::latent::Share;
use super::pages::SequencePages;
use super::{NO_ROW, Producer, maps_of_sequence};
use crate::config::TMA_SLOTS;
use crate::kernels::forward::sm90::Tiles;
use crate::kernels::forward::sm90::layout::{Layout, place};
use crate::kernels::forward::sm90::pack_gqa::{Pack, PackGqa};
use crate::kernels::lengths;
use crate::params::{ForwardMap, TmaForwardParams};
use crate::ptx::{mbarrier, spec};
use crate::tile::ring::Ring;

/// Whether a thread of its own loads V: out of pages there are many boxes, and a thread is slow to begin a copy. In tiles of three
/// consumers every warp has its work already.
#[inline(always)]
pub(in super::super) fn two_load<T: Tiles>() -> bool {
    T::CONSUMERS < 3 && spec::pages()
}

/// What the thread does that loads V where [`two_load`].
///
/// # Safety
/// One thread of the block does it; the barriers have been made.
#[inline(always)]
pub(in super::super) unsafe fn load_values<T: Tiles>(
    p: &TmaForwardParams,
    maps: u64,
    layout: Layout,
) {
    let packing = PackGqa::new::<T>(p);
    let mut slot = Ring::start(TMA_SLOTS);
    let mut producer = Producer::new::<T>(p, maps, layout);
    // SAFETY: stages are filled when they are empty.
    unsafe {
        loop {
            mbarrier::mbarrier_wait(layout.work_ring.full(slot.stage), slot.parity);
            let work = layout.read_work::<T>(slot.stage);
            if work.blocks == 0 {
                return;
            }
            let listed = layout.read_listed(place(slot, 0));
            mbarrier::mbarrier_arrive_if(layout.work_ring.empty(slot.stage), 1);
            slot.advance();
            let own = maps_of_sequence(p, listed.sequence);
            let map = if T::LATENT {
                ForwardMap::K
            } else {
                ForwardMap::V
            };
            lengths::acquire_maps(&mut producer.maps, own, [map.at(own)]);
            producer.pages = SequencePages::new(p, maps, listed);
            let Pack { kv_head_idx, .. } = packing.pack(p, work.head);
            let sees_none = listed.new_maps == 1;
            if T::LATENT {
                let heads = [kv_head_idx, 0];
                producer.load_blocks::<T>(Share::Last, work, sees_none, heads, |_| {});
                continue;
            }
            let mut block = work.blocks;
            while block > 0 {
                block -= 1;
                let row = if sees_none {
                    NO_ROW
                } else {
                    (work.first_block + block) * T::FOOTPRINT.block_k
                };
                producer.load_v::<T>(row, kv_head_idx, 0);
            }
        }
    }
}

//! Keys whose first columns are the values, piece by piece: see [`super`].

use super::pieces;
use crate::kernels::forward::sm90::Tiles;
use crate::kernels::forward::sm90::layout::WorkTile;
use crate::kernels::forward::sm90::paged_producer::{Found, two_load};
use crate::kernels::forward::sm90::producer::{NO_ROW, Parts, Producer};
use crate::kernels::forward::sm90::scheduler::{Claims, Pack, PackGqa};
use crate::params::ForwardMap;
use crate::tile::ring::Ring;

/// Which pieces of a block a thread loads.
#[derive(Clone, Copy, PartialEq)]
enum Pieces {
    /// All.
    All,
    /// Where two threads load: all but those of the other.
    First,
    /// The columns of the other consumer's values, which the block's owner multiplies last.
    Last,
}

impl Producer<'_> {
    /// Q, and K from the last block down. The next tile, where it is claimed late: when this one's last block comes.
    ///
    /// # Safety
    /// As [`crate::kernels::forward::sm90::producer::produce`].
    #[inline(always)]
    pub(super) unsafe fn load_mla<T: Tiles>(
        &mut self,
        work: WorkTile,
        sees_none: bool,
        claims: Claims,
    ) -> u32 {
        let packing = PackGqa::new::<T>(self.p);
        let Pack {
            batch_idx,
            head_idx,
            kv_head_idx,
        } = packing.pack(self.p, work.head);
        let wanted = if two_load::<T>() {
            Pieces::First
        } else {
            Pieces::All
        };
        let mut next = 0;
        // SAFETY: the caller's contract.
        unsafe {
            let first_query = work.q_block * packing.queries(T::CONFIG.block_q);
            self.load_q::<T>(first_query, head_idx, batch_idx);
            let heads = [kv_head_idx, batch_idx];
            self.load_blocks::<T>(wanted, work, sees_none, heads, |is_last| {
                if claims.claims_late() && is_last {
                    next = claims.next();
                }
            });
        }
        next
    }

    /// The pieces of K that the second thread loads, where two do.
    ///
    /// # Safety
    /// As [`crate::kernels::forward::sm90::producer::produce`].
    #[inline(always)]
    pub(super) unsafe fn load_last_pieces<T: Tiles>(
        &mut self,
        work: WorkTile,
        sees_none: bool,
        kv_head_idx: u32,
    ) {
        // SAFETY: the caller's contract.
        unsafe {
            self.load_blocks::<T>(Pieces::Last, work, sees_none, [kv_head_idx, 0], |_| {});
        }
    }

    /// The wanted pieces of K of a tile, of a KV head and a batch entry. `before` is called before each block, and told whether it is the last
    /// one.
    ///
    /// # Safety
    /// As [`crate::kernels::forward::sm90::producer::produce`].
    #[inline(always)]
    unsafe fn load_blocks<T: Tiles>(
        &mut self,
        wanted: Pieces,
        work: WorkTile,
        sees_none: bool,
        [head_idx, batch_idx]: [u32; 2],
        mut before: impl FnMut(bool),
    ) {
        let row_of = |block: u32| {
            if sees_none {
                NO_ROW
            } else {
                (work.first_block + block) * T::CONFIG.block_k
            }
        };
        let mut block = work.blocks;
        // SAFETY: the caller's contract.
        unsafe {
            let mut found = self.pages.look_up(self.p, row_of(block - 1));
            while block > 0 {
                // A block of each consumer.
                for owner in 0..2 {
                    if block > 0 {
                        before(block == 1);
                        block -= 1;
                        // The next block's page is on its way while this one is loaded.
                        let ahead = row_of(if block > 0 { block - 1 } else { 0 });
                        let next = self.pages.look_up(self.p, ahead);
                        let at = [0, row_of(block), head_idx, batch_idx];
                        self.load_pieces::<T>(wanted, owner, at, found);
                        found = next;
                    }
                }
            }
        }
    }

    /// A block of keys to its owner's stage, in the order in which the owner wants the pieces. The rings of K and of V count each consumer's
    /// blocks.
    #[inline(always)]
    unsafe fn load_pieces<T: Tiles>(
        &mut self,
        wanted: Pieces,
        owner: u32,
        at: [u32; 4],
        found: Found,
    ) {
        let layout = self.layout;
        let tile = layout.k::<T>(owner);
        let [own, others, other] = pieces::<T>(owner);
        let of_owner = if owner == 0 { &mut self.k } else { &mut self.v };
        let stage = Ring::at(T::KV_STAGES, of_owner.parity * T::KV_STAGES + owner);
        of_owner.parity ^= 1;
        let load = |ring, (first, n)| {
            let parts = Parts { first, n };
            // SAFETY: the caller's contract.
            unsafe { self.load_keys::<T>(ForwardMap::K, ring, stage, (tile, parts), at, found) };
        };
        if wanted != Pieces::Last {
            load(layout.value_ring(owner), own);
            load(layout.k_ring, others);
        }
        if wanted != Pieces::First {
            load(layout.value_ring(1 - owner), other);
        }
    }
}

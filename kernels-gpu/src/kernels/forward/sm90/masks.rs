//! A consumer's masks: S ← −∞ where a query does not see a key.

use super::Tiles;
use super::consumer::{Consumer, row_of_thread};
use super::layout::{Keys, WorkTile};
use crate::attention::mask::Band;
use crate::attention::score::RowTerms;
use crate::config::Footprint;
use crate::ptx::{spec, special};
use crate::tile::fragment;
use crate::tile::register::Accumulator;
use crate::tile::ring::Ring;

impl Consumer<'_> {
    /// Under a block mask: the keys of a stage of K.
    #[inline(always)]
    pub(super) unsafe fn keys<T: Tiles>(&self, stage: u32) -> Keys {
        if T::BLOCK_MASKS && spec::block_mask() {
            // SAFETY: the caller's contract: the stage is full.
            unsafe { self.layout.read_keys(stage) }
        } else {
            Keys::NONE
        }
    }

    /// All that happens to a block's scores between their product and the softmax: the same after a misprediction. Gives what they lack then.
    #[inline(always)]
    pub(super) fn edit_scores<T: Tiles>(
        &self,
        work: WorkTile,
        block: u32,
        slot: Ring,
        keys: Keys,
        s: &mut T::Scores,
    ) -> RowTerms {
        let terms = self.edit_by_expression::<T>(work, block, keys, s);
        if T::BLOCK_MASKS && spec::block_mask() {
            self.mask_listed::<T>(work, keys, s);
        } else {
            self.mask_block::<T>(self.band(slot), work, block, s);
        }
        terms
    }

    /// S ← −∞ where the mask hides the key, if it hides any of the block's from the warp's rows.
    #[inline(always)]
    fn mask_block<T: Tiles>(&self, band: Band, work: WorkTile, block: u32, s: &mut T::Scores) {
        let block_k = T::FOOTPRINT.block_k;
        let first_key = (work.first_block + block) * block_k;
        let seen = |row| {
            let query = self.packing.query::<T>(row);
            (band.first_key(query), band.end_key(query))
        };
        self.mask_unseen::<T>(work, first_key, seen, s);
    }

    /// The same under a block mask.
    #[inline(always)]
    fn mask_listed<T: Tiles>(&self, work: WorkTile, keys: Keys, s: &mut T::Scores) {
        let seen = |query| {
            if keys.is_full {
                (0, self.band.seqlen_k())
            } else {
                (self.band.first_key(query), self.band.end_key(query))
            }
        };
        self.mask_unseen::<T>(work, keys.first, seen, s);
    }

    /// S ← −∞ of keys from `first_key` on but for those that `seen` says of a row: the first one, and one past the last. Both ascend
    /// with the rows.
    #[inline(always)]
    fn mask_unseen<T: Tiles>(
        &self,
        work: WorkTile,
        first_key: u32,
        seen: impl Fn(u32) -> (u32, u32),
        s: &mut T::Scores,
    ) {
        let Footprint {
            block_q, block_k, ..
        } = T::FOOTPRINT;
        // Opaque: rows would stay in registers, and in wide tiles there are none to spare.
        let thread = special::opaque(special::thread_idx_x());
        let row = row_of_thread::<T>(thread);
        let first_row = work.q_block * block_q + row;
        // The first row sees the fewest keys to the right, the last row the fewest to the left.
        let right = first_key + block_k > seen(first_row).1;
        let left = seen(first_row + 15).0 > first_key;
        if !(right | left) {
            return;
        }
        let place = fragment::accumulator(thread % 32, 0);
        let own_key = first_key + place.col;
        let visible = [0, 8].map(|below| {
            let (begin, end) = seen(first_row + place.row + below);
            (begin.saturating_sub(own_key), end.saturating_sub(own_key))
        });
        for n in 0..T::Scores::N {
            for (idx, x) in s.fragment_mut(0, n).iter_mut().enumerate() {
                let key = n as u32 * 8 + idx as u32 % 2;
                let (begin, end) = visible[idx / 2];
                if key < begin || key >= end {
                    *x = f32::NEG_INFINITY;
                }
            }
        }
    }
}

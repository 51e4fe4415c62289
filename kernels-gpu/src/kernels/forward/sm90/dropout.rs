//! A consumer's weights, where some are dropped.

use super::Tiles;
use super::consumer::{Consumer, row_of_thread};
use super::layout::{Keys, WorkTile, place};
use crate::attention::score::ScoreRows;
use crate::kernels::dropout::{Dropped, head_of};
use crate::ptx::{spec, special};
use crate::tile::element::Element;
use crate::tile::register::Accumulator;
use crate::tile::ring::Ring;

/// The weights of a block, packed.
type PackedWeights<T> = <<T as Tiles>::Scores as Accumulator>::Packed;

impl Consumer<'_> {
    /// Under a block mask, if weights are dropped: the keys of a stage of K.
    ///
    /// # Safety
    /// The stage is full.
    #[inline(always)]
    pub(super) unsafe fn keys_of_weights<T: Tiles>(&self, stage: u32) -> Keys {
        if T::DROPS && spec::dropout() {
            // SAFETY: the caller's contract.
            unsafe { self.keys::<T>(stage) }
        } else {
            Keys::NONE
        }
    }

    /// P of a block of keys, packed, without the weights that are dropped.
    ///
    /// # Safety
    /// All lanes of the warp come here; the tile, which was announced last, before `slot`, is not done with.
    #[inline(always)]
    pub(super) unsafe fn weights<E: Element, T: Tiles>(
        &self,
        work: WorkTile,
        block: u32,
        slot: Ring,
        keys: Keys,
        p: &T::Scores,
    ) -> PackedWeights<T> {
        let mut weights = p.pack::<E>();
        // SAFETY: the caller's contract.
        unsafe { self.drop_weights::<T>(work, block, slot, keys, &mut weights) };
        weights
    }

    /// Weights of a block of keys ← 0 where they are dropped.
    ///
    /// # Safety
    /// As [`Consumer::weights`].
    #[inline(always)]
    unsafe fn drop_weights<T: Tiles>(
        &self,
        work: WorkTile,
        block: u32,
        slot: Ring,
        keys: Keys,
        weights: &mut PackedWeights<T>,
    ) {
        if !(T::DROPS && spec::dropout()) {
            return;
        }
        let (p, footprint) = (self.p, T::FOOTPRINT);
        let first_key = if T::BLOCK_MASKS && spec::block_mask() {
            keys.first
        } else {
            (work.first_block + block) * footprint.block_k
        };
        let head = if spec::lengths() {
            // SAFETY: the caller's contract.
            let listed = unsafe { self.layout.read_listed(place(slot, 1)) };
            listed.sequence * p.shape.heads_q + work.head
        } else {
            work.head
        };
        // Opaque, as are rows of masks: registers would not hold what follows from it.
        let thread = special::opaque(special::thread_idx_x());
        let row = row_of_thread::<T>(thread);
        // SAFETY: the caller's contract; the parameters say where seed and offset lie.
        unsafe {
            let dropped = Dropped {
                p: &p.dropout,
                head: head_of(&p.dropout, special::opaque(head)),
                rows: ScoreRows::Queries,
                first_row: work.q_block * footprint.block_q + row,
                first_column: first_key,
            };
            dropped.clear_packed::<T::Scores>(weights);
        }
    }
}

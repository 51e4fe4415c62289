//! A consumer's scores, where an expression edits them.

use super::Tiles;
use super::consumer::{Consumer, row_of_thread};
use super::layout::{Keys, WorkTile, place};
use crate::attention::score::{RowTerms, ScoreRows, ScoreTile};
use crate::attention::{batch_and_head, divide};
use crate::kernels::scores::{Given, edit_fragments};
use crate::ptx::{score, spec, special};
use crate::tile::fragment;
use crate::tile::ring::Ring;

/// Whether the special-function unit is what the kernel waits for: [`Tiles::TANH_BINDS`].
#[inline(always)]
pub(super) fn tanh_binds<T: Tiles>() -> bool {
    T::TANH_BINDS && spec::score() && score::is_capped()
}

impl Consumer<'_> {
    /// The scores that follow are of the tile that was announced last, before `slot`, if they are its first ones.
    ///
    /// # Safety
    /// The tile is not done with.
    #[inline(always)]
    pub(super) unsafe fn begin_scores_of_tile<T: Tiles>(
        &self,
        work: WorkTile,
        slot: Ring,
        are_first: bool,
    ) {
        if !(T::EDITS_SCORES && spec::score() && are_first) {
            return;
        }
        let (p, shape) = (self.p, &self.p.shape);
        let (batch, head, seqlen_q, seqlen_k) = if spec::lengths() {
            // SAFETY: the caller's contract.
            let listed = unsafe { self.layout.read_listed(place(slot, 1)) };
            (listed.sequence, work.head, listed.seqlen_q, listed.seqlen_k)
        } else {
            let (batch, head) = batch_and_head(work.head, shape.heads_q);
            (batch, head, shape.seqlen_q, shape.seqlen_k)
        };
        let thread = special::opaque(special::thread_idx_x());
        let in_tile = row_of_thread::<T>(thread) + fragment::accumulator(thread % 32, 0).row;
        let row = work.q_block * T::FOOTPRINT.block_q + in_tile;
        let given = Given {
            params: &p.score,
            scale: &p.scale,
        };
        let tile = ScoreTile {
            batch,
            head,
            kv_head: divide(head, shape.group_size),
            seqlen_q,
            seqlen_k,
            rows: [row, row + 8],
        };
        given.begin(ScoreRows::Queries, tile);
    }

    /// S ← what the expression makes of the block's scores but for their rows' terms, and these, if it makes anything of them.
    #[inline(always)]
    pub(super) fn edit_by_expression<T: Tiles>(
        &self,
        work: WorkTile,
        block: u32,
        keys: Keys,
        s: &mut T::Scores,
    ) -> RowTerms {
        if !(T::EDITS_SCORES && spec::score()) {
            return RowTerms::InScores;
        }
        if T::BLOCK_MASKS && spec::block_mask() && spec::edit_partial() && keys.is_full {
            // A mask alone, which leaves nothing to the rows.
            return T::ROW_TERMS;
        }
        let first_key = if T::BLOCK_MASKS && spec::block_mask() {
            keys.first
        } else {
            (work.first_block + block) * T::FOOTPRINT.block_k
        };
        let lane = special::opaque(special::lane_idx());
        let first_column = first_key + fragment::accumulator(lane, 0).col;
        match T::ROW_TERMS {
            RowTerms::InScores => score::score_block(first_column),
            RowTerms::Apart => score::score_block_apart(first_column),
        }
        edit_fragments(s, 0);
        T::ROW_TERMS
    }
}

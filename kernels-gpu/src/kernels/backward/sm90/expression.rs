//! A consumer's scores, where an expression edits them.

use super::Tiles;
use super::consumer::{Consumer, Keys, PackedScores, for_each_hidden, is_hidden, with_columns};
use super::layout::{Layout, SLOT};
use crate::attention::score::{ScoreRows, ScoreTile};
use crate::attention::{batch_and_head, divide};
use crate::config::TMA_BACKWARD_STAGES as STAGES;
use crate::kernels::lengths::END;
use crate::kernels::scores::Given;
use crate::params::BackwardParams;
use crate::ptx::math::{ex2_approx, fms};
use crate::ptx::{score, shared, spec, special};
use crate::tile::element::Element;
use crate::tile::fragment;
use crate::tile::register::{Accumulator, Packed};
use crate::tile::ring::Ring;

/// Pᵀ of a step, rounded.
pub(super) struct Probabilities<T: Tiles> {
    /// As dV's product takes it.
    pub(super) for_d_v: PackedScores<T>,
    /// Times the derivative of an expression that edits scores: dSᵀ is made of it, where registers do not hold it unrounded.
    pub(super) for_d_s: PackedScores<T>,
}

impl Layout {
    /// Writes which (batch, query head) a stage is for, where an expression edits scores or weights are dropped; where sequences have lengths of their own, which
    /// (sequence, query head).
    ///
    /// # Safety
    /// The stage is empty.
    #[inline(always)]
    pub(super) unsafe fn write_head(self, stage: u32, head: u32) {
        // SAFETY: the caller's contract.
        unsafe { shared::st_shared_u32(self.steps + stage * SLOT + 12, head) };
    }

    /// Reads it.
    ///
    /// # Safety
    /// The stage is full.
    #[inline(always)]
    pub(super) unsafe fn read_head(self, stage: u32) -> u32 {
        // SAFETY: the caller's contract.
        unsafe { shared::ld_shared_u32(self.steps + stage * SLOT + 12) }
    }
}

/// Query heads that share a head of k and v.
#[inline(always)]
fn group_size(p: &BackwardParams) -> u32 {
    if spec::shares() {
        p.shape.group_size * p.n_shares + p.n_larger_shares
    } else {
        p.shape.group_size
    }
}

/// Whether a step's place is told to the expression while its product runs ([`Consumer::begin_scores_early`]): what it reads for a row, such as
/// ALiBi's slope, comes from memory meanwhile. Not where it edits some of the steps alone.
#[inline(always)]
pub(super) fn begins_early<T: Tiles>() -> bool {
    let some_steps = T::BLOCK_MASKS && spec::block_mask() && spec::edit_partial();
    T::EDITS_SCORES && (spec::score() || spec::score_gradient()) && !some_steps
}

/// Whether queries behind a sequence's end are masked, too. L is ∞ there and P is 0, but an expression may have read anything: NaN, which would reach dV and dK.
#[inline(always)]
pub(super) fn hides_behind_end<T: Tiles>() -> bool {
    T::EDITS_SCORES && (spec::score() || spec::score_gradient()) && spec::lengths()
}

impl Consumer<'_> {
    /// What [`Consumer::probabilities`] begins with, for the tile's 64 keys from `first` on, where it may come earlier.
    ///
    /// # Safety
    /// Q's stage is full.
    #[inline(always)]
    pub(super) unsafe fn begin_scores_early<T: Tiles>(&self, n: u32, at: Ring, first: u32) {
        if begins_early::<T>() {
            // SAFETY: the caller's contract.
            unsafe { self.begin_scores_of_step(n, at, first) };
        }
    }

    /// The scores that follow are those of the step, of the tile's 64 keys from `first` on. The tile is the `n`-th work.
    ///
    /// # Safety
    /// Q's stage is full.
    #[inline(always)]
    pub(super) unsafe fn begin_scores_of_step(&self, n: u32, at: Ring, first: u32) {
        let (p, layout) = (self.p, self.layout);
        let shape = &p.shape;
        // SAFETY: the caller's contract; the work's slot is full as long as the tile is not done with.
        let (head, first_query, first_key, seqlens) = unsafe {
            let seqlens = if spec::lengths() {
                let listed = layout.read_listed(special::opaque(n) % STAGES);
                [listed.seqlen_q, listed.seqlen_k]
            } else {
                [shape.seqlen_q, shape.seqlen_k]
            };
            (
                layout.read_head(at.stage),
                layout.read_first_query(at.stage),
                layout.read_first_key(at.stage),
                seqlens,
            )
        };
        // Rows are counted such that the sequence ends at `END`.
        let [to_q, to_k] = match spec::lengths() {
            true => seqlens.map(|seqlen| END - seqlen),
            false => [0, 0],
        };
        let thread = special::opaque(special::thread_idx_x());
        let place = fragment::accumulator(thread % 32, 0);
        let key = first_key - to_k + first + thread / 32 % 4 * 16 + place.row;
        let (batch, head) = batch_and_head(head, shape.heads_q);
        let given = Given {
            params: &p.score,
            scale: &p.scale,
        };
        let tile = ScoreTile {
            batch,
            head,
            kv_head: divide(head, group_size(p)),
            seqlen_q: seqlens[0],
            seqlen_k: seqlens[1],
            rows: [key, key + 8],
        };
        given.begin(ScoreRows::Keys, tile);
        score::score_block(first_query - to_q + place.col);
    }

    /// [`Consumer::probabilities`] where the derivative of the expression is not 1. What the mask hides is cleared when all is packed: two
    /// registers for each pair of scores live across the branch, and not three.
    ///
    /// # Safety
    /// As [`Consumer::begin_scores_of_step`], which came before.
    #[inline(always)]
    pub(super) unsafe fn probabilities_and_derivatives<E: Element, T: Tiles>(
        &self,
        at: Ring,
        keys: Keys,
        first: u32,
        s: &mut T::Scores,
    ) -> Probabilities<T> {
        const { assert!(T::Scores::N <= score::MOST_FRAGMENTS) };
        let (mut for_d_v, mut for_d_s) = (PackedScores::<T>::zero(), PackedScores::<T>::zero());
        // SAFETY: the caller's contract.
        unsafe {
            with_columns::<T::Scores>(self.layout.lse::<T>(at.stage), |n, lse| {
                let s = s.fragment_mut(0, n);
                let derivatives = score::score_gradient(s, n);
                for (idx, x) in s.iter_mut().enumerate() {
                    *x = ex2_approx(fms(*x, self.p.scale.scale_log2, lse[idx % 2]));
                }
                *for_d_v.pairs_mut(0, n) = [E::pack(s[0], s[1]), E::pack(s[2], s[3])];
                for idx in 0..4 {
                    s[idx] *= derivatives[idx];
                }
                *for_d_s.pairs_mut(0, n) = [E::pack(s[0], s[1]), E::pack(s[2], s[3])];
            });
            self.where_hidden::<T>(at, keys, first, |visible| {
                if T::KEEPS_P {
                    for_each_hidden(s, visible, |x| *x = 0.0);
                }
                for n in 0..T::Scores::N {
                    for half in 0..2 {
                        let left = is_hidden(visible[half], n, 0);
                        let right = is_hidden(visible[half], n, 1);
                        let left = if left { 0 } else { 0xffff };
                        let right = if right { 0 } else { 0xffff_0000 };
                        for_d_v.pairs_mut(0, n)[half] &= left | right;
                        for_d_s.pairs_mut(0, n)[half] &= left | right;
                    }
                }
            });
        }
        Probabilities { for_d_v, for_d_s }
    }
}

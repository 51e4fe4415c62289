//! A consumer's weights, where some are dropped.

use super::Tiles;
use super::consumer::{Consumer, PackedScores};
use crate::attention::score::ScoreRows;
use crate::config::TMA_BACKWARD_STAGES as STAGES;
use crate::kernels::dropout::{Dropped, head_of};
use crate::kernels::lengths::END;
use crate::ptx::{spec, special};
use crate::tile::register::{Accumulator, Packed};
use crate::tile::ring::Ring;

/// dPᵀ ← 0 where Pᵀ is 0: where weights are dropped. Others that are 0 make no difference, as dS is a multiple of the weight.
#[inline(always)]
pub(super) fn clear_where_zero<T: Tiles>(p: &PackedScores<T>, d_p: &mut T::Scores) {
    for n in 0..T::Scores::N {
        let pairs = p.pairs(0, n);
        for (idx, x) in d_p.fragment_mut(0, n).iter_mut().enumerate() {
            let half = pairs[idx / 2] & 0xffff << (16 * (idx % 2));
            *x = if half == 0 { 0.0 } else { *x };
        }
    }
}

impl Consumer<'_> {
    /// Which weights of the step are dropped, of the tile's 64 keys from `first` on. The tile is the `n`-th work.
    ///
    /// # Safety
    /// Q's stage is full.
    #[inline(always)]
    unsafe fn dropped(&self, n: u32, at: Ring, first: u32) -> Dropped<'_> {
        let (p, layout) = (self.p, self.layout);
        // SAFETY: the caller's contract; the work's slot is full as long as the tile is not done with; the parameters say where seed and
        // offset lie.
        unsafe {
            // Rows are counted such that the sequence ends at `END`.
            let [to_q, to_k] = if spec::lengths() {
                let listed = layout.read_listed(special::opaque(n) % STAGES);
                [END - listed.seqlen_q, END - listed.seqlen_k]
            } else {
                [0, 0]
            };
            let thread = special::opaque(special::thread_idx_x());
            let head = layout.read_head(at.stage);
            Dropped {
                p: &p.dropout,
                head: head_of(&p.dropout, head),
                rows: ScoreRows::Keys,
                first_row: layout.read_first_key(at.stage) - to_k + first + thread / 32 % 4 * 16,
                first_column: layout.read_first_query(at.stage) - to_q,
            }
        }
    }

    /// Pᵀ, packed, ← 0 where weights are dropped.
    ///
    /// # Safety
    /// As [`Consumer::probabilities`], which came before.
    #[inline(always)]
    pub(super) unsafe fn drop_weights<T: Tiles>(
        &self,
        n: u32,
        at: Ring,
        first: u32,
        p: &mut PackedScores<T>,
    ) {
        if T::DROPS && spec::dropout() {
            // SAFETY: the caller's contract.
            unsafe { self.dropped(n, at, first).clear_packed::<T::Scores>(p) };
        }
    }

    /// dPᵀ ← 0 where weights are dropped; asked for where some are.
    ///
    /// # Safety
    /// As [`Consumer::drop_weights`].
    #[inline(always)]
    pub(super) unsafe fn drop_gradients<T: Tiles>(
        &self,
        n: u32,
        at: Ring,
        first: u32,
        d_p: &mut T::Scores,
    ) {
        // SAFETY: the caller's contract.
        unsafe { self.dropped(n, at, first).clear(d_p) };
    }
}

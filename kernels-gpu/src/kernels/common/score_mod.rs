//! Scores that an expression edits: the fragments of a thread, one after the other.

use crate::attention::score::{ScoreRows, ScoreTile};
use crate::params::{Scale, ScoreParams};
use crate::ptx::score;
use crate::tile::register::Accumulator;

/// The `m`-th row of fragments of S ← its expression: of [`score::MOST_FRAGMENTS`] at most. The tile and the block have been begun.
#[inline(always)]
pub(crate) fn edit_fragments<S: Accumulator>(s: &mut S, m: usize) {
    for n in 0..const {
        if S::N < score::MOST_FRAGMENTS {
            S::N
        } else {
            score::MOST_FRAGMENTS
        }
    } {
        score::score(s.fragment_mut(m, n), n);
    }
}

/// The inputs of an expression from a launch.
#[derive(Clone, Copy)]
pub(crate) struct Given<'a> {
    params: &'a ScoreParams,
    scale: &'a Scale,
}

impl<'a> Given<'a> {
    /// Of a launch with these parameters.
    #[inline(always)]
    pub(crate) const fn new(params: &'a ScoreParams, scale: &'a Scale) -> Given<'a> {
        Given { params, scale }
    }
}

impl Given<'_> {
    /// S ← the expression of S. `tile` is that of the thread's first fragment, and `first_column` the column of its first score.
    #[inline(always)]
    pub(crate) fn edit<S: Accumulator>(self, tile: ScoreTile, first_column: u32, s: &mut S) {
        const { assert!(S::N <= score::MOST_FRAGMENTS) };
        for m in 0..S::M {
            self.begin(ScoreRows::Queries, tile.below(m as u32 * 16));
            score::score_block(first_column);
            edit_fragments(s, m);
        }
    }

    /// The scores that follow lie in this tile.
    #[inline(always)]
    pub(crate) fn begin(self, rows: ScoreRows, tile: ScoreTile) {
        score::score_tile(self.params, self.scale, rows, tile);
    }
}

//! flash2's weights in the backward pass, where some are dropped. Score warps and gradient warps find out which each for themselves.

use super::Tiles;
use super::key_tile::{Tile, step_at};
use crate::attention::score::ScoreRows;
use crate::kernels::common::dropout::{Dropped, head_of};
use crate::params::BackwardParams;
use crate::ptx::special;

/// Which of a warp's weights of step `i` are dropped.
///
/// # Safety
/// As the step of a score warp or a gradient warp.
#[inline(always)]
pub(super) unsafe fn dropped_of<'p, T: Tiles>(
    p: &'p BackwardParams,
    t: &Tile,
    i: u32,
) -> Dropped<'p> {
    let step = step_at(p, t, i);
    // SAFETY: the caller's contract; the parameters say where seed and offset lie.
    unsafe {
        let head = t.sequence(p).idx() * p.shape.heads_q + step.head_idx;
        Dropped {
            p: &p.dropout,
            head: head_of(&p.dropout, special::opaque(head)),
            rows: ScoreRows::Keys,
            first_row: t.keys.first + t.warp * T::WARP_KEYS,
            first_column: step.block * T::CONFIG.block_q,
        }
    }
}

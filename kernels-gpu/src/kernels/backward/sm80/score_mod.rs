//! flash2's scores in the backward pass, where an expression edits them.

use super::key_tile::{Tile, step_at};
use super::{Tiles, with_columns};
use crate::attention::mask::Band;
use crate::attention::score::{ScoreRows, ScoreTile};
use crate::kernels::common::score_mod::{Given, edit_fragments};
use crate::params::BackwardParams;
use crate::ptx::math::{ex2_approx, fma};
use crate::ptx::{score, spec, special};
use crate::tile::fragment;
use crate::tile::products::Products;
use crate::tile::register::Accumulator;

/// Where the scores of a step lie that a thread has.
struct ScoresOfStep {
    tile: ScoreTile,
    first_query: u32,
    band: Band,
}

/// That of step `i`.
///
/// # Safety
/// As the score warp's step.
#[inline(always)]
unsafe fn place<T: Tiles>(p: &BackwardParams, t: &Tile, i: u32) -> ScoresOfStep {
    let step = step_at(p, t, i);
    // SAFETY: the caller's contract.
    let (band, batch) = unsafe {
        let sequence = t.sequence(p);
        let batch = sequence.idx();
        (sequence.band(), batch)
    };
    let place = fragment::accumulator(special::lane_idx(), 0);
    let key = t.keys.first + t.warp * T::WARP_KEYS + place.row;
    ScoresOfStep {
        tile: ScoreTile::new(
            batch,
            step.head_idx,
            p.shape.group_size,
            [band.seqlen_q(), band.seqlen_k()],
            key,
        ),
        first_query: step.block * T::CONFIG.block_q + place.col,
        band,
    }
}

/// Begins the scores of the `m`-th fragments.
#[inline(always)]
fn begin(p: &BackwardParams, place: &ScoresOfStep, m: usize) -> ScoreTile {
    let given = Given::new(&p.score, &p.scale);
    let tile = place.tile.below(m as u32 * 16);
    given.begin(ScoreRows::Keys, tile);
    score::score_block(place.first_query);
    tile
}

/// S ← the expression of S.
///
/// # Safety
/// As the score warp's step.
#[inline(always)]
pub(super) unsafe fn edit_scores<T: Tiles>(
    p: &BackwardParams,
    t: &Tile,
    i: u32,
    s: &mut T::Scores,
) {
    // SAFETY: the caller's contract.
    let place = unsafe { place::<T>(p, t, i) };
    for m in 0..T::Scores::M {
        begin(p, &place, m);
        edit_fragments(s, m);
    }
}

/// Pᵀ, as the warp holds it; `with_derivatives` ← Pᵀ times the derivative of the expression. 0 where masked.
///
/// # Safety
/// As [`super::probabilities::probabilities`].
#[inline(always)]
pub(super) unsafe fn probabilities_and_derivatives<E: Products, T: Tiles>(
    p: &BackwardParams,
    t: &Tile,
    i: u32,
    s: &mut T::Scores,
    with_derivatives: &mut E::Held<T::Scores>,
) -> E::Held<T::Scores> {
    const { assert!(T::Scores::N <= score::MOST_FRAGMENTS) };
    let mut held = E::zero::<T::Scores>();
    let lse = t.shared.lse + i % 2 * T::CONFIG.block_q * 4;
    let listed = step_at(p, t, i).listed;
    // SAFETY: the caller's contract.
    unsafe {
        let place = place::<T>(p, t, i);
        for m in 0..T::Scores::M {
            let tile = begin(p, &place, m);
            with_columns::<T::Scores>(lse, |n, lse| {
                let mut x = *s.fragment_mut(m, n);
                let mut derivatives = score::score_gradient(&mut x, n);
                for idx in 0..4 {
                    let query = place.first_query + n as u32 * 8 + idx as u32 % 2;
                    let key = tile.rows[idx / 2];
                    let keep = if spec::block_mask() {
                        listed.keep(&place.band, query, key)
                    } else {
                        place.band.keep(query, key)
                    };
                    // What the expression has read behind the sequence's end may be anything.
                    let keep = keep && (!spec::lengths() || query < place.band.seqlen_q());
                    x[idx] = ex2_approx(fma(x[idx], p.scale.scale_log2, -lse[idx % 2]));
                    x[idx] = if keep { x[idx] } else { 0.0 };
                    derivatives[idx] = if keep { x[idx] * derivatives[idx] } else { 0.0 };
                }
                E::set_fragment::<T::Scores>(&mut held, m, n, x);
                E::set_fragment::<T::Scores>(with_derivatives, m, n, derivatives);
            });
        }
    }
    held
}

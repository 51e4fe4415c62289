//! P and dS of a warp's 32 keys, and how P gets from a score warp to its partner.

use super::Tiles;
use super::sm80::{Layout, Tile, WARP_KEYS, step_at};
use crate::attention::mask::Mask;
use crate::config;
use crate::params::BackwardParams;
use crate::ptx::math::{ex2_approx, fma};
use crate::ptx::{shared, special};
use crate::tile::element::Element;
use crate::tile::register::{Accumulator, Packed};

/// The two values of a step's L or Δ for this lane's columns of fragment `n`.
#[inline(always)]
unsafe fn column_values(statistics: u32, n: usize) -> [f32; 2] {
    // SAFETY: the statistics of the step have arrived.
    let pair = unsafe { shared::ld_shared_x2(statistics + special::lane_idx() % 4 * 8 + n as u32 * 32) };
    pair.map(f32::from_bits)
}

/// Pᵀ = exp2(scale_log2 · Sᵀ − L), 0 where masked.
///
/// # Safety
/// As the score warp's step: L of step `i` has arrived.
#[inline(always)]
pub(super) unsafe fn probabilities<T: Tiles, M: Mask>(p: &BackwardParams, t: &Tile<M>, i: u32, s: &mut T::Scores) {
    let config = const { config::backward(T::HEAD_DIM) };
    for n in 0..T::Scores::N {
        // SAFETY: the caller's contract.
        let lse = unsafe { column_values(t.shared.lse + i % 2 * config.block_q * 4, n) };
        for m in 0..T::Scores::M {
            let x = s.fragment_mut(m, n);
            for idx in 0..4 {
                x[idx] = ex2_approx(fma(x[idx], p.scale.scale_log2, -lse[idx % 2]));
            }
        }
    }
    let block = step_at(p, t, i).block;
    if block < t.blocks.full_begin {
        let (first_key, first_query) = (t.keys.first + t.warp * WARP_KEYS, block * config.block_q);
        s.for_each(|row, col, x| {
            if !t.mask.keep(first_query + col, first_key + row) {
                *x = 0.0;
            }
        });
    }
}

/// dSᵀ = Pᵀ ∘ (dPᵀ − Δ), P from the partner.
///
/// # Safety
/// As the gradient warp's step: Δ of step `i` has arrived, and the pair has met.
#[inline(always)]
pub(super) unsafe fn score_gradients<E: Element, T: Tiles, M>(t: &Tile<M>, i: u32, d_p: &mut T::Scores) {
    let config = const { config::backward(T::HEAD_DIM) };
    for n in 0..T::Scores::N {
        // SAFETY: the caller's contract.
        let delta = unsafe { column_values(t.shared.delta + i % 2 * config.block_q * 4, n) };
        for m in 0..T::Scores::M / 2 {
            // SAFETY: the pair's barrier stands between the partner's writes and this.
            let p = unsafe { shared::ld_shared_x4(exchange::<T, M>(t, i, m, n)) };
            for half in 0..4 {
                let p = E::unpack(p[half]);
                let d_s = d_p.fragment_mut(2 * m + half / 2, n);
                let first = half % 2 * 2;
                d_s[first] = p[0] * (d_s[first] - delta[0]);
                d_s[first + 1] = p[1] * (d_s[first + 1] - delta[1]);
            }
        }
    }
}

/// Leaves P for the partner, in the place that its dS will take.
///
/// # Safety
/// As the score warp's step: the place is free since the step's barrier.
#[inline(always)]
pub(super) unsafe fn send<T: Tiles, M>(t: &Tile<M>, i: u32, p: &<T::Scores as Accumulator>::Packed) {
    for n in 0..T::Scores::N {
        for m in 0..T::Scores::M / 2 {
            let (upper, lower) = (p.pairs(2 * m, n), p.pairs(2 * m + 1, n));
            // SAFETY: the caller's contract.
            unsafe {
                shared::st_shared_x4(exchange::<T, M>(t, i, m, n), [upper[0], upper[1], lower[0], lower[1]]);
            }
        }
    }
}

/// The address of this lane's 16 bytes of P, in step `i`, that hold fragments `(2 m, n)` and `(2 m + 1, n)`: lanes side
/// by side.
#[inline(always)]
fn exchange<T: Tiles, M>(t: &Tile<M>, i: u32, m: usize, n: usize) -> u32 {
    let rows = Layout::stage(t.shared.d_s, const { config::backward(T::HEAD_DIM).block_k }, i);
    let place = (m * T::Scores::N + n) as u32 * 32 + special::lane_idx();
    rows.base + t.warp * WARP_KEYS * rows.row_bytes + place * 16
}

//! P and dS of a warp's keys, and how P gets from a score warp to its partner.

use super::expression::edit_scores;
use super::key_tile::{Layout, Tile, band_of, step_at};
use super::{Tiles, with_columns};
use crate::params::BackwardParams;
use crate::ptx::math::{ex2_approx, fma};
use crate::ptx::{shared, spec, special};
use crate::tile::element::Element;
use crate::tile::register::{Accumulator, Packed};

/// Pᵀ = exp2(scale_log2 · Sᵀ − L), 0 where masked.
///
/// # Safety
/// As the score warp's step: L of step `i` has arrived.
#[inline(always)]
pub(super) unsafe fn probabilities<T: Tiles>(
    p: &BackwardParams,
    t: &Tile,
    i: u32,
    s: &mut T::Scores,
) {
    let config = const { T::FOOTPRINT };
    let lse = t.shared.lse + i % 2 * config.block_q * 4;
    let is_full = || step_at(p, t, i).listed.is_full;
    if spec::score() && !(spec::block_mask() && spec::edit_partial() && is_full()) {
        // SAFETY: as `score_warp`.
        unsafe { edit_scores::<T>(p, t, i, s) };
    }
    // SAFETY: as `score_warp`.
    unsafe {
        with_columns::<T::Scores>(lse, |n, lse| {
            for m in 0..T::Scores::M {
                for (idx, x) in s.fragment_mut(m, n).iter_mut().enumerate() {
                    *x = ex2_approx(fma(*x, p.scale.scale_log2, -lse[idx % 2]));
                }
            }
        });
    }
    let step = step_at(p, t, i);
    let block = step.block;
    if spec::block_mask() {
        let (first_key, first_query) =
            (t.keys.first + t.warp * T::WARP_KEYS, block * config.block_q);
        let seqlen_k = p.shape.seqlen_k;
        if step.listed.is_full && first_key + T::WARP_KEYS <= seqlen_k {
            return;
        }
        // SAFETY: as `score_warp`.
        let band = unsafe { band_of(p, t.shared) };
        s.for_each(|row, col, x| {
            if !step.listed.keep(&band, first_query + col, first_key + row) {
                *x = 0.0;
            }
        });
    } else if block < t.blocks.full_first || block >= t.blocks.full_end {
        let (first_key, first_query) =
            (t.keys.first + t.warp * T::WARP_KEYS, block * config.block_q);
        // SAFETY: as `score_warp`.
        let band = unsafe { band_of(p, t.shared) };
        s.for_each(|row, col, x| {
            if !band.keep(first_query + col, first_key + row) {
                *x = 0.0;
            }
        });
    }
}

/// dSᵀ = Pᵀ ∘ (dPᵀ − Δ), P from the partner. Where weights are dropped, dPᵀ is divided by the share that is kept.
///
/// # Safety
/// As the gradient warp's step: Δ of step `i` has arrived, and the pair has met.
#[inline(always)]
pub(super) unsafe fn score_gradients<E: Element, T: Tiles>(
    params: &BackwardParams,
    t: &Tile,
    i: u32,
    d_p: &mut T::Scores,
) {
    let config = const { T::FOOTPRINT };
    let delta = t.shared.delta + i % 2 * config.block_q * 4;
    // SAFETY: as `gradient_warp`.
    unsafe {
        let p = receive::<T>(t, i);
        with_columns::<T::Scores>(delta, |n, delta| {
            for m in 0..T::Scores::M {
                let pairs = p.pairs(m, n);
                let d_s = d_p.fragment_mut(m, n);
                for half in 0..2 {
                    let p = E::unpack(pairs[half]);
                    for (column, p) in p.into_iter().enumerate() {
                        let x = &mut d_s[2 * half + column];
                        *x = if spec::dropout() {
                            p * fma(*x, params.dropout.inverse_keep, -delta[column])
                        } else {
                            p * (*x - delta[column])
                        };
                    }
                }
            }
        });
    }
}

/// The address of this lane's first 16 bytes of the pair's P in step `i`: the registers of a fragment and of its right
/// neighbour, lanes side by side.
#[inline(always)]
fn exchange<T: Tiles>(t: &Tile, i: u32) -> u32 {
    let rows = Layout::stage(t.shared.d_s, const { T::FOOTPRINT.block_k }, i);
    rows.base + t.warp * T::WARP_KEYS * rows.row_bytes + special::lane_idx() * 16
}

/// Bytes from one pair of fragments to the next in the exchange.
const EXCHANGE_STRIDE: u32 = 32 * 16;

/// Leaves P for the partner, in the place that its dS will take.
///
/// # Safety
/// As the score warp's step: the place is free since the step's barrier.
#[inline(always)]
pub(super) unsafe fn send<T: Tiles>(t: &Tile, i: u32, p: &<T::Scores as Accumulator>::Packed) {
    let mut address = exchange::<T>(t, i);
    for m in 0..T::Scores::M {
        for n in 0..T::Scores::N / 2 {
            let (left, right) = (p.pairs(m, 2 * n), p.pairs(m, 2 * n + 1));
            // SAFETY: the caller's contract.
            unsafe { shared::st_shared_x4(address, [left[0], left[1], right[0], right[1]]) };
            address += EXCHANGE_STRIDE;
        }
    }
}

/// Takes P as the partner left it.
#[inline(always)]
unsafe fn receive<T: Tiles>(t: &Tile, i: u32) -> <T::Scores as Accumulator>::Packed {
    let mut p = <T::Scores as Accumulator>::Packed::zero();
    let mut address = exchange::<T>(t, i);
    for m in 0..T::Scores::M {
        for n in 0..T::Scores::N / 2 {
            // SAFETY: the pair's barrier stands between the partner's writes and this.
            let registers = unsafe { shared::ld_shared_x4(address) };
            *p.pairs_mut(m, 2 * n) = [registers[0], registers[1]];
            *p.pairs_mut(m, 2 * n + 1) = [registers[2], registers[3]];
            address += EXCHANGE_STRIDE;
        }
    }
    p
}

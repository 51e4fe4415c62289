//! P and dS of a warp's keys, and how P gets from a score warp to its partner.

use super::key_tile::{Layout, Tile, step_at};
use super::score_mod::edit_scores;
use super::{Tiles, with_columns};
use crate::params::BackwardParams;
use crate::ptx::math::{ex2_approx, fma};
use crate::ptx::{shared, spec, special};
use crate::tile::products::Products;
use crate::tile::register::Accumulator;

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
    let config = const { T::CONFIG };
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
                    if spec::score() && spec::lengths() {
                        // Behind a sequence's end L is ∞, and the expression may have read anything: NaN becomes a number, whose P is 0.
                        *x = x.min(f32::MAX);
                    }
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
        let band = unsafe { t.sequence(p) }.band();
        s.for_each(|row, col, x| {
            if !step.listed.keep(&band, first_query + col, first_key + row) {
                *x = 0.0;
            }
        });
    } else if block < t.blocks.full_first || block >= t.blocks.full_end {
        let (first_key, first_query) =
            (t.keys.first + t.warp * T::WARP_KEYS, block * config.block_q);
        // SAFETY: as `score_warp`.
        let band = unsafe { t.sequence(p) }.band();
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
pub(super) unsafe fn score_gradients<E: Products, T: Tiles>(
    params: &BackwardParams,
    t: &Tile,
    i: u32,
    d_p: &mut T::Scores,
) {
    let config = const { T::CONFIG };
    let delta = t.shared.delta + i % 2 * config.block_q * 4;
    // SAFETY: as `gradient_warp`.
    unsafe {
        let p = receive::<E, T>(t, i);
        with_columns::<T::Scores>(delta, |n, delta| {
            for m in 0..T::Scores::M {
                let p = E::fragment::<T::Scores>(&p, m, n);
                for (idx, x) in d_p.fragment_mut(m, n).iter_mut().enumerate() {
                    let delta = delta[idx % 2];
                    *x = if spec::dropout() {
                        p[idx] * fma(*x, params.dropout.inverse_keep, -delta)
                    } else {
                        p[idx] * (*x - delta)
                    };
                }
            }
        });
    }
}

/// The address of this lane's first 16 bytes of the pair's P in step `i`: the registers of a fragment, of elements of 16 bits those of its right
/// neighbour too, lanes side by side.
#[inline(always)]
fn exchange<T: Tiles>(t: &Tile, i: u32) -> u32 {
    let rows = Layout::stage(t.shared.d_s, const { T::CONFIG.block_k }, i);
    rows.base + t.warp * T::WARP_KEYS * rows.row_bytes + special::lane_idx() * 16
}

/// Bytes from one of these to the next in the exchange.
const EXCHANGE_STRIDE: u32 = 32 * 16;

/// Leaves P for the partner, in the place that its dS will take.
///
/// # Safety
/// As the score warp's step: the place is free since the step's barrier.
#[inline(always)]
pub(super) unsafe fn send<E: Products, T: Tiles>(t: &Tile, i: u32, p: &E::Held<T::Scores>) {
    let mut address = exchange::<T>(t, i);
    for m in 0..T::Scores::M {
        for n in 0..T::Scores::N / E::FRAGMENTS_PER_CHUNK {
            // SAFETY: the caller's contract.
            unsafe { shared::st_shared_x4(address, E::chunk::<T::Scores>(p, m, n)) };
            address += EXCHANGE_STRIDE;
        }
    }
}

/// Takes P as the partner left it.
#[inline(always)]
unsafe fn receive<E: Products, T: Tiles>(t: &Tile, i: u32) -> E::Held<T::Scores> {
    let mut p = E::zero::<T::Scores>();
    let mut address = exchange::<T>(t, i);
    for m in 0..T::Scores::M {
        for n in 0..T::Scores::N / E::FRAGMENTS_PER_CHUNK {
            // SAFETY: the pair's barrier stands between the partner's writes and this.
            let registers = unsafe { shared::ld_shared_x4(address) };
            E::set_chunk::<T::Scores>(&mut p, m, n, registers);
            address += EXCHANGE_STRIDE;
        }
    }
    p
}

//! Consumers that share the keys of a tile: each has 64 of them, and does all five products for these. Up to head_dim 128,
//! where a warpgroup's registers hold its keys of dK and of dV.
//!
//! Step `i`, over the blocks of queries of one tile:
//!
//! ```text
//! begin dQ = dS_{i−2} K                    its share; the other one's keys have had a whole step to arrive
//! begin Sᵀ = K Q_iᵀ                        Q_i has arrived
//! begin dK += dSᵀ_{i−1} Q_{i−1}
//! wait for Sᵀ and dQ;  add dQ to memory    when it is the tile's turn
//! mask Sᵀ;  Pᵀ ← exp(Sᵀ − L)               dO_i has arrived
//! wait for dK;  release Q_{i−1}
//! begin dPᵀ = V dO_iᵀ
//! begin dV += Pᵀ dO_i
//! wait for dPᵀ
//! dSᵀ_i ← Pᵀ ∘ (dPᵀ − Δ) → shared memory   beside dV's product
//! wait for dV;  release dO_i
//! ```
//!
//! Between the steps nothing is in flight, and the two consumers never meet: one's products run beside the other's
//! exponentials. Of its own exponentials, too, `ptxas` moves most behind the beginning of dPᵀ, whose accumulators are the
//! registers from which dQ is added to memory: these are free only when the memory has taken them, and dK's product runs until
//! then.

use super::Tiles;
use super::consumer::{Consumer, Keys};
use super::layout::ROUND;
use crate::attention::mask::Mask;
use crate::config::TMA_BACKWARD_STAGES as STAGES;
use crate::ptx::{mbarrier, tma};
use crate::tile::element::Element;
use crate::tile::register::{Accumulator, Packed};
use crate::tile::ring::Ring;
use crate::tile::warpgroup::{Pending, WARPGROUP_ROWS, WarpgroupTile};

/// What is kept from step to step.
struct Kept<T: Tiles> {
    d_k: T::KeyGradient,
    d_v: T::KeyGradient,
    /// dSᵀ of the last step.
    d_s: <T::Scores as Accumulator>::Packed,
}

/// A tile's first step: there is nothing to go on with.
const FIRST: u32 = 0;
/// Its second: dS of the first is there, but not yet of both consumers.
const SECOND: u32 = 1;
/// All further ones.
const LATER: u32 = 2;

/// The whole of a consumer's work.
///
/// # Safety
/// One warpgroup of the block does it for each consumer; the barriers have been made.
#[inline(always)]
pub(super) unsafe fn consume<E: Element, T: Tiles, M: Mask>(c: &Consumer<M>) {
    let layout = c.layout;
    let (mut n, mut i) = (0, 0);
    // SAFETY: stages are read when they are full, and released when the products that read them have been waited for; all
    // four warps take the same way.
    unsafe {
        loop {
            let job = c.await_job(n);
            let steps = job.steps;
            if steps == 0 {
                break;
            }
            if steps == ROUND {
                c.round::<E, T>(n);
                n += 1;
                continue;
            }
            let keys = c.keys::<T>(job, c.idx * WARPGROUP_ROWS);
            let mut kept = Kept::<T> {
                d_k: T::KeyGradient::undefined(),
                d_v: T::KeyGradient::undefined(),
                d_s: Packed::zero(),
            };
            layout.k_ring.await_full(Ring::at(1, n));
            layout.v_ring.await_full(Ring::at(1, n));
            c.step::<E, T, FIRST>(i, keys, &mut kept);
            i += 1;
            if steps > 1 {
                c.step::<E, T, SECOND>(i, keys, &mut kept);
                i += 1;
            }
            let mut left = steps;
            while left > 2 {
                c.step::<E, T, LATER>(i, keys, &mut kept);
                i += 1;
                left -= 1;
            }
            c.finish::<E, T>(n, i, steps, &mut kept);
            n += 1;
        }
        tma::bulk_wait_group_read::<0>();
    }
}

impl<M: Mask> Consumer<'_, M> {
    /// One block of queries: see the module's documentation.
    #[inline(always)]
    unsafe fn step<E: Element, T: Tiles, const NTH: u32>(
        &self,
        i: u32,
        keys: Keys,
        kept: &mut Kept<T>,
    ) {
        let (columns, queries) = (
            const { T::HEAD_DIM / 16 },
            const { T::FOOTPRINT.block_q / 16 },
        );
        let (layout, own) = (self.layout, self.idx * WARPGROUP_ROWS);
        let at = Ring::at(STAGES, i);
        // Steps are counted through all tiles; the first one has none before it.
        let before = Ring::at(STAGES, i.wrapping_sub(1));
        let mut s = T::Scores::undefined();
        let mut d_q = T::QueryGradient::undefined();
        // SAFETY: as `consume`.
        unsafe {
            let begun_d_q = if NTH == LATER {
                Some(self.begin_query_gradient::<E, T>(i.wrapping_sub(2), &mut d_q))
            } else {
                None
            };
            layout.q_ring.await_full(at);
            let (k, q) = (layout.k::<T>().from_row(own), layout.q::<T>(at.stage));
            let begun_s = s.begin_product::<E>(k, q, columns);
            let begun_d_k = if NTH == FIRST {
                begun_s.wait::<0>();
                None
            } else {
                let q = layout.q::<T>(before.stage);
                let add = (NTH == LATER) as u32;
                let begun = kept.d_k.begin_addition::<E, _>(&kept.d_s, q, queries, add);
                begun_s.wait::<1>();
                Some(begun)
            };
            if let Some(begun) = begun_d_q {
                begun.wait::<1>();
                self.add_query_gradient::<T>(i.wrapping_sub(2), &d_q);
            }
            layout.d_o_ring.await_full(at);
            let p = self.probabilities::<E, T>(at, keys, &mut s);
            if let Some(begun) = begun_d_k {
                begun.wait::<0>();
                self.release_q(before);
            }

            let (v, d_o) = (layout.v::<T>().from_row(own), layout.d_o::<T>(at.stage));
            let mut d_p = T::Scores::undefined();
            let begun_d_p = d_p.begin_product::<E>(v, d_o, columns);
            let add = (NTH != FIRST) as u32;
            let begun_d_v = kept.d_v.begin_addition::<E, _>(&p, d_o, queries, add);
            begun_d_p.wait::<1>();
            kept.d_s = self.score_gradients::<E, T>(at, &p, d_p);
            self.publish::<T>(at, own, &kept.d_s);
            begun_d_v.wait::<0>();
            mbarrier::mbarrier_arrive_if(layout.d_o_ring.empty(at.stage), self.leads);
        }
    }

    /// The tile's last products; dV and dK on their way out. `i` counts steps up to the tile's end, `n` tiles up to it.
    #[inline(always)]
    unsafe fn finish<E: Element, T: Tiles>(&self, n: u32, i: u32, steps: u32, kept: &mut Kept<T>) {
        let (layout, queries) = (self.layout, const { T::FOOTPRINT.block_q / 16 });
        let last = Ring::at(STAGES, i.wrapping_sub(1));
        // SAFETY: as `consume`.
        unsafe {
            mbarrier::mbarrier_arrive_if(layout.v_ring.empty(0), self.leads);
            if steps > 1 {
                let mut d_q = T::QueryGradient::undefined();
                let i = i.wrapping_sub(2);
                self.begin_query_gradient::<E, T>(i, &mut d_q).wait::<0>();
                self.add_query_gradient::<T>(i, &d_q);
            }
            let mut d_q = T::QueryGradient::undefined();
            let q = layout.q::<T>(last.stage);
            let add = (steps > 1) as u32;
            let begun_d_k = kept.d_k.begin_addition::<E, _>(&kept.d_s, q, queries, add);
            let begun_d_q = self.begin_query_gradient::<E, T>(i.wrapping_sub(1), &mut d_q);
            let (out, own) = (layout.out::<T>(self.idx), self.idx * WARPGROUP_ROWS);
            // Behind these products. The job is read again: so it need not stay in registers.
            let job = layout.read_job(n % STAGES);
            self.send::<E, T>(out, 5, job, own, &kept.d_v, 1.0);
            begun_d_k.wait::<1>();
            self.release_q(last);
            begun_d_q.wait::<0>();
            mbarrier::mbarrier_arrive_if(layout.k_ring.empty(0), self.leads);
            self.add_query_gradient::<T>(i.wrapping_sub(1), &d_q);

            self.send::<E, T>(out, 4, job, own, &kept.d_k, self.p.scale.scale);
            self.end_job(n);
        }
    }

    /// Begins this consumer's share of dQ = dS K of step `i`: where a block has 128 queries its half of them, else its half of
    /// the columns.
    #[inline(always)]
    unsafe fn begin_query_gradient<'b, E: Element, T: Tiles>(
        &self,
        i: u32,
        d_q: &'b mut T::QueryGradient,
    ) -> Pending<'b, T::QueryGradient> {
        let at = Ring::at(STAGES, i);
        let (d_s, k) = (self.layout.d_s::<T>(at.stage), self.layout.k::<T>());
        let (d_s, k) = if const { T::FOOTPRINT.block_q == 128 } {
            (d_s.from_part(self.idx), k)
        } else {
            (d_s, k.from_part(self.idx))
        };
        // SAFETY: as `consume`; both consumers have written their dS.
        unsafe {
            self.layout.d_s_ring.await_full(at);
            d_q.begin_product_transposed::<E>(d_s, k, const { T::FOOTPRINT.block_k / 16 })
        }
    }

    /// Adds this consumer's share of dQ of step `i` to memory; dS may be overwritten.
    #[inline(always)]
    unsafe fn add_query_gradient<T: Tiles>(&self, i: u32, d_q: &T::QueryGradient) {
        let at = Ring::at(STAGES, i);
        // SAFETY: as `consume`.
        unsafe {
            mbarrier::mbarrier_arrive_if(self.layout.d_s_ring.empty(at.stage), self.leads);
            let turn = self.await_turn(at);
            self.add_piece::<T>(turn, self.idx, d_q);
            self.end_turn(at);
        }
    }
}

//! Consumers that share the keys of a tile: each has 64 of them, and does all five products for these. Up to head_dim 128,
//! where a warpgroup's registers hold its keys of dK and of dV, and where keys have 192 columns and values 128.
//!
//! Step `i`, over the blocks of queries of one tile:
//!
//! ```text
//! begin dQ = dS_{i−2} K                    its part; the other one's keys have had a whole step to arrive
//! begin Sᵀ = K Q_iᵀ                        Q_i has arrived
//! begin dK += dSᵀ_{i−1} Q_{i−1}
//! wait for Sᵀ and dQ;  dQ → shared memory  from there a semaphore warp adds it to memory
//! mask Sᵀ;  Pᵀ ← exp(Sᵀ − L)               dO_i has arrived
//! wait for dK;  release Q_{i−1}
//! begin dPᵀ = V dO_iᵀ
//! begin dV += Pᵀ dO_i
//! wait for dPᵀ
//! dSᵀ_i ← Pᵀ ∘ (dPᵀ − Δ) → shared memory   beside dV's product
//! wait for dV;  release dO_i
//! ```
//!
//! Between the steps nothing is in flight, and the two consumers never synchronise: one's products overlap the other's exponentials. `ptxas` also
//! moves most of a consumer's own exponentials after the start of dPᵀ.
//!
//! At head_dim 128 registers do not hold Sᵀ beside dQ, or not much else: it is begun when dQ and dK have been waited for. In wide
//! tiles, of 80 queries, dS lies in shared memory with its queries down, and dQᵀ = Kᵀ dSᵀ is multiplied, 64 columns by each
//! consumer. In the others dS is made of P as it was before it was rounded for dV.
//!
//! Where keys have 192 columns and values 128, registers do not keep dSᵀ from step to step: dK is multiplied in the step that makes it,
//! behind dV. There is one stage of dO, and dV and dK leave from the registers, so that shared memory has room for dQ's pieces: tiles of 64 keys
//! would send twice as many of them through the L2 cache, which is what bounds them.

use core::array::from_mut;

use super::Tiles;
use super::consumer::{Consumer, Keys, Probabilities, clear_where_zero};
use super::epilogue::Sum;
use super::scheduler::WorkTile;
use crate::config::TMA_BACKWARD_STAGES as STAGES;
use crate::kernels::common::dropout::divide_by_kept;
use crate::params::BackwardMap;
use crate::ptx::{mbarrier, spec, special, tma};
use crate::tile::element::Element;
use crate::tile::register::{Accumulator, Packed};
use crate::tile::ring::Ring;
use crate::tile::warpgroup::{
    Pending, WARPGROUP_ROWS, WarpgroupTile, begin_gemm_rs, begin_gemm_ss,
};

/// The state from step to step.
struct Kept<T: Tiles> {
    d_k: T::KeyGradient,
    d_v: T::ValueGradient,
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
pub(super) unsafe fn consume<E: Element, T: Tiles>(c: &Consumer) {
    let layout = c.layout;
    let (mut n, mut i) = (0, 0);
    // SAFETY: stages are read when they are full, and released when the products that read them have been waited for; all
    // four warps take the same way.
    unsafe {
        loop {
            let work = c.await_work(n);
            if work.is_end() {
                break;
            }
            if work.is_conversion() {
                if T::SCHEDULE.queries_down {
                    c.convert_transposed::<E, T>(n, work.rows());
                } else {
                    c.convert::<E, T>(n, work.rows());
                }
                n += 1;
                continue;
            }
            let work = work.tile();
            c.acquire_maps(n, [BackwardMap::DV, BackwardMap::DK]);
            let keys = c.keys::<T>(n, work, c.idx * WARPGROUP_ROWS);
            let mut kept = Kept::<T> {
                d_k: T::KeyGradient::undefined(),
                d_v: T::ValueGradient::undefined(),
                d_s: Packed::zero(),
            };
            layout.k_ring.await_full(Ring::at(1, n));
            layout.v_ring.await_full(Ring::at(1, n));
            c.record_begin::<T>(work);
            c.step::<E, T, FIRST>(n, i, keys, &mut kept);
            i += 1;
            let mut left = work.steps;
            if left > 1 {
                c.step::<E, T, SECOND>(n, i, keys, &mut kept);
                i += 1;
            }
            while left > 2 {
                c.step::<E, T, LATER>(n, i, keys, &mut kept);
                i += 1;
                left -= 1;
            }
            let head_splits = spec::head_splits();
            // In wide tiles the code is there twice: with a branch inside, ptxas spills where there are no head splits.
            if !T::SCHEDULE.queries_down {
                c.epilogue::<E, T>(n, i, left, &mut kept, head_splits);
            } else if head_splits {
                c.epilogue::<E, T>(n, i, left, &mut kept, true);
            } else {
                c.epilogue::<E, T>(n, i, left, &mut kept, false);
            }
            n += 1;
        }
        tma::bulk_wait_group_read::<0>();
    }
}

/// The `n`-th packed fragment across.
#[inline(always)]
fn unpacked<E: Element>(packed: &impl Packed, n: usize) -> [f32; 4] {
    let [[a, b], [c, d]] = packed.pairs(0, n).map(E::unpack);
    [a, b, c, d]
}

impl Consumer<'_> {
    /// One block of queries: see the module's documentation.
    #[inline(always)]
    unsafe fn step<E: Element, T: Tiles, const NTH: u32>(
        &self,
        n: u32,
        i: u32,
        keys: Keys,
        kept: &mut Kept<T>,
    ) {
        let (layout, own) = (self.layout, self.idx::<T>() * WARPGROUP_ROWS);
        let at = Ring::at(STAGES, i);
        // SAFETY: as `consume`.
        unsafe {
            let mut s = T::Scores::undefined();
            let mut p = if T::SCHEDULE.s_after_dq {
                self.scores_behind::<E, T, NTH>(n, i, keys, kept, &mut s)
            } else {
                self.scores_beside::<E, T, NTH>(n, i, keys, kept, &mut s)
            };
            let of_d_o = Ring::at(T::SCHEDULE.d_o_stages, i);
            let (v, d_o) = (layout.v::<T>().from_row(own), layout.d_o::<T>(of_d_o.stage));
            let mut d_p = T::Scores::undefined();
            // dPᵀ = V dOᵀ
            let steps = const { T::VALUE_DIM / 16 };
            let begun_d_p = begin_gemm_ss::<E, _>(&mut d_p, v, d_o.t(), steps, 0);
            self.drop_weights::<T>(n, at, own, &mut p.for_d_v);
            let queries = const { T::CONFIG.block_q / 16 };
            let accumulate = (NTH != FIRST) as u32;
            // dV += Pᵀ dO
            let begun_d_v =
                begin_gemm_rs::<E, _>(&mut kept.d_v, &p.for_d_v, d_o, queries, accumulate);
            begun_d_p.wait::<1>();
            if T::DROPS && spec::dropout() {
                clear_where_zero::<T>(&p.for_d_v, &mut d_p);
            }
            kept.d_s = if T::SCHEDULE.keeps_p {
                self.score_gradients::<E, T>(at, |n| s.fragment(0, n), d_p)
            } else {
                self.score_gradients::<E, T>(at, |n| unpacked::<E>(&p.for_d_s, n), d_p)
            };
            self.publish::<T>(at, own, &kept.d_s);
            if T::SCHEDULE.dk_at_once {
                let q = layout.q::<T>(at.stage);
                // dK += dSᵀ Q
                let begun_d_k =
                    begin_gemm_rs::<E, _>(&mut kept.d_k, &kept.d_s, q, queries, accumulate);
                begun_d_v.wait::<1>();
                mbarrier::mbarrier_arrive_if(layout.d_o_ring.empty(of_d_o.stage), self.leads);
                begun_d_k.wait::<0>();
                self.release_q(at);
            } else {
                begun_d_v.wait::<0>();
                mbarrier::mbarrier_arrive_if(layout.d_o_ring.empty(of_d_o.stage), self.leads);
            }
        }
    }

    /// A step's first half: Pᵀ, rounded, and in `s` as it was. Sᵀ is multiplied together with the rest of the earlier steps.
    #[inline(always)]
    unsafe fn scores_beside<E: Element, T: Tiles, const NTH: u32>(
        &self,
        n: u32,
        i: u32,
        keys: Keys,
        kept: &mut Kept<T>,
        s: &mut T::Scores,
    ) -> Probabilities<T> {
        // Steps are counted through all tiles; the first one has none before it.
        let (at, before) = (Ring::at(STAGES, i), Ring::at(STAGES, i.wrapping_sub(1)));
        let mut d_q = T::QueryGradient::undefined();
        // SAFETY: as `consume`.
        unsafe {
            let begun_d_q = if NTH == LATER {
                Some(self.begin_query_gradient::<E, T>(i.wrapping_sub(2), &mut d_q))
            } else {
                None
            };
            let begun_s = self.begin_scores::<E, T>(at, s);
            self.begin_scores_early::<T>(n, at, self.idx::<T>() * WARPGROUP_ROWS);
            let begun_d_k = if NTH == FIRST {
                begun_s.wait::<0>();
                None
            } else {
                let begun = self.begin_gradient_of_own_keys::<E, T, NTH>(before, kept);
                begun_s.wait::<1>();
                Some(begun)
            };
            if let Some(begun) = begun_d_q {
                begun.wait::<1>();
                self.end_query_gradient::<T>(i.wrapping_sub(2), &d_q, None);
            }
            self.layout
                .d_o_ring
                .await_full(Ring::at(T::SCHEDULE.d_o_stages, i));
            let p = self.probabilities::<E, T>(n, at, keys, self.idx::<T>() * WARPGROUP_ROWS, s);
            if let Some(begun) = begun_d_k {
                begun.wait::<0>();
                self.release_q(before);
            }
            p
        }
    }

    /// The same if registers do not hold both Sᵀ and dQ: Sᵀ is multiplied after dQ.
    #[inline(always)]
    unsafe fn scores_behind<E: Element, T: Tiles, const NTH: u32>(
        &self,
        n: u32,
        i: u32,
        keys: Keys,
        kept: &mut Kept<T>,
        s: &mut T::Scores,
    ) -> Probabilities<T> {
        let (at, before) = (Ring::at(STAGES, i), Ring::at(STAGES, i.wrapping_sub(1)));
        // SAFETY: as `consume`.
        unsafe {
            if NTH == LATER {
                let i = i.wrapping_sub(2);
                if T::SCHEDULE.dk_at_once {
                    self.query_gradient::<E, T>(i);
                } else {
                    let mut d_q = T::QueryGradient::undefined();
                    let begun_d_q = self.begin_query_gradient::<E, T>(i, &mut d_q);
                    let begun_d_k = self.begin_gradient_of_own_keys::<E, T, NTH>(before, kept);
                    begun_d_q.wait::<1>();
                    self.end_query_gradient::<T>(i, &d_q, None);
                    begun_d_k.wait::<0>();
                }
            } else if NTH == SECOND && !T::SCHEDULE.dk_at_once {
                self.begin_gradient_of_own_keys::<E, T, NTH>(before, kept)
                    .wait::<0>();
            }
            if NTH != FIRST && !T::SCHEDULE.dk_at_once {
                self.release_q(before);
            }
            let begun_s = self.begin_scores::<E, T>(at, s);
            self.begin_scores_early::<T>(n, at, self.idx::<T>() * WARPGROUP_ROWS);
            begun_s.wait::<0>();
            self.layout
                .d_o_ring
                .await_full(Ring::at(T::SCHEDULE.d_o_stages, i));
            self.probabilities::<E, T>(n, at, keys, self.idx::<T>() * WARPGROUP_ROWS, s)
        }
    }

    /// Begins Sᵀ = K Qᵀ of the tile's keys that are this consumer's.
    #[inline(always)]
    unsafe fn begin_scores<'b, E: Element, T: Tiles>(
        &self,
        at: Ring,
        s: &'b mut T::Scores,
    ) -> Pending<'b, T::Scores> {
        let layout = self.layout;
        let k = layout.k::<T>().from_row(self.idx::<T>() * WARPGROUP_ROWS);
        // SAFETY: as `consume`.
        unsafe {
            layout.q_ring.await_full(at);
            // Sᵀ = K Qᵀ
            let q = layout.q::<T>(at.stage);
            begin_gemm_ss::<E, _>(s, k, q.t(), const { T::HEAD_DIM / 16 }, 0)
        }
    }

    /// Begins dK += dSᵀ Q of the step before the `NTH` one.
    #[inline(always)]
    unsafe fn begin_gradient_of_own_keys<'b, E: Element, T: Tiles, const NTH: u32>(
        &self,
        before: Ring,
        kept: &'b mut Kept<T>,
    ) -> Pending<'b, T::KeyGradient> {
        let (q, queries) = (
            self.layout.q::<T>(before.stage),
            const { T::CONFIG.block_q / 16 },
        );
        // SAFETY: as `consume`.
        unsafe {
            // dK += dSᵀ Q
            let accumulate = (NTH == LATER) as u32;
            begin_gemm_rs::<E, _>(&mut kept.d_k, &kept.d_s, q, queries, accumulate)
        }
    }

    /// The tile's last products; dV and dK on their way out. `i` counts steps up to the tile's end, `n` tiles up to it;
    /// `left` is 1 where the tile had one step; `head_splits`: see [`spec::head_splits`].
    #[inline(always)]
    unsafe fn epilogue<E: Element, T: Tiles>(
        &self,
        n: u32,
        i: u32,
        left: u32,
        kept: &mut Kept<T>,
        head_splits: bool,
    ) {
        let (layout, queries) = (self.layout, const { T::CONFIG.block_q / 16 });
        let last = Ring::at(STAGES, i.wrapping_sub(1));
        // SAFETY: as `consume`.
        unsafe {
            if !T::SCHEDULE.queries_down {
                mbarrier::mbarrier_arrive_if(layout.v_ring.empty(0), self.leads);
            }
            if left > 1 {
                self.query_gradient::<E, T>(i.wrapping_sub(2));
            }
            // dQ first, so that the next tile's K is on its way while gradients are sent off.
            let begun_d_k = if T::SCHEDULE.dk_at_once {
                self.query_gradient::<E, T>(i.wrapping_sub(1));
                mbarrier::mbarrier_arrive_if(layout.k_ring.empty(0), self.leads);
                None
            } else {
                let mut d_q = T::QueryGradient::undefined();
                let q = layout.q::<T>(last.stage);
                let accumulate = (left > 1) as u32;
                let begun_d_q = self.begin_query_gradient::<E, T>(i.wrapping_sub(1), &mut d_q);
                // dK += dSᵀ Q
                let begun_d_k =
                    begin_gemm_rs::<E, _>(&mut kept.d_k, &kept.d_s, q, queries, accumulate);
                begun_d_q.wait::<1>();
                mbarrier::mbarrier_arrive_if(layout.k_ring.empty(0), self.leads);
                self.end_query_gradient::<T>(i.wrapping_sub(1), &d_q, None);
                Some(begun_d_k)
            };

            // Opaque, where registers would not hold what follows from it through all steps.
            let idx = match T::SCHEDULE.s_after_dq {
                true => self.idx,
                false => special::opaque(self.idx),
            };
            // Read the work again and recompute its slot's address: neither need stay in registers.
            let work = layout.read_work(special::opaque(n) % STAGES).tile();
            if T::DROPS && spec::dropout() {
                divide_by_kept(&self.p.dropout, &mut kept.d_v);
            }
            if !head_splits
                || self.accumulate_head_split::<T, _, 1>(work, Sum::Values, from_mut(&mut kept.d_v))
            {
                self.let_out::<E, T, _>(n, Sum::Values, work, idx, &kept.d_v, 1.0);
            }
            if let Some(begun) = begun_d_k {
                begun.wait::<0>();
                self.release_q(last);
            }
            if !head_splits
                || self.accumulate_head_split::<T, _, 1>(work, Sum::Keys, from_mut(&mut kept.d_k))
            {
                let scale = self.p.scale.scale;
                self.let_out::<E, T, _>(n, Sum::Keys, work, idx, &kept.d_k, scale);
            }
            if T::SCHEDULE.queries_down {
                tma::bulk_wait_group_read::<0>();
                mbarrier::mbarrier_arrive_if(layout.v_ring.empty(0), self.leads);
            }
            self.record_end::<T>(work);
            self.end_work(n);
        }
    }

    /// A gradient of the consumer's keys on its way out: through its place in shared memory, if it has one.
    #[inline(always)]
    unsafe fn let_out<E: Element, T: Tiles, G: WarpgroupTile>(
        &self,
        n: u32,
        sum: Sum,
        work: WorkTile,
        idx: u32,
        gradient: &G,
        scale: f32,
    ) {
        let own = idx * WARPGROUP_ROWS;
        let (nth, map) = match sum {
            Sum::Values => (0, BackwardMap::DV),
            Sum::Keys => (1, BackwardMap::DK),
        };
        // SAFETY: as `consume`.
        unsafe {
            if T::SCHEDULE.outs == 0 {
                self.store::<E, T, _>(n, sum, work, own, gradient, scale);
            } else {
                let out = self.layout.out::<T>(idx, nth);
                self.send::<E, T, _>(n, out, map, work, own, gradient, scale);
            }
        }
    }
}

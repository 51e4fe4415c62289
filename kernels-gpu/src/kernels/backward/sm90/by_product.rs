//! Consumers that share the products: one keeps dV, the other dK, of the same 64 keys. Above head_dim 128, where a
//! warpgroup's registers hold no more than one of them. dQ's columns they share too.
//!
//! ```text
//! values, step i                            keys, step i
//! begin Sᵀ = K Q_iᵀ                         begin dPᵀ = V dO_iᵀ
//! begin dQ = dS_{i−1} K, its left           begin dK += dSᵀ_{i−1} Q_{i−1}
//! wait for Sᵀ;  mask it                     begin dQ = dS_{i−1} K, its right
//! Pᵀ ← exp(Sᵀ − L) → shared memory          wait for dPᵀ, and for Pᵀ
//! add dQ to memory                          dSᵀ_i ← Pᵀ ∘ (dPᵀ − Δ) → shared memory
//! begin dV += Pᵀ dO_i                       wait for dK;  add dQ to memory
//! the same with the rest of its columns     the same with the rest of its columns
//! wait for dV
//! ```

use core::array::from_mut;

use super::Tiles;
use super::consumer::{Consumer, Keys, PackedScores, THREADS};
use super::epilogue::Sum;
use crate::config::TMA_BACKWARD_STAGES as STAGES;
use crate::kernels::common::dropout::divide_by_kept;
use crate::params::BackwardMap;
use crate::ptx::{mbarrier, shared, spec, special, tma};
use crate::tile::element::Element;
use crate::tile::register::{Accumulator, Packed};
use crate::tile::ring::Ring;
use crate::tile::warpgroup::{Pending, WarpgroupTile, begin_gemm_rs, begin_gemm_ss};

/// Steps of 16 keys in a tile, and of 16 queries in a block.
const STEPS: u32 = 4;

/// The whole work of the consumer that keeps dV.
///
/// # Safety
/// One warpgroup of the block does it; the barriers have been made.
#[inline(always)]
pub(super) unsafe fn consume_values<E: Element, T: Tiles>(c: &Consumer) {
    let layout = c.layout;
    let (mut n, mut i) = (0, 0);
    // SAFETY: stages are read when they are full, and released when the products that read them have been waited for; all
    // four warps take the same way.
    unsafe {
        loop {
            let work = c.await_work(n);
            if work.is_end() {
                return;
            }
            if work.is_conversion() {
                c.convert::<E, T>(n, work.rows());
                n += 1;
                continue;
            }
            let work = work.tile();
            let keys = c.keys::<T>(n, work, 0);
            let mut d_v = T::ValueGradient::undefined();
            layout.k_ring.await_full(Ring::at(1, n));
            c.value_step::<E, T, FIRST>(n, i, keys, &mut d_v);
            i += 1;
            let mut left = work.steps;
            while left > 1 {
                c.value_step::<E, T, LATER>(n, i, keys, &mut d_v);
                i += 1;
                left -= 1;
            }
            let last = Ring::at(STAGES, i.wrapping_sub(1));
            c.add_columns::<E, T>(last, 0);
            c.add_columns::<E, T>(last, 1);
            c.end_columns(last);
            mbarrier::mbarrier_arrive_if(layout.k_ring.empty(0), c.leads);
            let work = layout.read_work(n % STAGES).tile();
            if T::DROPS && spec::dropout() {
                divide_by_kept(&c.p.dropout, &mut d_v);
            }
            if !spec::head_splits()
                || c.accumulate_head_split::<T, _, 1>(work, Sum::Values, from_mut(&mut d_v))
            {
                c.store::<E, T, _>(n, Sum::Values, work, 0, &d_v, 1.0);
            }
            c.end_work(n);
            n += 1;
        }
    }
}

/// The whole work of the consumer that keeps dK.
///
/// # Safety
/// As [`consume_values`].
#[inline(always)]
pub(super) unsafe fn consume_keys<E: Element, T: Tiles>(c: &Consumer) {
    let layout = c.layout;
    let (mut n, mut i) = (0, 0);
    // SAFETY: as `consume_values`.
    unsafe {
        loop {
            let work = c.await_work(n);
            if work.is_end() {
                return;
            }
            if work.is_conversion() {
                c.convert::<E, T>(n, work.rows());
                n += 1;
                continue;
            }
            let work = work.tile();
            c.acquire_maps(n, [BackwardMap::DK]);
            // 0 until dK has been begun.
            let mut accumulate = 0;
            let mut d_k = T::KeyGradient::undefined();
            layout.v_ring.await_full(Ring::at(1, n));
            layout.k_ring.await_full(Ring::at(1, n));
            c.key_step::<E, T, FIRST>(n, i, 0, &mut d_k);
            i += 1;
            let mut left = work.steps;
            while left > 1 {
                c.key_step::<E, T, LATER>(n, i, accumulate, &mut d_k);
                accumulate = 1;
                i += 1;
                left -= 1;
            }
            let last = Ring::at(STAGES, i.wrapping_sub(1));
            layout.d_s_ring.await_full(last);
            c.begin_key_gradient::<E, T>(last, accumulate, &mut d_k)
                .wait::<0>();
            c.release_q(last);
            c.add_columns::<E, T>(last, 2);
            c.add_columns::<E, T>(last, 3);
            c.end_columns(last);
            mbarrier::mbarrier_arrive_if(layout.k_ring.empty(0), c.leads);
            // Nobody else reads V: dK leaves through its place.
            let work = layout.read_work(n % STAGES).tile();
            if !spec::head_splits()
                || c.accumulate_head_split::<T, _, 1>(work, Sum::Keys, from_mut(&mut d_k))
            {
                let (place, scale) = (layout.v::<T>(), c.p.scale.scale);
                c.send::<E, T, _>(n, place, BackwardMap::DK, work, 0, &d_k, scale);
            }
            tma::bulk_wait_group_read::<0>();
            mbarrier::mbarrier_arrive_if(layout.v_ring.empty(0), c.leads);
            c.end_work(n);
            n += 1;
        }
    }
}

/// A tile's first step: there is nothing to go on with.
const FIRST: u32 = 0;
/// All further ones.
const LATER: u32 = 1;

impl Consumer<'_> {
    #[inline(always)]
    unsafe fn value_step<E: Element, T: Tiles, const NTH: u32>(
        &self,
        n: u32,
        i: u32,
        keys: Keys,
        d_v: &mut T::ValueGradient,
    ) {
        let (layout, at) = (self.layout, Ring::at(STAGES, i));
        // Steps are counted through all tiles.
        let before = Ring::at(STAGES, i.wrapping_sub(1));
        // SAFETY: as `consume_values`.
        unsafe {
            layout.q_ring.await_full(at);
            let mut s = T::Scores::undefined();
            let (k, q) = (layout.k::<T>(), layout.q::<T>(at.stage));
            // Sᵀ = K Qᵀ
            let begun_s = begin_gemm_ss::<E, _>(&mut s, k, q.t(), const { T::HEAD_DIM / 16 }, 0);
            let mut d_q = T::QueryGradient::undefined();
            let begun_d_q = if NTH == LATER {
                layout.d_s_ring.await_full(before);
                let begun = self.begin_columns::<E, T>(before, 0, &mut d_q);
                self.begin_scores_early::<T>(n, at, 0);
                begun_s.wait::<1>();
                Some(begun)
            } else {
                self.begin_scores_early::<T>(n, at, 0);
                begun_s.wait::<0>();
                None
            };
            let mut p = self.probabilities::<E, T>(n, at, keys, 0, &mut s);
            self.hand_over::<E, T>(at, &s, &p.for_d_s);
            self.drop_weights::<T>(n, at, 0, &mut p.for_d_v);
            self.release_q(at);
            if let Some(begun) = begun_d_q {
                begun.wait::<0>();
                let slot = self.await_dq_slot(before);
                self.add_piece::<T>(slot, 0, &d_q);
            }
            layout.d_o_ring.await_full(at);
            let d_o = layout.d_o::<T>(at.stage);
            // dV += Pᵀ dO
            let begun_d_v =
                begin_gemm_rs::<E, _>(d_v, &p.for_d_v, d_o, STEPS, (NTH == LATER) as u32);
            if NTH == LATER {
                self.add_columns::<E, T>(before, 1);
                self.end_columns(before);
            }
            begun_d_v.wait::<0>();
            mbarrier::mbarrier_arrive_if(layout.d_o_ring.empty(at.stage), self.leads);
        }
    }

    #[inline(always)]
    unsafe fn key_step<E: Element, T: Tiles, const NTH: u32>(
        &self,
        n: u32,
        i: u32,
        accumulate: u32,
        d_k: &mut T::KeyGradient,
    ) {
        let (layout, at) = (self.layout, Ring::at(STAGES, i));
        let before = Ring::at(STAGES, i.wrapping_sub(1));
        // SAFETY: as `consume_values`.
        unsafe {
            layout.d_o_ring.await_full(at);
            let mut d_p = T::Scores::undefined();
            let (v, d_o) = (layout.v::<T>(), layout.d_o::<T>(at.stage));
            // dPᵀ = V dOᵀ
            let steps = const { T::VALUE_DIM / 16 };
            let begun_d_p = begin_gemm_ss::<E, _>(&mut d_p, v, d_o.t(), steps, 0);
            if NTH == FIRST {
                begun_d_p.wait::<0>();
                self.score_gradient_step::<E, T>(n, at, d_p);
                return;
            }
            layout.d_s_ring.await_full(before);
            let begun_d_k = self.begin_key_gradient::<E, T>(before, accumulate, d_k);
            let mut d_q = T::QueryGradient::undefined();
            let begun_d_q = self.begin_columns::<E, T>(before, 2, &mut d_q);
            begun_d_p.wait::<2>();
            self.score_gradient_step::<E, T>(n, at, d_p);
            begun_d_k.wait::<1>();
            self.release_q(before);
            begun_d_q.wait::<0>();
            let slot = self.await_dq_slot(before);
            self.add_piece::<T>(slot, 2, &d_q);
            self.add_columns::<E, T>(before, 3);
            self.end_columns(before);
        }
    }

    /// dSᵀ from the other consumer's Pᵀ and this one's dPᵀ.
    #[inline(always)]
    unsafe fn score_gradient_step<E: Element, T: Tiles>(
        &self,
        n: u32,
        at: Ring,
        mut d_p: T::Scores,
    ) {
        let layout = self.layout;
        // SAFETY: as `consume_values`.
        unsafe {
            if T::DROPS && spec::dropout() {
                layout.q_ring.await_full(at);
                self.drop_gradients::<T>(n, at, 0, &mut d_p);
            }
            let p = self.take_over::<T>(at);
            let p = |n| {
                let pairs = p.pairs(0, n);
                let [[a, b], [c, d]] = if spec::score_gradient() {
                    pairs.map(E::unpack)
                } else {
                    pairs.map(E::unpack_probabilities)
                };
                [a, b, c, d]
            };
            let d_s = self.score_gradients::<E, T>(at, p, d_p);
            self.publish::<T>(at, 0, &d_s);
            mbarrier::mbarrier_arrive_if(layout.p_ring.empty(at.stage), 1);
            mbarrier::mbarrier_arrive_if(layout.d_o_ring.empty(at.stage), self.leads);
        }
    }

    /// Begins dK += dSᵀ Q of a step.
    #[inline(always)]
    unsafe fn begin_key_gradient<'b, E: Element, T: Tiles>(
        &self,
        at: Ring,
        accumulate: u32,
        d_k: &'b mut T::KeyGradient,
    ) -> Pending<'b, T::KeyGradient> {
        let (d_s, q) = (self.layout.d_s::<T>(at.stage), self.layout.q::<T>(at.stage));
        // SAFETY: as `consume_values`.
        // dK += dSᵀ Q
        unsafe { begin_gemm_ss::<E, _>(d_k, d_s, q, STEPS, accumulate) }
    }

    /// Columns `64 · piece ..` of dQ of a step, from their product to memory; none where there are no such columns.
    #[inline(always)]
    unsafe fn add_columns<E: Element, T: Tiles>(&self, at: Ring, piece: u32) {
        if piece * 64 >= T::ACCUM_COLUMNS {
            return;
        }
        let mut d_q = T::QueryGradient::undefined();
        // SAFETY: as `consume_values`.
        unsafe {
            self.layout.d_s_ring.await_full(at);
            self.begin_columns::<E, T>(at, piece, &mut d_q).wait::<0>();
            let slot = self.await_dq_slot(at);
            self.add_piece::<T>(slot, piece, &d_q);
        }
    }

    /// Leaves Pᵀ for the other consumer: a thread's registers for the thread in its place. More exact than dV's product wants it: dS, which is
    /// made of it, is rounded once more. A NaN is lost here, but Δ has it, too, and so has dS: a row with a NaN among its scores has o = NaN.
    #[inline(always)]
    unsafe fn hand_over<E: Element, T: Tiles>(
        &self,
        at: Ring,
        p: &T::Scores,
        for_d_s: &PackedScores<T>,
    ) {
        let ring = self.layout.p_ring;
        // SAFETY: the stage is empty when it is written.
        unsafe {
            ring.await_empty(at);
            for n in 0..T::Scores::N / 2 {
                let [left, right] = [2 * n, 2 * n + 1].map(|n| {
                    if spec::score_gradient() {
                        // Times the derivative: no probabilities.
                        return for_d_s.pairs(0, n);
                    }
                    let [a, b, c, d] = p.fragment(0, n);
                    [E::pack_probabilities(a, b), E::pack_probabilities(c, d)]
                });
                let registers = [left[0], left[1], right[0], right[1]];
                shared::st_shared_x4(self.exchange::<T>(at, n), registers);
            }
            mbarrier::mbarrier_arrive_if(ring.full(at.stage), 1);
        }
    }

    /// Takes Pᵀ as the other consumer left it.
    #[inline(always)]
    unsafe fn take_over<T: Tiles>(&self, at: Ring) -> PackedScores<T> {
        let mut p = PackedScores::<T>::zero();
        // SAFETY: the stage is full when it is read.
        unsafe {
            self.layout.p_ring.await_full(at);
            for n in 0..T::Scores::N / 2 {
                let [a, b, c, d] = shared::ld_shared_x4(self.exchange::<T>(at, n));
                *p.pairs_mut(0, 2 * n) = [a, b];
                *p.pairs_mut(0, 2 * n + 1) = [c, d];
            }
        }
        p
    }

    /// The address of this thread's `n`-th 16 bytes of Pᵀ.
    #[inline(always)]
    fn exchange<T: Tiles>(&self, at: Ring, n: usize) -> u32 {
        let thread = special::thread_idx_x() % THREADS;
        self.layout.p::<T>(at.stage).base + (n as u32 * THREADS + thread) * 16
    }
}

//! Consumers that share the columns: each keeps half of the columns of dV and of dK, transposed, of all keys of a tile: 80 at head_dim 256, where
//! 80 keys instead of 64 take less dQ to memory. Scores have the queries down, each consumer multiplies those of its own half of the keys, and both find P and dS
//! of all keys in shared memory.
//!
//! ```text
//! step i                                           under way meanwhile
//! mask S;  P ← exp(S − L) → shared memory          dP
//! wait for P of both, and for dP                   dP
//! begin dVᵀ += dO_iᵀ P, its own columns
//! dS ← P ∘ (dP − Δ) → shared memory                dV
//! wait for dS of both                              dV
//! begin dQ = dS K, half of its own columns         dV
//! begin dKᵀ += Q_iᵀ dS, its own columns            dV, dQ
//! wait for dV, and for dQ;  add it to memory       dK
//! begin the other half of dQ                       dK
//! begin S = Q_{i+1} Kᵀ, its own keys               dK, dQ
//! wait for dK, and for dQ;  add it to memory       S
//! begin dP = dO_{i+1} Vᵀ, its own keys             S
//! wait for S                                       dP
//! ```
//!
//! What is under way from a step to the next is waited for together: ptxas does not count products through a loop.
//!
//! Where two blocks of a cluster share a tile, each works on its own 64 keys in this way; dQ is another thing (`by_cluster.rs`).

use super::Tiles;
use super::consumer::{Consumer, Keys, Out, PackedScores};
use super::epilogue::Sum;
use super::layout::own_keys;
use super::scheduler::WorkTile;
use crate::config::TMA_BACKWARD_STAGES as STAGES;
use crate::params::BackwardMap;
use crate::ptx::math::{ex2_approx, fms};
use crate::ptx::{barrier, mbarrier, shared, spec, special, tma};
use crate::tile::element::Element;
use crate::tile::fragment;
use crate::tile::register::Accumulator;
use crate::tile::ring::{Barriers, Ring};
use crate::tile::warpgroup::{self, BoxedTile, Pending, WarpgroupTile, begin_gemm_ss};

/// Parts of 64 columns of dV, of dK and of dQ that a consumer has.
const PARTS: u32 = 2;

/// The state from step to step.
pub(super) struct Kept<T: Tiles> {
    pub(super) d_k: [T::KeyGradient; PARTS as usize],
    pub(super) d_v: [T::ValueGradient; PARTS as usize],
    /// S of the step that comes next.
    pub(super) s: T::Scores,
    /// dP of that step, under way; in a cluster it is begun later.
    pub(super) d_p: T::Scores,
    /// In a cluster: dQ of the step before, under way.
    pub(super) d_q: T::QueryGradient,
    /// In a cluster: L and Δ of the lane's two queries in the step that comes next.
    pub(super) statistics: [[f32; 2]; 2],
}

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
                return;
            }
            if work.is_conversion() {
                c.convert::<E, T>(n, work.rows());
                n += 1;
                continue;
            }
            let work = work.tile();
            c.acquire_maps(n, [BackwardMap::DV, BackwardMap::DK]);
            let keys = c.keys::<T>(n, work, c.first_own_key::<T>());
            let mut kept = Kept::<T> {
                d_k: [T::KeyGradient::undefined(), T::KeyGradient::undefined()],
                d_v: [T::ValueGradient::undefined(), T::ValueGradient::undefined()],
                s: T::Scores::undefined(),
                d_p: T::Scores::undefined(),
                d_q: T::QueryGradient::undefined(),
                statistics: [[0.0; 2]; 2],
            };
            layout.k_ring.await_full(Ring::at(1, n));
            c.record_begin::<T>(work);
            c.begin_own_scores::<E, T>(i, &mut kept.s);
            layout.v_ring.await_full(Ring::at(1, n));
            if T::SCHEDULE.cluster > 1 {
                kept.statistics = c.prepare_step::<T>(i);
                kept.s.wait::<0>();
            } else {
                c.begin_own_gradients::<E, T>(i, &mut kept.d_p);
                kept.s.wait::<1>();
            }
            // 0 until dV and dK have been begun.
            let mut accumulate = 0;
            let mut left = work.steps;
            while left > 1 {
                if T::SCHEDULE.cluster > 1 {
                    c.cluster_step::<E, T, LATER>(i, keys, accumulate, &mut kept);
                } else {
                    c.columns_step::<E, T, LATER>(i, keys, accumulate, &mut kept);
                }
                accumulate = 1;
                i += 1;
                left -= 1;
            }
            if T::SCHEDULE.cluster > 1 {
                c.cluster_step::<E, T, LAST>(i, keys, accumulate, &mut kept);
            } else {
                c.columns_step::<E, T, LAST>(i, keys, accumulate, &mut kept);
            }
            i += 1;
            c.end_columns_of_tile::<E, T>(n, i, &mut kept);
            n += 1;
        }
    }
}

/// A step that another one follows, whose S it begins.
pub(super) const LATER: u32 = 0;
/// A tile's last step.
pub(super) const LAST: u32 = 1;

impl Consumer<'_> {
    /// The first of this consumer's keys of a tile.
    #[inline(always)]
    pub(super) fn first_own_key<T: Tiles>(&self) -> u32 {
        self.idx::<T>() * const { own_keys::<T>() }
    }

    /// Begins S = Q Kᵀ of step `i`, of this consumer's keys.
    #[inline(always)]
    pub(super) unsafe fn begin_own_scores<E: Element, T: Tiles>(&self, i: u32, s: &mut T::Scores) {
        let at = Ring::at(STAGES, i);
        let (q, k) = (self.layout.q::<T>(at.stage), self.layout.k::<T>());
        let k = k.from_row(self.first_own_key::<T>());
        // SAFETY: as `consume`.
        unsafe {
            self.layout.q_ring.await_full(at);
            // S = Q Kᵀ
            let _ = begin_gemm_ss::<E, _>(s, q, k.t(), const { T::HEAD_DIM / 16 }, 0);
        }
    }

    /// Begins dP = dO Vᵀ of step `i`, of this consumer's keys.
    #[inline(always)]
    pub(super) unsafe fn begin_own_gradients<E: Element, T: Tiles>(
        &self,
        i: u32,
        d_p: &mut T::Scores,
    ) {
        let at = Ring::at(T::SCHEDULE.d_o_stages, i);
        let (d_o, v) = (self.layout.d_o::<T>(at.stage), self.layout.v::<T>());
        let v = v.from_row(self.first_own_key::<T>());
        // SAFETY: as `consume`.
        unsafe {
            self.layout.d_o_ring.await_full(at);
            // dP = dO Vᵀ
            let _ = begin_gemm_ss::<E, _>(d_p, d_o, v.t(), const { T::VALUE_DIM / 16 }, 0);
        }
    }

    /// One block of queries: see the module's documentation.
    #[inline(always)]
    unsafe fn columns_step<E: Element, T: Tiles, const NTH: u32>(
        &self,
        i: u32,
        keys: Keys,
        accumulate: u32,
        kept: &mut Kept<T>,
    ) {
        let (layout, at) = (self.layout, Ring::at(STAGES, i));
        let of_d_o = Ring::at(T::SCHEDULE.d_o_stages, i);
        let (d_o, q) = (layout.d_o::<T>(of_d_o.stage), layout.q::<T>(at.stage));
        let p_tile = layout.p::<T>(at.stage);
        let d_s_tile = layout.d_s::<T>(at.stage);
        let Kept {
            d_k, d_v, s, d_p, ..
        } = kept;
        // SAFETY: as `consume`.
        unsafe {
            self.mask_rows::<T>(at, keys, s);
            self.probabilities_of_rows::<T>(of_rows(layout.lse::<T>(at.stage)), s);
            layout.p_ring.await_empty(at);
            self.leave_columns::<T>(layout.p_ring, at, p_tile, &s.pack::<E>());
            layout.p_ring.await_full(at);
            d_p.wait::<0>();
            // dVᵀ += dOᵀ P
            let begun_d_v = self.begin_transposed::<E, T, _>(d_v, d_o, p_tile, accumulate);
            self.score_gradients_of_rows::<T>(of_rows(layout.delta::<T>(at.stage)), s, d_p);
            layout.d_s_ring.await_empty(at);
            self.leave_columns::<T>(layout.d_s_ring, at, d_s_tile, &d_p.pack::<E>());

            layout.d_s_ring.await_full(at);
            let mut d_q = T::QueryGradient::undefined();
            let begun_d_q = self.begin_columns::<E, T>(at, self.idx::<T>() * PARTS, &mut d_q);
            // dKᵀ += Qᵀ dS
            let begun_d_k = self.begin_transposed::<E, T, _>(d_k, q, d_s_tile, accumulate);
            let [left, right] = begun_d_v;
            left.wait::<3>();
            right.wait::<3>();
            mbarrier::mbarrier_arrive_if(layout.d_o_ring.empty(of_d_o.stage), self.leads);
            mbarrier::mbarrier_arrive_if(layout.p_ring.empty(at.stage), self.leads);
            begun_d_q.wait::<2>();
            let slot = self.await_dq_slot(at);
            self.add_piece::<T>(slot, self.idx::<T>() * PARTS, &d_q);

            let mut d_q = T::QueryGradient::undefined();
            let begun_d_q = self.begin_columns::<E, T>(at, self.idx::<T>() * PARTS + 1, &mut d_q);
            let [left, right] = begun_d_k;
            if NTH == LAST {
                left.wait::<1>();
                right.wait::<1>();
                self.release_q(at);
                begun_d_q.wait::<0>();
            } else {
                self.begin_own_scores::<E, T>(i.wrapping_add(1), s);
                left.wait::<2>();
                right.wait::<2>();
                self.release_q(at);
                begun_d_q.wait::<1>();
            }
            self.add_piece::<T>(slot, self.idx::<T>() * PARTS + 1, &d_q);
            self.end_columns(at);
            if NTH == LATER {
                self.begin_own_gradients::<E, T>(i.wrapping_add(1), d_p);
                s.wait::<1>();
            }
        }
    }

    /// Begins Cᵀ += Aᵀ B of this consumer's columns of A: a product for each part of 64 columns. `b` has its columns down.
    #[inline(always)]
    unsafe fn begin_transposed<'b, E: Element, T: Tiles, G: WarpgroupTile>(
        &self,
        c: &'b mut [G; PARTS as usize],
        a: BoxedTile,
        b: BoxedTile,
        accumulate: u32,
    ) -> [Pending<'b, G>; PARTS as usize] {
        let [left, right] = c;
        // SAFETY: as `consume`.
        unsafe {
            [
                self.begin_part::<E, T, G>(0, left, a, b, accumulate),
                self.begin_part::<E, T, G>(1, right, a, b, accumulate),
            ]
        }
    }

    /// The same of one of the parts.
    #[inline(always)]
    pub(super) unsafe fn begin_part<'b, E: Element, T: Tiles, G: WarpgroupTile>(
        &self,
        part: u32,
        c: &'b mut G,
        a: BoxedTile,
        b: BoxedTile,
        accumulate: u32,
    ) -> Pending<'b, G> {
        let queries = const { T::CONFIG.block_q / 16 };
        let a = a.from_part(self.idx::<T>() * PARTS + part);
        // SAFETY: as `consume`.
        unsafe { begin_gemm_ss::<E, _>(c, a.t(), b.t(), queries, accumulate) }
    }

    /// S ← −∞ where the mask hides one of the consumer's keys, if it hides one from any of the block's queries.
    #[inline(always)]
    pub(super) unsafe fn mask_rows<T: Tiles>(&self, at: Ring, keys: Keys, s: &mut T::Scores) {
        // SAFETY: Q's stage is full, and the numbers of its first row and of the tile's first key with it.
        unsafe {
            let first_query = self.layout.read_first_query(at.stage);
            if !self.is_edge::<T>(keys, first_query) {
                return;
            }
            let band = self.band_of_step(at);
            // Opaque: see `Consumer::send_parts`.
            let thread = special::opaque(special::thread_idx_x());
            let place = fragment::accumulator(thread % 32, 0);
            let query = first_query + thread / 32 % 4 * 16 + place.row;
            let own_key =
                self.layout.read_first_key(at.stage) + self.first_own_key::<T>() + place.col;
            let visible = [0, 8].map(|below| {
                let (begin, end) = (band.first_key(query + below), band.end_key(query + below));
                (begin.saturating_sub(own_key), end.saturating_sub(own_key))
            });
            s.for_each_hidden(visible, |x| *x = f32::NEG_INFINITY);
        }
    }

    /// P = exp2(scale_log2 · S − L), in place of S; L of the lane's two rows.
    #[inline(always)]
    pub(super) fn probabilities_of_rows<T: Tiles>(&self, lse: [f32; 2], s: &mut T::Scores) {
        for n in 0..T::Scores::N {
            for (idx, x) in s.fragment_mut(0, n).iter_mut().enumerate() {
                *x = ex2_approx(fms(*x, self.p.scale.scale_log2, lse[idx / 2]));
            }
        }
    }

    /// dS = P ∘ (dP − Δ), in place of dP; Δ of the lane's two rows.
    #[inline(always)]
    pub(super) fn score_gradients_of_rows<T: Tiles>(
        &self,
        delta: [f32; 2],
        p: &T::Scores,
        d_p: &mut T::Scores,
    ) {
        for n in 0..T::Scores::N {
            let p = p.fragment(0, n);
            for (idx, x) in d_p.fragment_mut(0, n).iter_mut().enumerate() {
                *x = p[idx] * (*x - delta[idx / 2]);
            }
        }
    }

    /// P or dS of this consumer's keys, transposed, to where the products of both consumers find it: a stage that is empty.
    #[inline(always)]
    pub(super) unsafe fn leave_columns<T: Tiles>(
        &self,
        ring: Barriers,
        at: Ring,
        tile: BoxedTile,
        packed: &PackedScores<T>,
    ) {
        let part = tile.from_row(self.first_own_key::<T>()).part(0);
        let warp = special::thread_idx_x() / 32 % 4;
        // SAFETY: as `consume`.
        unsafe {
            warpgroup::store_matrices_transposed::<T::Scores>(part, warp, packed);
            tma::fence_proxy_async();
            barrier::warp_sync();
            mbarrier::mbarrier_arrive_if(ring.full(at.stage), self.leads);
        }
    }

    /// dV and dK of a tile on their way out. `i` counts steps up to the tile's end, `n` tiles up to it.
    #[inline(always)]
    unsafe fn end_columns_of_tile<E: Element, T: Tiles>(&self, n: u32, i: u32, kept: &mut Kept<T>) {
        let layout = self.layout;
        // SAFETY: as `consume`; both consumers have read V, as dS of the last step says.
        unsafe {
            // Read again: it need not stay in registers.
            let work = layout.read_work(special::opaque(n) % STAGES).tile();
            let head_splits = spec::head_splits();
            if !head_splits
                || self.accumulate_head_split::<T, _, { PARTS as usize }>(
                    work,
                    Sum::Values,
                    &mut kept.d_v,
                )
            {
                let place = layout.v::<T>();
                self.send_columns::<E, T, _>(n, place, BackwardMap::DV, work, &kept.d_v, 1.0);
            }
            if !head_splits
                || self.accumulate_head_split::<T, _, { PARTS as usize }>(
                    work,
                    Sum::Keys,
                    &mut kept.d_k,
                )
            {
                // When dS of the last step has been read, so has K.
                layout
                    .d_s_ring
                    .await_empty(Ring::at(STAGES, i.wrapping_add(STAGES - 1)));
                let (place, scale) = (layout.k::<T>(), self.p.scale.scale);
                self.send_columns::<E, T, _>(n, place, BackwardMap::DK, work, &kept.d_k, scale);
            }
            tma::bulk_wait_group_read::<1>();
            mbarrier::mbarrier_arrive_if(layout.v_ring.empty(0), self.leads);
            tma::bulk_wait_group_read::<0>();
            mbarrier::mbarrier_arrive_if(layout.k_ring.empty(0), self.leads);
            self.record_end::<T>(work);
            self.end_work(n);
        }
    }

    /// Sends this consumer's columns of a gradient off through `place`, which has rows for all keys of the tile. The tile is the `n`-th work.
    #[inline(always)]
    unsafe fn send_columns<E: Element, T: Tiles, G: WarpgroupTile>(
        &self,
        n: u32,
        place: BoxedTile,
        map: BackwardMap,
        work: WorkTile,
        gradient: &[G; PARTS as usize],
        scale: f32,
    ) {
        let first_part = special::opaque(self.idx) * PARTS;
        let out = Out {
            place,
            map,
            first: 0,
            parts: [first_part, PARTS],
        };
        // SAFETY: as `consume`.
        unsafe {
            self.send_parts::<T>(n, work, out, |place, warp| {
                for (part, gradient) in gradient.iter().enumerate() {
                    let mut gradient = *gradient;
                    gradient.for_each(|_, _, x| *x *= scale);
                    let part = place.part(first_part + part as u32);
                    warpgroup::store_matrices_transposed::<G>(part, warp, &gradient.pack::<E>());
                }
            });
        }
    }
}

/// Of the statistics of a block's queries in shared memory, those of the lane's two rows.
///
/// # Safety
/// They have arrived.
#[inline(always)]
pub(super) unsafe fn of_rows(statistics: u32) -> [f32; 2] {
    // Opaque: see `Consumer::send_parts`.
    let thread = special::opaque(special::thread_idx_x());
    let row = thread / 32 % 4 * 16 + fragment::accumulator(thread % 32, 0).row;
    // SAFETY: the caller's contract.
    [0, 8].map(|below| unsafe {
        f32::from_bits(shared::ld_shared_u32(statistics + (row + below) * 4))
    })
}

//! Two blocks of a cluster that share a tile of keys. Each has 64 of its 128 keys, works on them as in `by_columns.rs`, and sends its dS to the other. With
//! dS of all 128 keys, each makes half of dQ's columns. So a tile takes dQ to memory once for 128 keys, where a block alone has registers for 80.
//!
//! ```text
//! step i                                           under way meanwhile
//! mask S;  P ← exp(S − L) → shared memory          dQ_{i−1}
//! wait for dQ_{i−1}
//! begin dP = dO_i Vᵀ, its own keys
//! wait for P of both consumers                     dP
//! begin dVᵀ += dO_iᵀ P, half of its own columns    dP
//! wait for dP;  dS ← P ∘ (dP − Δ)                  dV
//! begin the other half of dVᵀ                      dV
//! dS → shared memory;  wait for that of both       dV
//! begin dKᵀ += Q_iᵀ dS, its own columns            dV
//! wait for dV
//! begin S = Q_{i+1} Kᵀ, its own keys               dK
//! wait for dK                                      S
//! begin dQ_i = dS K, its own columns               S
//! wait for dS of the other block                   S, dQ
//! begin dQ_i += dS K of the other block            S, dQ
//! wait for S                                       dQ
//! ```
//!
//! dQ is added to memory a step later, a fragment after the other between the products dK and S. All at once they would fill the way to memory for a third of a step, and what a
//! consumer does next, the barriers, too, would wait behind them.
//!
//! Both blocks visit the same query blocks in the same order, so that dQ of a step has all 128 keys. dS has till the end of a step to arrive, and a block may be
//! that much ahead of the other.
//!
//! A warp of the producer warpgroup sends dS, by the copy engine, to the same stage in the other block. A stage is empty when the consumers of both blocks have
//! read it, there the copy: so its place is empty, too, when the stage is full the next time. Consumers arrive at the other block's barrier without a
//! fence of the cluster ([`mbarrier::mbarrier_arrive_reuse_if`]): products have read what is overwritten.

use super::Tiles;
use super::by_columns::{Kept, LATER, of_rows};
use super::consumer::{Consumer, Keys};
use super::dq_accumulate::PlacedPiece;
use super::layout::{CONSUMERS, Layout, d_s_bytes, of_peer, parts_of_block, rank};
use crate::config::TMA_BACKWARD_STAGES as STAGES;
use crate::ptx::{barrier, cluster, mbarrier, tma};
use crate::tile::element::Element;
use crate::tile::register::Accumulator;
use crate::tile::ring::Ring;
use crate::tile::warpgroup::{WarpgroupTile, begin_gemm_ss, begin_gemm_ss_of_parts};

/// Waits for all threads of the cluster.
///
/// # Safety
/// All of them come here.
#[inline(always)]
pub(super) unsafe fn meet() {
    // SAFETY: the caller's contract. Lanes come from different ways.
    unsafe {
        barrier::warp_sync();
        cluster::barrier_cluster_arrive();
        cluster::barrier_cluster_wait();
    }
}

/// The whole work of the warp that sends dS: of every step of every tile, when both consumers have left theirs.
///
/// # Safety
/// One thread of the block does it; the barriers have been made.
#[inline(always)]
pub(super) unsafe fn send_d_s<T: Tiles>(layout: Layout) {
    let n_bytes = const { d_s_bytes::<T>() };
    let (mut n, mut step) = (0, 0);
    // SAFETY: slots and stages are read when they are full. A stage is filled when the peer's consumers have read what was sent from it before:
    // the place that it is sent to is empty.
    unsafe {
        loop {
            let slot = Ring::at(STAGES, n);
            layout.work_ring.await_full(slot);
            let work = layout.read_work(slot.stage);
            if work.is_end() {
                return;
            }
            mbarrier::mbarrier_arrive_if(layout.work_ring.empty(slot.stage), 1);
            n += 1;
            let mut left = match work.is_conversion() {
                true => 0,
                false => work.tile().steps,
            };
            while left > 0 {
                let at = Ring::at(STAGES, step);
                layout.d_s_ring.await_full(at);
                let full = layout.d_s_peer_full(at.stage);
                mbarrier::mbarrier_arrive_expect_tx(full, n_bytes);
                let to = of_peer(layout.d_s_peer::<T>(at.stage).base);
                let from = layout.d_s::<T>(at.stage).base;
                tma::bulk_store_cluster(to, from, n_bytes, of_peer(full));
                step += 1;
                left -= 1;
            }
        }
    }
}

impl Consumer<'_> {
    /// One block of queries: see the module's documentation. `accumulate` is 0 in a tile's first step.
    #[inline(always)]
    pub(super) unsafe fn cluster_step<E: Element, T: Tiles, const NTH: u32>(
        &self,
        i: u32,
        keys: Keys,
        accumulate: u32,
        kept: &mut Kept<T>,
    ) {
        let (layout, at) = (self.layout, Ring::at(STAGES, i));
        let of_d_o = Ring::at(T::SCHEDULE.d_o_stages, i);
        let before = Ring::at(STAGES, i.wrapping_sub(1));
        let (d_o, q) = (layout.d_o::<T>(of_d_o.stage), layout.q::<T>(at.stage));
        let p_tile = layout.p::<T>(at.stage);
        let d_s_tile = layout.d_s::<T>(at.stage);
        let Kept {
            d_k: [left_d_k, right_d_k],
            d_v: [left_d_v, right_d_v],
            s,
            d_p,
            d_q,
            statistics,
        } = kept;
        let [lse, delta] = *statistics;
        // SAFETY: as `by_columns::consume`.
        unsafe {
            self.mask_rows::<T>(at, keys, s);
            self.probabilities_of_rows::<T>(lse, s);
            self.leave_columns::<T>(layout.p_ring, at, p_tile, &s.pack::<E>());
            d_q.wait::<0>();
            self.release_d_s(before, self.leads & accumulate);
            self.begin_own_gradients::<E, T>(i, d_p);
            layout.p_ring.await_full(at);
            // dVᵀ += dOᵀ P
            let begun_left_d_v = self.begin_part::<E, T, _>(0, left_d_v, d_o, p_tile, accumulate);
            d_p.wait::<1>();
            self.score_gradients_of_rows::<T>(delta, s, d_p);
            let begun_right_d_v = self.begin_part::<E, T, _>(1, right_d_v, d_o, p_tile, accumulate);
            self.leave_columns::<T>(layout.d_s_ring, at, d_s_tile, &d_p.pack::<E>());

            layout.d_s_ring.await_full(at);
            // dKᵀ += Qᵀ dS
            let begun_left_d_k = self.begin_part::<E, T, _>(0, left_d_k, q, d_s_tile, accumulate);
            let piece = self.await_piece::<T>(before, self.dq_part::<T>(), accumulate);
            piece.send::<T>(0, d_q);
            let begun_right_d_k = self.begin_part::<E, T, _>(1, right_d_k, q, d_s_tile, accumulate);
            begun_left_d_v.wait::<2>();
            begun_right_d_v.wait::<2>();
            mbarrier::mbarrier_arrive_if(layout.d_o_ring.empty(of_d_o.stage), self.leads);
            mbarrier::mbarrier_arrive_if(layout.p_ring.empty(at.stage), self.leads);
            piece.send::<T>(1, d_q);
            self.begin_scores_and_send::<E, T, NTH>(i.wrapping_add(1), s, piece, d_q);
            if accumulate == 1 {
                self.release_dq_slot(before);
            }
            if NTH == LATER {
                begun_left_d_k.wait::<1>();
                begun_right_d_k.wait::<1>();
            } else {
                begun_left_d_k.wait::<0>();
                begun_right_d_k.wait::<0>();
            }
            self.release_q(at);
            self.begin_dq_of_cluster::<E, T>(at, d_q);
            if NTH == LATER {
                *statistics = self.prepare_step::<T>(i.wrapping_add(1));
                s.wait::<2>();
            } else {
                d_q.wait::<0>();
                self.release_d_s(at, self.leads);
                self.end_dq_of_cluster::<T>(at, d_q);
            }
        }
    }

    /// What a step needs beside its products, as long as these are under way: L and Δ of the lane's two queries, and that the places of P and dS are empty.
    #[inline(always)]
    pub(super) unsafe fn prepare_step<T: Tiles>(&self, i: u32) -> [[f32; 2]; 2] {
        let (layout, at) = (self.layout, Ring::at(STAGES, i));
        // SAFETY: Q's stage is full, as S has been begun, and L and Δ with it.
        unsafe {
            let statistics = [layout.lse::<T>(at.stage), layout.delta::<T>(at.stage)];
            layout.p_ring.await_empty(at);
            layout.d_s_ring.await_empty(at);
            statistics.map(|statistics| of_rows(statistics))
        }
    }

    /// Begins S = Q Kᵀ of step `i`, of this consumer's keys, if there is one, and sends the fragments of dQ from the third on, four of them between parts of the product.
    #[inline(always)]
    unsafe fn begin_scores_and_send<E: Element, T: Tiles, const NTH: u32>(
        &self,
        i: u32,
        s: &mut T::Scores,
        piece: PlacedPiece,
        d_q: &T::QueryGradient,
    ) {
        // SAFETY: as `by_columns::consume`.
        unsafe {
            if NTH == LATER {
                let next = Ring::at(STAGES, i);
                let (q, k) = (self.layout.q::<T>(next.stage), self.layout.k::<T>());
                let k = k.from_row(self.first_own_key::<T>());
                self.layout.q_ring.await_full(next);
                // S = Q Kᵀ
                let parts = [0, 1, 2, 3].map(|part| (part, 1));
                let _ = begin_gemm_ss_of_parts::<E, _, 4>(s, q, k.t(), parts, |part| {
                    piece.send::<T>(2 + part, d_q);
                });
            } else {
                for n in 2..6 {
                    piece.send::<T>(n, d_q);
                }
            }
            for n in 6..T::QueryGradient::N {
                piece.send::<T>(n, d_q);
            }
        }
    }

    /// Begins this consumer's columns of dQ of a step, over the keys of both blocks: two products.
    #[inline(always)]
    unsafe fn begin_dq_of_cluster<E: Element, T: Tiles>(
        &self,
        at: Ring,
        d_q: &mut T::QueryGradient,
    ) {
        const { assert!(T::SCHEDULE.cluster == 1 || parts_of_block::<T>() == CONSUMERS) };
        const { assert!(T::SCHEDULE.cluster == 1 || T::HEAD_DIM == 256 && T::QueryGradient::N >= 6) };
        let layout = self.layout;
        let keys = const { T::SCHEDULE.keys_of_block() / 16 };
        let (d_s, d_s_peer) = (layout.d_s::<T>(at.stage), layout.d_s_peer::<T>(at.stage));
        let k = layout.k::<T>().from_part(self.dq_part::<T>());
        let k_peer = layout.k_peer::<T>().from_part(self.idx::<T>());
        // SAFETY: as `by_columns::consume`.
        unsafe {
            // dQ = dS K, first of the keys of this block.
            let _ = begin_gemm_ss::<E, _>(d_q, d_s.t(), k, keys, 0);
            mbarrier::mbarrier_wait(layout.d_s_peer_full(at.stage), at.parity);
            let _ = begin_gemm_ss::<E, _>(d_q, d_s_peer.t(), k_peer, keys, 1);
        }
    }

    /// Which part of 64 columns of dQ this consumer has.
    #[inline(always)]
    fn dq_part<T: Tiles>(&self) -> u32 {
        rank::<T>() * const { parts_of_block::<T>() } + self.idx::<T>()
    }

    /// dQ of a step has been waited for: dS of both blocks may be overwritten, where `predicate` is 1.
    #[inline(always)]
    unsafe fn release_d_s(&self, at: Ring, predicate: u32) {
        let read = self.layout.d_s_ring.empty(at.stage);
        // SAFETY: as `by_columns::consume`.
        unsafe {
            mbarrier::mbarrier_arrive_if(read, predicate);
            mbarrier::mbarrier_arrive_reuse_if(of_peer(read), predicate);
        }
    }

    /// Adds dQ of a step, which has been waited for, to memory.
    #[inline(always)]
    unsafe fn end_dq_of_cluster<T: Tiles>(&self, at: Ring, d_q: &T::QueryGradient) {
        // SAFETY: as `by_columns::consume`.
        unsafe {
            let slot = self.await_dq_slot(at);
            self.add_piece::<T>(slot, self.dq_part::<T>(), d_q);
            self.release_dq_slot(at);
        }
    }
}

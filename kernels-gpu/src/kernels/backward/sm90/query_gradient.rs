//! Shares of dQ of consumers that share the keys of a tile: each multiplies some of dQ's rows or columns, over all keys, and leaves them for
//! a semaphore warp.
//!
//! `wgmma` reads columns in parts of 64 ([`BoxedTile`](crate::tile::warpgroup::BoxedTile)), so where there are three parts, each consumer has a
//! part of its own, and half of the third.

use super::Tiles;
use super::consumer::Consumer;
use crate::config::TMA_BACKWARD_STAGES as STAGES;
use crate::ptx::{mbarrier, special};
use crate::tile::element::Element;
use crate::tile::ring::Ring;
use crate::tile::warpgroup::{Pending, WarpgroupTile};

impl Consumer<'_> {
    /// Which consumer; opaque, where registers would not hold what follows from it through all steps.
    #[inline(always)]
    pub(super) fn idx<T: Tiles>(&self) -> u32 {
        if T::HALVES_A_PART {
            special::opaque(self.idx)
        } else {
            self.idx
        }
    }

    /// Begins this consumer's share of dQ = dS K of step `i`: where a block has 128 queries its half of them, else its half of
    /// the columns. Or of dQᵀ = Kᵀ dSᵀ.
    #[inline(always)]
    pub(super) unsafe fn begin_query_gradient<'b, E: Element, T: Tiles>(
        &self,
        i: u32,
        d_q: &'b mut T::QueryGradient,
    ) -> Pending<'b, T::QueryGradient> {
        let at = Ring::at(STAGES, i);
        let (d_s, k) = (self.layout.d_s::<T>(at.stage), self.layout.k::<T>());
        let keys = const { T::FOOTPRINT.block_k / 16 };
        // SAFETY: as `consume`; both consumers have written their dS.
        unsafe {
            self.layout.d_s_ring.await_full(at);
            if T::QUERIES_DOWN {
                d_q.begin_product_of_columns::<E>(k.from_part(self.idx), d_s, keys)
            } else if const { T::FOOTPRINT.block_q == 128 } {
                d_q.begin_product_transposed::<E>(d_s.from_part(self.idx), k, keys)
            } else {
                d_q.begin_product_transposed::<E>(d_s, k.from_part(self.idx::<T>()), keys)
            }
        }
    }

    /// This consumer's share of dQ of step `i`, from its product to memory; where consumers halve a part of its columns, its half of that,
    /// too.
    #[inline(always)]
    pub(super) unsafe fn query_gradient<E: Element, T: Tiles>(&self, i: u32) {
        let mut d_q = T::QueryGradient::undefined();
        // SAFETY: as `begin_query_gradient`.
        unsafe {
            let begun = self.begin_query_gradient::<E, T>(i, &mut d_q);
            if !T::HALVES_A_PART {
                begun.wait::<0>();
                self.end_query_gradient::<T>(i, &d_q, None);
                return;
            }
            let (d_s, k) = (self.layout.d_s::<T>(i % STAGES), self.layout.k::<T>());
            let k = k.from_half_of_part(2, self.idx::<T>());
            let mut half = T::QueryGradientOfHalf::undefined();
            let keys = const { T::FOOTPRINT.block_k / 16 };
            let begun_half = half.begin_product_transposed::<E>(d_s, k, keys);
            begun.wait::<1>();
            begun_half.wait::<0>();
            self.end_query_gradient::<T>(i, &d_q, Some(&half));
        }
    }

    /// This consumer's share of dQ of step `i` is there: off to memory. dS may be overwritten.
    #[inline(always)]
    pub(super) unsafe fn end_query_gradient<T: Tiles>(
        &self,
        i: u32,
        d_q: &T::QueryGradient,
        half: Option<&T::QueryGradientOfHalf>,
    ) {
        let d_s_read = self.layout.d_s_ring.empty(i % STAGES);
        // SAFETY: as `consume`.
        unsafe {
            mbarrier::mbarrier_arrive_if(d_s_read, self.leads);
            self.leave_piece::<T>(i, d_q, half);
        }
    }
}

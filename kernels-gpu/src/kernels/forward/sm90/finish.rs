//! A tile's end: O is divided by the sums, and goes to memory with L.

use super::Tiles;
use super::consumer::{Consumer, Finished};
use crate::attention::batch_and_head;
use crate::kernels::dropout::divide_by_kept;
use crate::kernels::forward::{StatisticRows, add_sinks, sink_of_head, store_statistic};
use crate::ptx::{barrier, mbarrier, spec, special, tma};
use crate::tile::element::Element;
use crate::tile::global::{GlobalMatrix, GlobalRows};
use crate::tile::register::Accumulator;
use crate::tile::ring::Ring;
use crate::tile::warpgroup::{self, WARPGROUP_ROWS};

impl Consumer<'_> {
    /// O ← diag(l)⁻¹ O; O and L to memory. Where sequences have lengths of their own, the place `listed` has the tile's.
    #[inline(always)]
    pub(super) unsafe fn finish<E: Element, T: Tiles>(
        &self,
        finished: &Finished,
        listed: u32,
        place: &mut Ring,
        o: &mut T::Output,
    ) {
        let (p, head) = (self.p, finished.work.head);
        let first_row = self.first_row::<T>(finished.work);
        // SAFETY: all lanes of the warp come here; what lies outside O is not written.
        unsafe {
            let mut lse = finished.softmax.finish(o);
            if T::DROPS && spec::dropout() {
                divide_by_kept(&p.dropout, o);
            }
            let place_of = |row| {
                (
                    self.packing.head::<T>(head, row),
                    self.packing.query::<T>(row),
                )
            };
            let o_rows = |batch_idx, head_idx, first, seqlen_q| GlobalMatrix {
                rows: GlobalRows::new(&p.o_rows, batch_idx, head_idx, 0).from_row(first, seqlen_q),
                chunks: p.shape.head_dim_v / 8,
            };
            if T::SPLITS_KV && spec::split_kv() {
                self.store_split::<T>(finished.work, listed, first_row, 0, lse, o);
                return;
            }
            if spec::sinks() {
                let sink = |head| sink_of_head(p.sinks, p.shape.heads_q, head);
                lse = if T::PACKS_GQA {
                    add_sinks(first_row, lse, o, |row| sink(place_of(row).0))
                } else {
                    // All rows are of one head.
                    let sink = sink(head);
                    add_sinks(first_row, lse, o, |_| sink)
                };
            }
            if T::STORES {
                self.hand_over::<E, T>(place, o);
            }
            let own_columns = |o: GlobalMatrix| match T::SHARES_ROWS {
                true => o.from_chunk(self.idx * T::Output::N as u32),
                false => o,
            };
            // Of the same rows one consumer writes lse.
            let writes_lse = !T::SHARES_ROWS || self.idx == 0;
            // Not one call with either's numbers: ptxas would hold them in registers.
            if spec::lengths() {
                if !T::STORES {
                    let tile = self.layout.read_listed(special::opaque(listed));
                    let batch_idx = p.list.batch_q(tile.sequence);
                    let target = o_rows(batch_idx, head, tile.q_first, tile.seqlen_q);
                    warpgroup::store_rows::<E, _>(own_columns(target), first_row, o);
                }
                if writes_lse {
                    let tile = self.layout.read_listed(listed);
                    let rows = StatisticRows::listed(p.lse, &p.shape, &p.list, tile);
                    store_statistic::<T::Output>(rows, first_row, lse, place_of);
                }
            } else {
                if !T::STORES {
                    let (batch_idx, head_idx) = batch_and_head(head, p.shape.heads_q);
                    let target = o_rows(batch_idx, head_idx, 0, p.shape.seqlen_q);
                    warpgroup::store_rows::<E, _>(own_columns(target), first_row, o);
                }
                if writes_lse {
                    let rows = StatisticRows::padded(p.lse, &p.shape);
                    store_statistic::<T::Output>(rows, first_row, lse, place_of);
                }
            }
        }
    }

    /// O to the store warp.
    #[inline(always)]
    unsafe fn hand_over<E: Element, T: Tiles>(&self, place: &mut Ring, o: &T::Output) {
        let ring = self.layout.o_ring;
        // SAFETY: the place is filled when it is empty; the store warp waits for all four warps.
        unsafe {
            mbarrier::mbarrier_wait(ring.empty(self.idx), place.parity ^ 1);
            warpgroup::store::<E, _>(self.layout.o::<T>(self.idx), self.row % WARPGROUP_ROWS, o);
            tma::fence_proxy_async();
            barrier::warp_sync();
            mbarrier::mbarrier_arrive_if(ring.full(self.idx), self.leads);
            place.advance();
        }
    }
}

//! A tile's end: O is divided by the sums, and goes to memory with L.

use super::Tiles;
use super::consumer::{Consumer, Finished};
use super::elements::Elements;
use super::layout::{Layout, WorkTile, place};
use super::producer::maps_of_sequence;
use super::scheduler::{Pack, PackGqa};
use crate::attention::{batch_and_head, divide};
use crate::config::TMA_SLOTS;
use crate::kernels::common::dropout::divide_by_kept;
use crate::kernels::common::sequence::StatisticRows;
use crate::kernels::forward::{add_sinks, store_statistic, value_of_head};
use crate::kernels::merge::combine::SplitQuery;
use crate::kernels::varlen;
use crate::params::{BOX_COLUMNS, CombineParams, ForwardMap, TmaForwardParams};
use crate::ptx::{atomic, barrier, global, mbarrier, shuffle, spec, special, tma};
use crate::tile::fragment;
use crate::tile::global::{GlobalMatrix, GlobalRows};
use crate::tile::register::Accumulator;
use crate::tile::ring::Ring;
use crate::tile::softmax::RowValues;
use crate::tile::warpgroup::WARPGROUP_ROWS;

impl Consumer<'_> {
    /// O ← diag(l)⁻¹ O; O and L to memory. If sequences have different lengths, the place `listed` has the tile's.
    #[inline(always)]
    pub unsafe fn epilogue<E: Elements, T: Tiles>(
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
            let mut lse = finished.softmax.finalize(o);
            if T::DROPS && spec::dropout() {
                divide_by_kept(&p.dropout, o);
            }
            let place_of = |row| {
                (
                    self.packing.head::<T>(head, row),
                    self.packing.query::<T>(row),
                )
            };
            if T::SPLITS_KV && spec::split_kv() {
                if self.is_whole(finished.work, listed) {
                    self.store_rows::<E, T>(finished.work, listed, first_row, 0, lse, o);
                } else {
                    self.store_split::<T>(finished.work, listed, first_row, 0, lse, o);
                }
                return;
            }
            if spec::sinks() {
                let sink = |head| value_of_head(p.sinks, p.shape.heads_q, head);
                lse = if T::PACKS_GQA {
                    add_sinks(first_row, lse, o, |row| sink(place_of(row).0))
                } else {
                    // All rows are of one head.
                    let sink = sink(head);
                    add_sinks(first_row, lse, o, |_| sink)
                };
            }
            let by_store_warp = T::STORES && E::has_16_bit_output();
            if by_store_warp {
                self.hand_over::<E, T>(place, o);
            }
            let own_columns = |o: GlobalMatrix| match T::SHARES_ROWS {
                true => o.from_chunk(self.idx * T::Output::N as u32),
                false => o,
            };
            // Of the same rows one consumer writes lse.
            let writes_lse = !T::SHARES_ROWS || self.idx == 0;
            let rows_of = |batch_idx, head_idx, len| {
                GlobalRows::of_elements(&p.o_rows, batch_idx, head_idx, len, E::output_bytes())
            };
            // Not one call with either's numbers: ptxas would hold them in registers, and head_dim 256 would be 1 to 3 % slower.
            if spec::lengths() {
                if !by_store_warp {
                    let tile = self.layout.read_listed(special::opaque(listed));
                    let rows = rows_of(p.list.batch_q(tile.sequence), head, 0);
                    let rows = rows.from_row(tile.q_first, tile.seqlen_q);
                    let target = own_columns(rows.with_chunks(E::chunks(p.shape.head_dim_v)));
                    E::store_rows(target, first_row, o);
                }
                if writes_lse {
                    let tile = self.layout.read_listed(listed);
                    let rows = StatisticRows::listed(p.lse, &p.shape, &p.list, tile);
                    store_statistic::<T::Output>(rows, first_row, lse, place_of);
                }
            } else {
                if !by_store_warp {
                    let (batch_idx, head_idx) = batch_and_head(head, p.shape.heads_q);
                    let rows = rows_of(batch_idx, head_idx, p.shape.seqlen_q);
                    let target = own_columns(rows.with_chunks(E::chunks(p.shape.head_dim_v)));
                    E::store_rows(target, first_row, o);
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
    unsafe fn hand_over<E: Elements, T: Tiles>(&self, place: &mut Ring, o: &T::Output) {
        let ring = self.layout.o_ring;
        // SAFETY: the place is filled when it is empty; the store warp waits for all four warps.
        unsafe {
            mbarrier::mbarrier_wait(ring.empty(self.idx), place.parity ^ 1);
            E::store(self.layout.o::<T>(self.idx), self.row % WARPGROUP_ROWS, o);
            tma::fence_proxy_async();
            barrier::warp_sync();
            mbarrier::mbarrier_arrive_if(ring.full(self.idx), self.leads);
            place.advance();
        }
    }
}

// A store warp: one thread that sends one consumer's rows of O to memory.

/// The whole of a store warp's work: the rows of this consumer or, in 8 bits, of all from it on.
///
/// # Safety
/// One thread of the block does it for each consumer; the barriers have been made.
#[inline(always)]
pub unsafe fn store<T: Tiles>(p: &TmaForwardParams, maps: u64, layout: Layout, first: u32) {
    let config = T::CONFIG;
    let packing = PackGqa::new::<T>(p);
    let mut map = ForwardMap::O.at(maps);
    let mut slot = Ring::start(TMA_SLOTS);
    let mut o = Ring::start(1);
    let ring = layout.o_ring;
    // SAFETY: O is read when it is there, and its place freed when it has been read.
    unsafe {
        loop {
            mbarrier::mbarrier_wait(layout.work_ring.full(slot.stage), slot.parity);
            let work = layout.read_work::<T>(slot.stage);
            if work.blocks == 0 {
                return;
            }
            if spec::lengths() {
                let listed = layout.read_listed(place(slot, 0));
                let own = ForwardMap::O.at(maps_of_sequence(p, listed.sequence));
                varlen::acquire_maps(&mut map, own, [own]);
            }
            mbarrier::mbarrier_arrive_if(layout.work_ring.empty(slot.stage), 1);
            slot.advance();
            if T::SPLITS_KV && spec::split_kv() {
                // The consumer writes its rows itself.
                continue;
            }
            let Pack {
                batch_idx,
                head_idx,
                ..
            } = packing.pack(p, work.head);
            for idx in 0..const { if T::TRANSPOSES { T::CONSUMERS } else { 1 } } {
                let consumer = first + idx;
                let tile = layout.o::<T>(consumer);
                let first_query = work.q_block * packing.queries(config.block_q)
                    + consumer * packing.queries(WARPGROUP_ROWS);
                mbarrier::mbarrier_wait(ring.full(consumer), o.parity);
                for part in 0..T::VALUE_DIM.div_ceil(BOX_COLUMNS) {
                    let at = [part * BOX_COLUMNS, first_query, head_idx, batch_idx];
                    tma::tma_store_if(map, at, tile.part(part).base, 1);
                }
                tma::bulk_commit_group();
                tma::bulk_wait_group_read::<0>();
                mbarrier::mbarrier_arrive_if(ring.empty(consumer), 1);
            }
            o.advance();
        }
    }
}

// A split's results: O and L of a tile's queries over some of its keys, which go to the workspace in f32.
//
// Where few rows are to be merged, the consumers merge them themselves when no tile is left, without another kernel. Each warp takes
// every so many-th row, and waits until the row's splits have been written. Who wrote them, or will, runs already: blocks of threads
// claim even their first tile by the tile counter.

/// Warps of a consumer, each of which writes some rows of a split.
const WARPS: u32 = 4;

/// Who arrives at a tile's counter: the writers of its splits, and those that have merged one of its rows.
#[derive(Clone, Copy)]
struct Arrivals {
    address: u64,
    /// Warps that write its splits.
    writers: u32,
    /// Rows that are merged.
    rows: u32,
}

impl Arrivals {
    /// Of a tile whose first row is this one of lse.
    #[inline(always)]
    fn new<T: Tiles>(p: &TmaForwardParams, first_row: u32, n_splits: u32, rows: u32) -> Arrivals {
        let writers = WARPS * T::CONSUMERS;
        Arrivals {
            address: p.split.arrivals + u64::from(first_row) * 4,
            writers: n_splits * writers,
            rows,
        }
    }

    /// Counts a warp; the last one to come leaves 0.
    #[inline(always)]
    unsafe fn count(self) {
        if special::lane_idx() == 0 {
            // SAFETY: the counter is there.
            unsafe { atomic::atom_inc_u32(self.address, self.writers + self.rows - 1) };
        }
    }

    /// Counts a warp that has written its rows of a split.
    ///
    /// # Safety
    /// All lanes come here.
    #[inline(always)]
    unsafe fn written(self) {
        // SAFETY: the caller's contract. One lane counts for all: what they have written comes before.
        unsafe {
            barrier::warp_sync();
            atomic::fence_acq_rel_gpu();
            self.count();
        }
    }

    /// Waits until all splits have been written.
    ///
    /// # Safety
    /// All lanes come here; who writes the splits runs.
    #[inline(always)]
    unsafe fn await_splits(self) {
        // SAFETY: the counter is there.
        unsafe {
            while atomic::ld_acquire_u32(self.address) < self.writers {}
            // When one of them counts, the counter may be 0 again.
            barrier::warp_sync();
        }
    }
}

impl Consumer<'_> {
    /// Whether the tile's sequence has one split, and no other tile anything to do with these rows.
    ///
    /// # Safety
    /// If sequences have different lengths, the place `listed` has the tile's.
    #[inline(always)]
    pub unsafe fn is_whole(&self, work: WorkTile, listed: u32) -> bool {
        let split = &self.p.split;
        // Without lengths there are several splits.
        if !spec::lengths() || split.whole_tiles == 0 {
            return false;
        }
        // SAFETY: the caller's contract.
        unsafe { self.sequence(work.head, listed) }.n_splits(split, self.split_keys) == 1
    }

    /// Writes the results of a tile whose keys are not divided: O from this column on, of the output's type, and L.
    ///
    /// # Safety
    /// As [`Consumer::store_split`].
    #[inline(always)]
    pub unsafe fn store_rows<E: Elements, T: Tiles>(
        &self,
        work: WorkTile,
        listed: u32,
        first_row: u32,
        first_column: u32,
        mut lse: RowValues,
        o: &mut T::Output,
    ) {
        let (p, packing) = (self.p, self.packing);
        let place_of = |row| (packing.head::<T>(work.head, row), packing.query::<T>(row));
        // SAFETY: the caller's contract: rows that the sequence does not have are not written.
        unsafe {
            if spec::sinks() {
                let sink = |row| value_of_head(p.sinks, p.shape.heads_q, place_of(row).0);
                lse = add_sinks(first_row, lse, o, sink);
            }
            let rows = self.sequence(work.head, listed).statistic(p.lse);
            if first_column == 0 {
                store_statistic::<T::Output>(rows, first_row, lse, place_of);
            }
            let first_chunk = first_column / 8;
            let chunks = (p.shape.head_dim_v / 8).saturating_sub(first_chunk);
            E::store_rows_to(chunks, o, |row, chunk| {
                let (head, query) = place_of(first_row + row);
                let (batch_idx, head_idx, first) = if spec::lengths() {
                    let tile = self.layout.read_listed(listed);
                    (p.list.batch_q(tile.sequence), head, tile.q_first)
                } else {
                    let (batch_idx, head_idx) = batch_and_head(head, p.shape.heads_q);
                    (batch_idx, head_idx, 0)
                };
                let o = GlobalRows::new(&p.o_rows, batch_idx, head_idx, 0);
                let address = o.chunk(first + query, first_chunk + chunk);
                (address, query < rows.seqlen_q)
            });
        }
    }

    /// Writes them, O from this column on. If sequences have different lengths, the place `listed` has the tile's.
    ///
    /// # Safety
    /// All lanes of the warp come here; `first_row` is its first row in the tile's sequence.
    #[inline(always)]
    pub unsafe fn store_split<T: Tiles>(
        &self,
        work: WorkTile,
        listed: u32,
        first_row: u32,
        first_column: u32,
        lse: RowValues,
        o: &T::Output,
    ) {
        let (p, packing) = (self.p, self.packing);
        let split_blocks = divide(self.split_keys, T::CONFIG.block_k);
        let before = u64::from(divide(work.first_block, split_blocks)) * p.split.rows;
        let lse_base = p.split.lse + before * 4;
        // SAFETY: the caller's contract: the workspace has every row of every split, and others are not written.
        unsafe {
            let sequence = self.sequence(work.head, listed);
            let rows = sequence.statistic(lse_base);
            let place_of = |row| (packing.head::<T>(work.head, row), packing.query::<T>(row));
            if !T::SHARES_ROWS || self.idx == 0 {
                store_statistic::<T::Output>(rows, first_row, lse, place_of);
            }
            let place = fragment::accumulator(special::lane_idx(), 0);
            for half in 0..2 {
                let (head, query) = place_of(first_row + half as u32 * 8 + place.row);
                let row = (rows.address(head, query) - p.split.lse) / 4;
                let row = row * u64::from(p.shape.head_dim_v);
                let column = first_column + place.col;
                let address = p.split.o + (row + u64::from(column)) * 4;
                for n in 0..T::Output::N {
                    let x = o.fragment(0, n);
                    let inside =
                        query < rows.seqlen_q && n as u32 * 8 + column < p.shape.head_dim_v;
                    let pair = [x[2 * half], x[2 * half + 1]].map(f32::to_bits);
                    global::st_global_x2_if(address + n as u64 * 32, pair, inside);
                }
            }
            if p.split.tiles_merge == 1 {
                let first_row = work.q_block * T::CONFIG.block_q;
                let (head, query) = place_of(first_row);
                let place = (rows.address(head, query) - lse_base) / 4;
                let of_tile = packing.rows_of_tile::<T>(query, rows.seqlen_q);
                let n_splits = sequence.n_splits(&p.split, self.split_keys);
                Arrivals::new::<T>(p, place as u32, n_splits, of_tile).written();
            }
        }
    }

    /// Merges the splits of the warp's share of all rows, where tiles do that.
    ///
    /// # Safety
    /// All warps of the consumer come here when no tile is left.
    #[inline(always)]
    pub unsafe fn merge_splits<E: Elements, T: Tiles>(&self) {
        let p = self.p;
        if p.split.tiles_merge == 0 {
            return;
        }
        let combine = CombineParams {
            o: p.o_rows,
            lse: p.lse,
            split: p.split,
            shape: p.shape,
            rows_q: if spec::lengths() {
                p.list.rows_q
            } else {
                p.shape.seqlen_q
            },
            lengths: p.lengths,
            list: p.list,
            sinks: p.sinks,
        };
        let step = special::grid_dim_x() * WARPS * T::CONSUMERS;
        // SAFETY: all lanes of a warp have the same rows; who writes their splits runs.
        unsafe {
            let warp = shuffle::shuffle_idx_u32(special::thread_idx_x() / 32 % WARPS, 0);
            let warp = if T::CONSUMERS == 1 {
                warp
            } else {
                self.idx * WARPS + warp
            };
            // Neighbouring rows are merged on different SMs.
            let mut idx = warp * special::grid_dim_x() + special::block_idx_x();
            while u64::from(idx) < p.split.rows {
                if let Some(row) = SplitQuery::new(&combine, idx) {
                    let query = row.row - row.sequence.first;
                    let (head, query) = self.packing.first_row::<T>(row.head, query);
                    let place = head * combine.rows_q + row.sequence.first + query;
                    let of_tile = self.packing.rows_of_tile::<T>(query, row.sequence.len);
                    let arrivals = Arrivals::new::<T>(p, place, row.n, of_tile);
                    arrivals.await_splits();
                    if T::HEAD_DIM <= 128 {
                        E::merge::<1, 16>(row, &combine);
                    } else if T::HEAD_DIM <= 256 {
                        E::merge::<2, 8>(row, &combine);
                    } else {
                        E::merge::<4, 4>(row, &combine);
                    }
                    arrivals.count();
                }
                idx += step;
            }
        }
    }
}

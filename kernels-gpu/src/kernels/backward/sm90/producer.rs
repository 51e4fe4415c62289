//! The producer: claims tiles of keys, loads K and V, and keeps the rings of Q and dO full; then claims rows of dQ to convert.

use super::layout::{Layout, first_key, k_peer_bytes, of_peer, parts_of_block, rank};
use super::scheduler::{Steps, Work, WorkTile, kv_head, query_heads};
use super::{Tiles, postprocess};
use crate::attention::batch_and_head;
use crate::attention::block_order::{self, BlockOrder};
use crate::attention::lengths::ListedTile;
use crate::attention::schedule::{self, BackwardTile};
use crate::config::{Division, TMA_BACKWARD_STAGES as STAGES};
use crate::kernels::backward::schedule_of;
use crate::kernels::varlen::{self, END};
use crate::kernels::{band, bounds, tile_work};
use crate::params::{BACKWARD_MAPS, BOX_COLUMNS, BackwardMap, BackwardParams, ORDERED, SHIFTED};
use crate::ptx::{atomic, cluster, mbarrier, shared, spec, special, tma};
use crate::tile::global::row_of_head;
use crate::tile::ring::Ring;
use crate::tile::warpgroup::BoxedTile;

/// The producer and its place in the rings of Q and dO.
struct Producer<'a> {
    p: &'a BackwardParams,
    /// The address of the first tensor map; where sequences have different lengths, of the sequence's.
    maps: u64,
    layout: Layout,
    /// Steps of all tiles so far.
    step: u32,
}

/// The whole of the producer's work.
///
/// # Safety
/// One thread of the block does it; the barriers have been made.
#[inline(always)]
pub(super) unsafe fn produce<T: Tiles>(p: &BackwardParams, maps: u64, layout: Layout) {
    let config = T::CONFIG;
    let band = band(&p.shape, p.window);
    let mut producer = Producer {
        p,
        maps,
        layout,
        step: 0,
    };
    let shifted = block_order::shifted_blocks(&p.schedule);
    let (mut n, mut claims) = (0, 0);
    // SAFETY: stages and slots are filled when they are empty; each tile is claimed once.
    unsafe {
        loop {
            // Claimed when the last tile's last copies have been begun, not before: tiles begin in the order of their numbers.
            let mut schedule = schedule_of(p);
            // Sequences with lengths of their own never have shifted tiles: the compiler should know it.
            if spec::lengths() {
                (schedule.order, schedule.stride) = (ORDERED, 1);
            }
            let tiles = schedule.tiles * schedule.heads;
            let among = special::block_idx_x() / const { T::SCHEDULE.cluster };
            let claimed = if schedule.order != SHIFTED {
                claim::<T>(p, layout, claims)
            } else if among < shifted {
                among + n * shifted
            } else {
                tiles
            };
            claims += 1;
            if claimed >= tiles {
                break;
            }
            let tile_work = if T::BLOCK_MASKS {
                tile_work(&p.blocks)
            } else {
                bounds().work()
            };
            let (tile, band, listed) = if spec::lengths() {
                let place = schedule::backward(&schedule, tile_work, claimed);
                let mut listed = varlen::listed(p.list.tiles, place.k_block);
                listed.new_maps = producer.begin_sequence(listed.sequence) as u32;
                let tile = BackwardTile {
                    k_block: listed.block,
                    ..place
                };
                let band = varlen::band_of_sequence(listed.seqlen_q, listed.seqlen_k, p.window);
                (tile, band, listed)
            } else if spec::head_splits() {
                let tile =
                    schedule::backward_head_splits(&schedule, tile_work, claimed, p.n_head_splits);
                (tile, band, ListedTile::default())
            } else {
                let tile = schedule::backward(&schedule, tile_work, claimed);
                (tile, band, ListedTile::default())
            };
            let blocks = block_order::q_blocks(&band, tile.k_block, config.block_q, config.block_k);
            // Keys that no query sees: the `clear` kernel has written their gradients.
            if !(T::BLOCK_MASKS && spec::block_mask()) && band.bounds().left && blocks.n() == 0 {
                if spec::lengths() {
                    // Nobody else hears of this tile: the maps are new to them still.
                    producer.maps = 0;
                }
                continue;
            }
            let group_size = query_heads(p, tile.head).n;
            let order = BlockOrder::begin(band, tile, blocks, &schedule, group_size);
            let steps = Steps::<T>::begin(p, tile, order);
            let work = WorkTile {
                tile,
                steps: steps.n(),
            };
            if T::BLOCK_MASKS && spec::block_mask() && work.steps == 0 {
                continue;
            }
            announce(layout, n, Work::key_tile(work), listed);
            producer.load_tile::<T>(n, work, steps);
            n += 1;
        }
        n = postprocess::hand_out::<T>(p, layout, n);
        announce(layout, n, Work::END, ListedTile::default());
    }
}

/// The number of the next tile. In a cluster the first block claims it, and tells the other; `nth` counts what they claim.
///
/// # Safety
/// The producer of each block of the cluster does it.
#[inline(always)]
unsafe fn claim<T: Tiles>(p: &BackwardParams, layout: Layout, nth: u32) -> u32 {
    let (at, ring) = (Ring::at(1, nth), layout.claim_ring);
    // SAFETY: the slot is empty when it is written, full when it is read.
    unsafe {
        if rank::<T>() > 0 {
            mbarrier::mbarrier_arrive_expect_tx(ring.full(0), 8);
            mbarrier::mbarrier_wait_cluster(ring.full(0), at.parity);
            let claimed = shared::ld_shared_u32(layout.claim);
            mbarrier::mbarrier_arrive_reuse_if(of_peer(ring.empty(0)), 1);
            return claimed;
        }
        let claimed = atomic::atom_add_u32(p.tile_counters, 1);
        if T::SCHEDULE.cluster > 1 {
            ring.await_empty(at);
            cluster::st_async_x2(of_peer(layout.claim), [claimed, 0], of_peer(ring.full(0)));
        }
        claimed
    }
}

/// Announces the `n`-th work to the others and, if sequences have different lengths, its sequence.
///
/// # Safety
/// The producer does it.
#[inline(always)]
pub(super) unsafe fn announce(layout: Layout, n: u32, work: Work, listed: ListedTile) {
    let slot = Ring::at(STAGES, n);
    // SAFETY: the slot is empty when it is written.
    unsafe {
        layout.work_ring.await_empty(slot);
        layout.write_work(slot.stage, work);
        if spec::lengths() {
            layout.write_listed(slot.stage, listed);
        }
        mbarrier::mbarrier_arrive_if(layout.work_ring.full(slot.stage), 1);
    }
}

/// The address of a tensor map of a sequence.
#[inline(always)]
pub(super) fn map_of_sequence(p: &BackwardParams, sequence: u32, map: BackwardMap) -> u64 {
    p.list
        .map_of_sequence(sequence, BACKWARD_MAPS as u32, map as u32)
}

impl Producer<'_> {
    /// Copies by the tensor maps of this sequence from now on; whether they are others than before.
    #[inline(always)]
    unsafe fn begin_sequence(&mut self, sequence: u32) -> bool {
        use BackwardMap::{DO, K, Q, V};
        let own = map_of_sequence(self.p, sequence, Q);
        let acquired = [Q, K, V, DO].map(|map| map.at(own));
        // SAFETY: the kernel that made the list has made the maps.
        unsafe { varlen::acquire_maps(&mut self.maps, own, acquired) }
    }

    /// The list's entry of the `n`-th work's sequence. Read again in each step, so that no register has to hold it.
    #[inline(always)]
    unsafe fn listed(&self, n: u32) -> ListedTile {
        // SAFETY: this thread has written it, and overwrites it when the work is done.
        unsafe { self.layout.read_listed(special::opaque(n) % STAGES) }
    }

    /// Where, from the beginning of lse and of Δ on, those of a head's queries from `first` on lie.
    #[inline(always)]
    unsafe fn statistics<T: Tiles>(
        &self,
        n: u32,
        batch_idx: u32,
        head_idx: u32,
        first: u32,
    ) -> u64 {
        let p = self.p;
        let (head, row) = if spec::lengths() {
            // SAFETY: as `listed`.
            let before = unsafe { self.listed(n) }.q_blocks_before;
            (head_idx, before * T::CONFIG.block_q + first)
        } else {
            (batch_idx * p.shape.heads_q + head_idx, first)
        };
        row_of_head(0, head, p.padded_q, row)
    }

    /// Writes which rows a stage is for; where sequences have different lengths, counted such that the sequence ends at [`END`].
    #[inline(always)]
    unsafe fn write_step(&self, n: u32, stage: u32, first_query: u32, first_key: u32) {
        // SAFETY: the stage is empty.
        unsafe {
            if spec::lengths() {
                let listed = self.listed(n);
                let (to_q, to_k) = (END - listed.seqlen_q, END - listed.seqlen_k);
                self.layout
                    .write_step(stage, first_query + to_q, first_key + to_k);
                if spec::prefix() {
                    self.layout
                        .write_mask_word(stage, self.p.window.prefix + to_k);
                }
            } else {
                self.layout.write_step(stage, first_query, first_key);
            }
        }
    }

    /// Where an expression edits scores, or weights are dropped: writes which head a stage is for.
    #[inline(always)]
    unsafe fn write_head<T: Tiles>(&self, n: u32, stage: u32, batch_idx: u32, head_idx: u32) {
        if !(T::EDITS_SCORES && spec::score() || T::DROPS && spec::dropout()) {
            return;
        }
        // SAFETY: the stage is empty; the tile is listed.
        unsafe {
            let sequence = if spec::lengths() {
                self.listed(n).sequence
            } else {
                batch_idx
            };
            let head = sequence * self.p.shape.heads_q + head_idx;
            self.layout.write_head(stage, head);
        }
    }

    /// K or V of the `n`-th tile, of this many columns; with K in a cluster, that of the peer's keys.
    #[inline(always)]
    unsafe fn load_once<T: Tiles>(
        &self,
        map: BackwardMap,
        tile: BoxedTile,
        columns: u32,
        at: [u32; 4],
        n: u32,
    ) {
        let ring = match map {
            BackwardMap::K => self.layout.k_ring,
            _ => self.layout.v_ring,
        };
        // SAFETY: the caller's contract; the tile is empty when it is filled.
        unsafe {
            ring.await_empty(Ring::at(1, n));
            let full = ring.full(0);
            let with_peer = T::SCHEDULE.cluster > 1 && matches!(map, BackwardMap::K);
            let of_peer = if with_peer { k_peer_bytes::<T>() } else { 0 };
            let n_bytes = BoxedTile::n_bytes(tile.rows, 2 * columns);
            mbarrier::mbarrier_arrive_expect_tx(full, n_bytes + of_peer);
            load_boxes(map.at(self.maps), tile, columns, at, full);
            if with_peer {
                let (rank, parts) = (rank::<T>(), const { parts_of_block::<T>() });
                let keys = const { T::SCHEDULE.keys_of_block() };
                let first = at[1] + keys - 2 * keys * rank;
                for part in 0..parts {
                    let at = [(parts * rank + part) * BOX_COLUMNS, first, at[2], at[3]];
                    let to = self.layout.k_peer::<T>().part(part).base;
                    tma::tma_load(to, map.at(self.maps), at, full);
                }
            }
        }
    }

    /// K and V of the `n`-th tile, and Q and dO of each of its steps.
    #[inline(always)]
    unsafe fn load_tile<T: Tiles>(&mut self, n: u32, work: WorkTile, mut steps: Steps<T>) {
        let config = T::CONFIG;
        let (p, layout) = (self.p, self.layout);
        let (batch_idx, kv_head_idx) = batch_and_head(work.tile.head, p.shape.heads_k);
        let first_head = query_heads(p, kv_head_idx).first;
        let keys = [
            0,
            first_key::<T>(work.tile),
            kv_head(p, kv_head_idx),
            batch_idx,
        ];
        let q_bytes = const { BoxedTile::n_bytes(T::CONFIG.block_q, 2 * T::HEAD_DIM) };
        let d_o_bytes = const { BoxedTile::n_bytes(T::CONFIG.block_q, 2 * T::VALUE_DIM) };
        // Of lse, and of Δ.
        let n_bytes = const { T::CONFIG.block_q * 4 };
        let mut left = work.steps;
        // SAFETY: as `load`.
        unsafe {
            while left > 0 {
                let at = Ring::at(STAGES, self.step);
                let head_idx = first_head + steps.head();
                let first = steps.block() * config.block_q;
                let statistics = self.statistics::<T>(n, batch_idx, head_idx, first);
                let queries = [0, first, head_idx, batch_idx];

                let is_first = left == work.steps;
                let load_keys = || {
                    if is_first {
                        self.load_once::<T>(BackwardMap::K, layout.k::<T>(), T::HEAD_DIM, keys, n);
                    }
                };
                let load_values = || {
                    if is_first {
                        self.load_once::<T>(BackwardMap::V, layout.v::<T>(), T::VALUE_DIM, keys, n);
                    }
                };
                let load_q = || {
                    layout.q_ring.await_empty(at);
                    self.write_step(n, at.stage, first, keys[1]);
                    self.write_head::<T>(n, at.stage, batch_idx, head_idx);
                    steps.write_is_full(layout, at.stage);
                    let full = layout.q_ring.full(at.stage);
                    mbarrier::mbarrier_arrive_expect_tx(full, q_bytes + 2 * n_bytes);
                    load_boxes(
                        BackwardMap::Q.at(self.maps),
                        layout.q::<T>(at.stage),
                        T::HEAD_DIM,
                        queries,
                        full,
                    );
                    let (lse, delta) = (layout.lse::<T>(at.stage), layout.delta::<T>(at.stage));
                    tma::bulk_load(lse, p.lse_log2 + statistics, n_bytes, full);
                    tma::bulk_load(delta, p.delta + statistics, n_bytes, full);
                };
                let load_d_o = || {
                    let at = Ring::at(T::SCHEDULE.d_o_stages, self.step);
                    layout.d_o_ring.await_empty(at);
                    let full = layout.d_o_ring.full(at.stage);
                    mbarrier::mbarrier_arrive_expect_tx(full, d_o_bytes);
                    load_boxes(
                        BackwardMap::DO.at(self.maps),
                        layout.d_o::<T>(at.stage),
                        T::VALUE_DIM,
                        queries,
                        full,
                    );
                };
                // In the order in which places become free. In wide tiles it is faster to ask first for what is wanted first.
                match (T::SCHEDULE.division, T::SCHEDULE.queries_down) {
                    (Division::Products, _) => {
                        load_d_o();
                        load_q();
                        load_keys();
                        load_values();
                    }
                    (Division::Columns, _) => {
                        load_q();
                        load_d_o();
                        load_values();
                        load_keys();
                    }
                    (Division::Keys, true) => {
                        load_keys();
                        load_q();
                        load_values();
                        load_d_o();
                    }
                    (Division::Keys, false) => {
                        load_values();
                        load_d_o();
                        load_q();
                        load_keys();
                    }
                }

                steps.advance();
                self.step += 1;
                left -= 1;
            }
        }
    }
}

/// Begins the copies of a tile's boxes.
#[inline(always)]
unsafe fn load_boxes(map: u64, tile: BoxedTile, columns: u32, at: [u32; 4], full: u32) {
    for part in 0..columns.div_ceil(BOX_COLUMNS) {
        let at = [part * BOX_COLUMNS, at[1], at[2], at[3]];
        // SAFETY: the caller's contract.
        unsafe { tma::tma_load(tile.part(part).base, map, at, full) };
    }
}

//! The producer: claims tiles of queries, and keeps the rings of Q, K and V full.

use super::Tiles;
use super::layout::{Keys, Layout, WorkTile};
use super::paged_producer::{Found, SequencePages, two_load};
use super::scheduler::{Claims, Pack, PackGqa, announce, list_of, sequence_of, split_of};
use crate::attention::lengths::ListedTile;
use crate::attention::mask::Rows;
use crate::attention::split_kv::blocks_of_split;
use crate::attention::{batch_and_head, divide};
use crate::config::TMA_SLOTS;
use crate::kernels::block_sparse::list::List;
use crate::kernels::{bounds, query_tile_work, varlen};
use crate::params::{BOX_BYTES, FORWARD_MAPS, ForwardMap, MAX_ROWS, TmaForwardParams};
use crate::ptx::{mbarrier, spec, tensor_map, tma};
use crate::tile::ring::{Barriers, Ring};
use crate::tile::warpgroup::{BoxedTile, WARPGROUP_ROWS};

/// A row beyond every sequence's end: its box is all zeros, and no memory is read.
pub const NO_ROW: u32 = MAX_ROWS;

/// The producer's places in its rings.
pub struct Producer<'a> {
    pub p: &'a TmaForwardParams,
    /// The address of the first tensor map; where sequences have different lengths, of the sequence's.
    pub maps: u64,
    pub layout: Layout,
    /// Where keys and values lie in pages: the sequence's.
    pub pages: SequencePages,
    pub q: Ring,
    pub k: Ring,
    pub v: Ring,
}

/// The whole of the producer's work.
///
/// # Safety
/// One thread of the block does it; the barriers have been made.
#[inline(always)]
pub unsafe fn produce<T: Tiles>(p: &TmaForwardParams, maps: u64, layout: Layout) {
    let config = T::CONFIG;
    let bounds = bounds();
    // SAFETY: where sequences have lengths of their own, their list has been made.
    let schedule = unsafe { p.list.schedule(&p.schedule) };
    let tiles = schedule.tiles * schedule.heads;
    let mut slot = Ring::start(TMA_SLOTS);
    let mut producer = Producer::new::<T>(p, maps, layout);
    let split_keys = if T::SPLITS_KV && spec::split_kv() {
        // SAFETY: as above.
        unsafe { varlen::split_keys(&p.split, &p.list) }
    } else {
        0
    };
    let block_q = PackGqa::new::<T>(p).queries(config.block_q);
    let claims = Claims::new::<T>(p, tiles);
    // They arrive while the first tile is claimed.
    prefetch(maps, claims.claims_first() && !spec::lengths());
    // SAFETY: the counter is there.
    let mut tile_idx = unsafe { claims.first() };
    // SAFETY: stages and slots are filled when they are empty; each tile is claimed once.
    unsafe {
        while tile_idx < tiles {
            let work = if T::BLOCK_MASKS {
                query_tile_work(&p.blocks)
            } else {
                bounds.work()
            };
            let (tile, listed) = p.list.forward_tile(&schedule, work, tile_idx);
            if spec::lengths() {
                producer.begin_sequence(listed.sequence);
                if spec::pages() {
                    producer.pages = SequencePages::new(p, maps, listed);
                }
            }
            let sequence = sequence_of(p, tile.head, || listed);
            let band = sequence.band();
            let (tile, split) = split_of::<T>(p, split_keys, tile, &sequence);
            let first = tile.q_block * block_q;
            let queries = Rows::of_sequence(first, block_q, band.seqlen_q());
            let (first_block, n_blocks) = if T::BLOCK_MASKS && spec::block_mask() {
                (0, list_of(p, tile).len())
            } else {
                let blocks = band.kv_blocks(queries, config.block_k);
                if T::SPLITS_KV && spec::split_kv() {
                    blocks_of_split(&blocks, split, divide(split_keys, config.block_k))
                } else {
                    (blocks.first, blocks.n())
                }
            };
            let work = WorkTile {
                q_block: tile.q_block,
                head: tile.head,
                first_block,
                // One block of zeros, wholly masked, where no query of the tile sees a key.
                blocks: if n_blocks == 0 { 1 } else { n_blocks },
            };
            // Told to who loads V.
            let new_maps = (n_blocks == 0).into();
            announce(layout, slot, work, ListedTile { new_maps, ..listed });
            slot.advance();
            if !claims.claims_late() {
                tile_idx = claims.next();
            }
            if T::BLOCK_MASKS && spec::block_mask() {
                producer.load_block_sparse::<T>(work, list_of(p, tile), n_blocks == 0);
            } else {
                let next = T::load_tile(&mut producer, work, n_blocks == 0, claims);
                if claims.claims_late() {
                    tile_idx = next;
                }
            }
        }
        let none = WorkTile {
            q_block: 0,
            head: 0,
            first_block: 0,
            blocks: 0,
        };
        announce(layout, slot, none, ListedTile::default());
    }
}

/// Begins to fetch the launch's tensor maps, if they are wanted.
#[inline(always)]
fn prefetch(maps: u64, wanted: bool) {
    if !wanted {
        return;
    }
    for map in [ForwardMap::Q, ForwardMap::K, ForwardMap::V] {
        // SAFETY: the maps are there.
        unsafe { tensor_map::prefetch(map.at(maps)) };
    }
}

impl<'a> Producer<'a> {
    /// At the beginning of its rings.
    #[inline(always)]
    pub fn new<T: Tiles>(p: &'a TmaForwardParams, maps: u64, layout: Layout) -> Producer<'a> {
        Producer {
            p,
            maps,
            layout,
            pages: SequencePages::default(),
            q: Ring::start(T::Q_STAGES),
            k: Ring::start(T::KV_STAGES),
            v: Ring::start(if T::TRANSPOSES {
                T::RAW_V_STAGES
            } else {
                T::KV_STAGES
            }),
        }
    }

    /// Copies by the tensor maps of this sequence from now on.
    #[inline(always)]
    unsafe fn begin_sequence(&mut self, sequence: u32) {
        let own = maps_of_sequence(self.p, sequence);
        let acquired = [ForwardMap::Q, ForwardMap::K, ForwardMap::V].map(|map| map.at(own));
        // SAFETY: the kernel that made the list has made the maps.
        unsafe { varlen::acquire_maps(&mut self.maps, own, acquired) };
    }

    /// Q, and K and V from the last block down; K one block ahead of V, as consumers take them. Another thread may load V. The next tile,
    /// where it is claimed late: when this one's last block comes.
    ///
    /// # Safety
    /// As [`produce`].
    #[inline(always)]
    pub unsafe fn load_tile<T: Tiles>(
        &mut self,
        work: WorkTile,
        sees_none: bool,
        claims: Claims,
    ) -> u32 {
        let config = T::CONFIG;
        let packing = PackGqa::new::<T>(self.p);
        let Pack {
            batch_idx,
            head_idx,
            kv_head_idx,
        } = packing.pack(self.p, work.head);
        let row_of = |block: u32| {
            if sees_none {
                NO_ROW
            } else {
                (work.first_block + block) * config.block_k
            }
        };
        // SAFETY: as `load`.
        unsafe {
            let mut block = work.blocks - 1;
            let mut next = 0;
            if claims.claims_late() && block == 0 {
                next = claims.next();
            }
            self.load_k::<T>(row_of(block), kv_head_idx, batch_idx);
            let first_query = work.q_block * packing.queries(config.block_q);
            self.load_q::<T>(first_query, head_idx, batch_idx);
            while block > 0 {
                if claims.claims_late() && block == 1 {
                    next = claims.next();
                }
                self.load_k::<T>(row_of(block - 1), kv_head_idx, batch_idx);
                if !two_load::<T>() {
                    self.load_v::<T>(row_of(block), kv_head_idx, batch_idx);
                }
                block -= 1;
            }
            if !two_load::<T>() {
                self.load_v::<T>(row_of(0), kv_head_idx, batch_idx);
            }
            next
        }
    }

    /// The same under a block mask, as the list has them; consumers are told which keys a stage is for.
    #[inline(always)]
    unsafe fn load_block_sparse<T: Tiles>(&mut self, work: WorkTile, list: List, sees_none: bool) {
        let config = T::CONFIG;
        let (batch_idx, head_idx) = batch_and_head(work.head, self.p.shape.heads_q);
        let kv_head_idx = divide(head_idx, self.p.shape.group_size);
        let keys_of = |idx: u32| {
            if sees_none {
                return Keys {
                    first: NO_ROW,
                    is_full: false,
                };
            }
            // SAFETY: the list has been made, and has the block.
            let listed = unsafe { list.block(idx) };
            Keys {
                first: listed.block * config.block_k,
                is_full: listed.is_full,
            }
        };
        // SAFETY: as `load`.
        unsafe {
            let mut block = work.blocks - 1;
            let mut keys = keys_of(block);
            self.load_sparse_k::<T>(keys, kv_head_idx, batch_idx);
            self.load_q::<T>(work.q_block * config.block_q, head_idx, batch_idx);
            while block > 0 {
                let next = keys_of(block - 1);
                self.load_sparse_k::<T>(next, kv_head_idx, batch_idx);
                self.load_v::<T>(keys.first, kv_head_idx, batch_idx);
                keys = next;
                block -= 1;
            }
            self.load_v::<T>(keys.first, kv_head_idx, batch_idx);
        }
    }

    #[inline(always)]
    unsafe fn load_sparse_k<T: Tiles>(&mut self, keys: Keys, head_idx: u32, batch_idx: u32) {
        let ring = self.layout.k_ring;
        // SAFETY: as `load`; what `load_k` waits for again has come.
        unsafe {
            mbarrier::mbarrier_wait(ring.empty(self.k.stage), self.k.parity ^ 1);
            self.layout.write_keys(self.k.stage, keys);
            self.load_k::<T>(keys.first, head_idx, batch_idx);
        }
    }

    #[inline(always)]
    pub unsafe fn load_q<T: Tiles>(&mut self, first_query: u32, head_idx: u32, batch_idx: u32) {
        let config = T::CONFIG;
        let box_queries = PackGqa::new::<T>(self.p).queries(WARPGROUP_ROWS);
        let (full, empty) = (
            self.layout.q_ring.full(self.q.stage),
            self.layout.q_ring.empty(self.q.stage),
        );
        // SAFETY: as `load`.
        unsafe {
            mbarrier::mbarrier_wait(empty, self.q.parity ^ 1);
            mbarrier::mbarrier_arrive_expect_tx(
                full,
                BoxedTile::n_bytes(config.block_q, T::HEAD_BYTES),
            );
            for consumer in 0..T::ROW_GROUPS {
                let tile = self.layout.q::<T>(self.q.stage, consumer);
                let at = [0, first_query + consumer * box_queries, head_idx, batch_idx];
                load_boxes::<T, false>(
                    ForwardMap::Q.at(self.maps),
                    tile,
                    Parts::all(T::HEAD_BYTES),
                    at,
                    full,
                );
            }
        }
        self.q.advance();
    }

    #[inline(always)]
    unsafe fn load_k<T: Tiles>(&mut self, first_row: u32, head_idx: u32, batch_idx: u32) {
        let tile = self.layout.k::<T>(self.k.stage);
        let (map, barriers) = (ForwardMap::K, self.layout.k_ring);
        let at = [0, first_row, head_idx, batch_idx];
        // SAFETY: as `load`.
        unsafe {
            let found = self.pages.look_up(self.p, first_row);
            let all = Parts::all(T::HEAD_BYTES);
            self.load_keys::<T>(map, barriers, self.k, (tile, all), at, found);
        }
        self.k.advance();
    }

    #[inline(always)]
    pub unsafe fn load_v<T: Tiles>(&mut self, first_row: u32, head_idx: u32, batch_idx: u32) {
        let tile = self.layout.loaded_v::<T>(self.v.stage);
        let (map, barriers) = (ForwardMap::V, self.layout.loaded_v_ring::<T>());
        let at = [0, first_row, head_idx, batch_idx];
        // SAFETY: as `load`.
        unsafe {
            let found = self.pages.look_up(self.p, first_row);
            let all = Parts::all(T::VALUE_BYTES);
            self.load_keys::<T>(map, barriers, self.v, (tile, all), at, found);
        }
        self.v.advance();
    }

    /// These parts of a block of K or of V into its tile, once they are empty; where they lie in pages, from what was found on.
    #[inline(always)]
    pub unsafe fn load_keys<T: Tiles>(
        &self,
        map: ForwardMap,
        barriers: Barriers,
        ring: Ring,
        (tile, parts): (BoxedTile, Parts),
        at: [u32; 4],
        found: Found,
    ) {
        let [_, _, head_idx, _] = at;
        // SAFETY: as `load`.
        unsafe {
            mbarrier::mbarrier_wait(barriers.empty(ring.stage), ring.parity ^ 1);
            let full = barriers.full(ring.stage);
            if spec::pages() {
                let maps = [map.at(self.maps), map.at(self.pages.pool)];
                self.pages
                    .fill::<T>(self.p, maps, (tile, parts), head_idx, found, full);
            } else {
                fill::<T>(map.at(self.maps), tile, parts, at, full);
            }
        }
    }
}

/// The address of the first tensor map of a sequence.
#[inline(always)]
pub fn maps_of_sequence(p: &TmaForwardParams, sequence: u32) -> u64 {
    p.list
        .map_of_sequence(sequence, FORWARD_MAPS as u32, ForwardMap::Q as u32)
}

// Copies of tiles, box by box.

/// Parts of 128 bytes of a tile's rows: from which one on, and how many.
#[derive(Clone, Copy)]
pub struct Parts {
    pub first: u32,
    pub n: u32,
}

impl Parts {
    /// All of a tile of rows of so many bytes.
    #[inline(always)]
    pub const fn all(row_bytes: u32) -> Parts {
        Parts {
            first: 0,
            n: row_bytes.div_ceil(BOX_BYTES),
        }
    }

    /// Bytes of these parts of a tile of this many rows.
    #[inline(always)]
    pub const fn n_bytes(self, rows: u32) -> u32 {
        BoxedTile::n_bytes(rows, self.n * BOX_BYTES)
    }
}

/// Fills these parts of a tile, the only ones of their barrier.
#[inline(always)]
pub unsafe fn fill<T: Tiles>(map: u64, tile: BoxedTile, parts: Parts, at: [u32; 4], full: u32) {
    // SAFETY: the caller's contract: they are empty.
    unsafe {
        mbarrier::mbarrier_arrive_expect_tx(full, parts.n_bytes(tile.rows));
        load_keys::<T>(map, tile, parts, at, full);
    }
}

/// Begins the copies of the boxes of K or V. Divided keys are read by few, at the same time.
#[inline(always)]
pub unsafe fn load_keys<T: Tiles>(
    map: u64,
    tile: BoxedTile,
    parts: Parts,
    at: [u32; 4],
    full: u32,
) {
    // SAFETY: the caller's contract.
    unsafe {
        if T::SPLITS_KV && T::KEY_PIECES == 1 && spec::split_kv() {
            load_boxes::<T, true>(map, tile, parts, at, full);
        } else {
            load_boxes::<T, false>(map, tile, parts, at, full);
        }
    }
}

/// Begins the copies of a tile's boxes, which no other block may need.
#[inline(always)]
unsafe fn load_boxes<T: Tiles, const EVICT_FIRST: bool>(
    map: u64,
    tile: BoxedTile,
    parts: Parts,
    at: [u32; 4],
    full: u32,
) {
    for part in 0..parts.n {
        let part = parts.first + part;
        let at = [part * T::BOX_COLUMNS, at[1], at[2], at[3]];
        let to = tile.part(part).base;
        // SAFETY: the caller's contract.
        unsafe {
            if EVICT_FIRST {
                tma::tma_load_evict_first(to, map, at, full);
            } else {
                tma::tma_load(to, map, at, full);
            }
        }
    }
}

//! Where things lie in shared memory, and the barriers by which the roles meet.

use super::Tiles;
use super::paged_producer::two_load;
use crate::attention::lengths::ListedTile;
use crate::config::{TMA_LENGTHS, TMA_SLOTS};
use crate::kernels::bounds;
use crate::kernels::varlen::{read_listed_shared, write_listed_shared};
use crate::ptx::{shared, spec, special};
use crate::tile::ring::{Barriers, Ring};
use crate::tile::warpgroup::{BoxedTile, WARPGROUP_ROWS};

/// Warps of a warpgroup.
const WARPS: u32 = 4;

/// A tile of queries, as the producer tells the others of it.
#[derive(Clone, Copy)]
pub struct WorkTile {
    /// Which tile of queries.
    pub q_block: u32,
    /// Which (batch, head), `batch_idx · heads_q + head_idx`; where heads share a tile, which group of them.
    pub head: u32,
    /// The first KV block that the tile meets.
    pub first_block: u32,
    /// How many KV blocks; at least 1, and 0 where there is no tile left.
    pub blocks: u32,
}

/// The keys of a stage of K, under a block mask.
#[derive(Clone, Copy)]
pub struct Keys {
    /// The first one.
    pub first: u32,
    /// Whether all queries see all of them, whatever the band says.
    pub is_full: bool,
}

impl Keys {
    /// Where there is no block mask.
    pub const NONE: Keys = Keys {
        first: 0,
        is_full: false,
    };

    /// As a stage's place holds them.
    #[inline(always)]
    const fn words(self) -> [u32; 2] {
        [self.first, self.is_full as u32]
    }

    /// From a stage's place.
    #[inline(always)]
    const fn from_words([first, is_full]: [u32; 2]) -> Keys {
        Keys {
            first,
            is_full: is_full == 1,
        }
    }
}

/// The places.
#[derive(Clone, Copy)]
pub struct Layout {
    q: u32,
    k: u32,
    v: u32,
    /// V as it comes, where warps transpose it.
    raw_v: u32,
    /// O; if values are columns of the keys, the consumers' exchange.
    pub o: u32,
    slots: u32,
    listed: u32,
    /// Stages of Q; emptied by the consumers' warps.
    pub q_ring: Barriers,
    /// Stages of K; emptied by the consumers' warps. Where values are columns of the keys, of the columns that are no values.
    pub k_ring: Barriers,
    /// Stages of V; emptied by the consumers' warps. Where warps transpose V, filled by these.
    pub v_ring: Barriers,
    /// Stages of V as it comes, emptied by those warps.
    pub raw_v_ring: Barriers,
    /// Slots for work tiles; emptied by every lane of the consumers, by the store warps, and by the thread that loads V and the warps that transpose it, if
    /// there are any.
    pub work_ring: Barriers,
    /// O on its way out, for each consumer one stage; filled by its warps, emptied by its store warp.
    pub o_ring: Barriers,
    /// Where values are columns of the keys: of the first consumer's columns, stages as those of K; emptied by its warps. Behind them the
    /// second's.
    value_rings: Barriers,
}

impl Layout {
    /// The places of this block of threads.
    #[inline(always)]
    pub fn new<T: Tiles>() -> Self {
        let config = T::CONFIG;
        let q = special::shared_base();
        let k = q + T::Q_STAGES * BoxedTile::n_bytes(config.block_q, T::HEAD_BYTES);
        let v = k + T::KV_STAGES * BoxedTile::n_bytes(config.block_k, T::HEAD_BYTES);
        let raw_v = v + T::V_BYTES;
        let o = raw_v + T::RAW_V_STAGES * BoxedTile::n_bytes(config.block_k, T::VALUE_BYTES);
        let slots = o + T::O_BYTES;
        let listed = slots + TMA_SLOTS * 16;
        const { assert!(T::KV_STAGES * 8 <= TMA_LENGTHS * ListedTile::N_BYTES) };
        let q_ring = Barriers::new(listed + TMA_LENGTHS * ListedTile::N_BYTES, T::Q_STAGES);
        let k_ring = Barriers::new(q_ring.end(), T::KV_STAGES);
        let v_ring = Barriers::new(k_ring.end(), T::KV_STAGES);
        let raw_v_ring = Barriers::new(v_ring.end(), T::RAW_V_STAGES);
        let work_ring = Barriers::new(raw_v_ring.end(), TMA_SLOTS);
        let o_ring = Barriers::new(work_ring.end(), T::CONSUMERS);
        let value_stages = if T::KEY_PIECES == 1 { 0 } else { T::KV_STAGES };
        Layout {
            q,
            k,
            v,
            raw_v,
            o,
            slots,
            listed,
            q_ring,
            k_ring,
            v_ring,
            raw_v_ring,
            work_ring,
            o_ring,
            value_rings: Barriers::new(o_ring.end(), value_stages),
        }
    }

    /// Makes all barriers.
    ///
    /// # Safety
    /// One thread does, before all others meet it.
    #[inline(always)]
    pub unsafe fn make_barriers<T: Tiles>(self) {
        let consumers = T::CONSUMERS;
        let store_warps = match const { (T::STORES, T::TRANSPOSES) } {
            (true, false) => consumers,
            // One stores for all, where O has 16 bits.
            (true, true) => !spec::o_f32() as u32,
            (false, _) => 0,
        };
        let warps = consumers * WARPS;
        let loaders = if two_load::<T>() { 1 } else { 0 };
        // SAFETY: the caller's contract.
        unsafe {
            self.q_ring.make(1, warps);
            self.k_ring
                .make(1, if T::KEY_PIECES == 1 { warps } else { 4 });
            self.v_ring
                .make(if T::TRANSPOSES { T::TRANSPOSERS } else { 1 }, warps);
            self.raw_v_ring.make(1, T::TRANSPOSERS);
            self.work_ring
                .make(1, warps * 32 + store_warps + loaders + T::TRANSPOSERS);
            self.o_ring.make(4, 1);
            for consumer in 0..2 {
                self.value_ring(consumer).make(1, 4);
            }
        }
    }

    /// Where values are columns of the keys: the stages of a consumer's columns.
    #[inline(always)]
    pub const fn value_ring(self, consumer: u32) -> Barriers {
        self.value_rings.behind(consumer)
    }

    /// A consumer's rows of Q in a stage.
    #[inline(always)]
    pub const fn q<T: Tiles>(self, stage: u32, consumer: u32) -> BoxedTile {
        let bytes = BoxedTile::n_bytes(WARPGROUP_ROWS, T::HEAD_BYTES);
        BoxedTile {
            base: self.q + (stage * T::ROW_GROUPS + consumer) * bytes,
            rows: WARPGROUP_ROWS,
        }
    }

    /// A stage of K.
    #[inline(always)]
    pub const fn k<T: Tiles>(self, stage: u32) -> BoxedTile {
        Layout::rows(self.k, stage, T::CONFIG.block_k, T::HEAD_BYTES)
    }

    /// A stage of V as consumers take it: in 8 bits its transpose, a row for each column.
    #[inline(always)]
    pub const fn v<T: Tiles>(self, stage: u32) -> BoxedTile {
        let block_k = T::CONFIG.block_k;
        if T::TRANSPOSES {
            Layout::rows(self.v, stage, T::VALUE_DIM, block_k * T::ELEMENT_BYTES)
        } else {
            Layout::rows(self.v, stage, block_k, T::VALUE_BYTES)
        }
    }

    /// A stage of V as it comes from memory.
    #[inline(always)]
    pub const fn loaded_v<T: Tiles>(self, stage: u32) -> BoxedTile {
        if T::TRANSPOSES {
            Layout::rows(self.raw_v, stage, T::CONFIG.block_k, T::VALUE_BYTES)
        } else {
            self.v::<T>(stage)
        }
    }

    /// Its barriers.
    #[inline(always)]
    pub const fn loaded_v_ring<T: Tiles>(self) -> Barriers {
        if T::TRANSPOSES {
            self.raw_v_ring
        } else {
            self.v_ring
        }
    }

    const fn rows(base: u32, stage: u32, rows: u32, row_bytes: u32) -> BoxedTile {
        BoxedTile {
            base: base + stage * BoxedTile::n_bytes(rows, row_bytes),
            rows,
        }
    }

    /// A consumer's rows of O.
    #[inline(always)]
    pub const fn o<T: Tiles>(self, consumer: u32) -> BoxedTile {
        BoxedTile {
            base: self.o + consumer * BoxedTile::n_bytes(WARPGROUP_ROWS, 2 * T::VALUE_DIM),
            rows: WARPGROUP_ROWS,
        }
    }

    /// Writes a work tile to a slot.
    ///
    /// # Safety
    /// The slot is empty.
    #[inline(always)]
    pub unsafe fn write_work(self, slot: u32, work: WorkTile) {
        // SAFETY: the caller's contract.
        unsafe {
            shared::st_shared_x4(
                self.slots + slot * 16,
                [work.q_block, work.head, work.first_block, work.blocks],
            )
        };
    }

    /// The address of a place for the list's entry of a tile.
    #[inline(always)]
    const fn listed(self, place: u32) -> u32 {
        self.listed + place * ListedTile::N_BYTES
    }

    /// Writes the list's entry of a tile to a place.
    ///
    /// # Safety
    /// Nothing reads the place any more: see [`place`].
    #[inline(always)]
    pub unsafe fn write_listed(self, place: u32, tile: ListedTile) {
        // SAFETY: the caller's contract.
        unsafe { write_listed_shared(self.listed(place), tile) };
    }

    /// Reads the list's entry of a tile.
    ///
    /// # Safety
    /// The tile's slot has been full, and the place is still the tile's: see [`place`].
    #[inline(always)]
    pub unsafe fn read_listed(self, place: u32) -> ListedTile {
        // SAFETY: the caller's contract.
        unsafe { read_listed_shared(self.listed(place)) }
    }

    /// Writes which keys a stage of K is for. Under a block mask alone, which has no use for the places of the list's entries.
    ///
    /// # Safety
    /// The stage is empty.
    #[inline(always)]
    pub unsafe fn write_keys(self, stage: u32, keys: Keys) {
        // SAFETY: the caller's contract.
        unsafe { shared::st_shared_x2(self.listed + stage * 8, keys.words()) };
    }

    /// Reads which keys a stage of K is for.
    ///
    /// # Safety
    /// The stage is full.
    #[inline(always)]
    pub unsafe fn read_keys(self, stage: u32) -> Keys {
        // SAFETY: the caller's contract.
        Keys::from_words(unsafe { shared::ld_shared_x2(self.listed + stage * 8) })
    }

    /// Reads the work tile in a slot.
    ///
    /// # Safety
    /// The slot is full.
    #[inline(always)]
    pub unsafe fn read_work<T: Tiles>(self, slot: u32) -> WorkTile {
        // SAFETY: the caller's contract.
        let [q_block, head, first_block, blocks] =
            unsafe { shared::ld_shared_x4(self.slots + slot * 16) };
        WorkTile {
            q_block,
            head,
            // Known to be 0 where it is, so that no register holds it.
            first_block: if bounds().left || T::SPLITS_KV && spec::split_kv() {
                first_block
            } else {
                0
            },
            blocks,
        }
    }
}

/// The place of a tile's lengths: of the tile whose slot comes `back` slots before `slot`.
///
/// There are twice as many places as slots. Consumers release a tile's slot when they have stored the tile two before it; the
/// producer then writes to the place of that tile at the earliest.
#[inline(always)]
pub fn place(slot: Ring, back: u32) -> u32 {
    (slot.parity * TMA_SLOTS + slot.stage).wrapping_sub(back) % TMA_LENGTHS
}

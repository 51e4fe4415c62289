//! Where things lie in shared memory, and the barriers by which the roles meet.

use super::Tiles;
use super::dq_accumulate::piece_bytes;
use super::scheduler::Work;
use crate::attention::lengths::ListedTile;
use crate::attention::schedule::BackwardTile;
use crate::config::{Division, TMA_BACKWARD_STAGES as STAGES};
use crate::kernels::varlen::{read_listed_shared, write_listed_shared};
use crate::params::BOX_COLUMNS;
use crate::ptx::{cluster, mbarrier, shared, shuffle, special};
use crate::tile::ring::Barriers;
use crate::tile::warpgroup::{BoxedTile, WARPGROUP_ROWS};

/// Warpgroups that multiply.
pub(super) const CONSUMERS: u32 = 2;
/// Their warps.
const WARPS: u32 = CONSUMERS * 4;
/// Their threads: what these read or write with ordinary instructions, each releases for itself.
const ALL_THREADS: u32 = WARPS * 32;
/// Bytes of a slot.
pub(super) const SLOT: u32 = 16;

/// Rows of dQ that the consumers convert at once: 16 for each warp; a block, where they had it transposed.
pub(super) const fn converted_rows<T: Tiles>() -> u32 {
    if T::SCHEDULE.queries_down {
        T::CONFIG.block_q
    } else {
        WARPS * 16
    }
}

/// Keys of a tile of which a consumer multiplies the scores.
pub(super) const fn own_keys<T: Tiles>() -> u32 {
    match T::SCHEDULE.division {
        Division::Keys | Division::Products => WARPGROUP_ROWS,
        Division::Columns => T::SCHEDULE.keys_of_block() / CONSUMERS,
    }
}

/// This block's rank among those that share a tile.
#[inline(always)]
pub(super) fn rank<T: Tiles>() -> u32 {
    if const { T::SCHEDULE.cluster == 1 } {
        0
    } else {
        cluster::cluster_ctarank()
    }
}

/// The first key that this block has of a tile.
#[inline(always)]
pub(super) fn first_key<T: Tiles>(tile: BackwardTile) -> u32 {
    tile.k_block * T::CONFIG.block_k + rank::<T>() * const { T::SCHEDULE.keys_of_block() }
}

/// The place in the peer's shared memory that lies as this one does in this block's.
///
/// # Safety
/// The block is one of a cluster of two; the address is in its shared memory.
#[inline(always)]
pub(super) unsafe fn of_peer(address: u32) -> u32 {
    // SAFETY: the caller's contract.
    unsafe { cluster::mapa(address, 1 - cluster::cluster_ctarank()) }
}

/// A step's block of dQ, as a semaphore warp tells the consumers of it.
#[derive(Clone, Copy)]
pub(super) struct DqSlot {
    /// Which block of the accumulator.
    pub(super) block: u32,
    /// 1 if nothing has been added to it yet: it has no value.
    pub(super) first: u32,
}

/// The places.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    k: u32,
    v: u32,
    q: u32,
    d_o: u32,
    d_s: u32,
    /// dV and dK on their way out, in V's place if that is all there is. Where consumers share the products or the columns: Pᵀ between them.
    out: u32,
    /// Where consumers share the keys: their pieces of dQ on their way to memory.
    pieces: u32,
    /// In a cluster: the peer's dS, and K of its keys, of this block's columns of dQ.
    d_s_peer: u32,
    k_peer: u32,
    /// In a cluster, in the second block: the number of the tile that the first has claimed for both.
    pub(super) claim: u32,
    lse: u32,
    delta: u32,
    pub(super) steps: u32,
    work_slots: u32,
    listed: u32,
    dq_slots: u32,
    /// Stages of Q, with lse, Δ and the number of its first row; emptied by the consumers' threads.
    pub(super) q_ring: Barriers,
    /// Stages of dO; emptied by the consumers' warps.
    pub(super) d_o_ring: Barriers,
    /// Stages of dSᵀ; filled and emptied by the consumers' warps. In a cluster the peer's consumers empty them, too: they read the copy.
    pub(super) d_s_ring: Barriers,
    /// Barriers of the stages of the peer's dS, which say that they are full: [`Layout::d_s_peer_full`].
    d_s_peer_full: u32,
    /// In a cluster: the claim, filled in the second block, emptied in the first.
    pub(super) claim_ring: Barriers,
    /// Stages of Pᵀ, where one consumer hands it to the other; or where each has some of its keys: filled and emptied by the consumers' warps.
    pub(super) p_ring: Barriers,
    /// Slots for work; emptied by all threads of the consumers, and the semaphore warps.
    pub(super) work_ring: Barriers,
    /// Slots for blocks of dQ, where consumers add from their registers; each filled by its semaphore warp, emptied by the
    /// consumers' threads when they have added.
    pub(super) dq_slot_ring: Barriers,
    /// Places of pieces, the first consumer's and then the other's.
    piece_rings: Barriers,
    /// The tile's K; emptied by the consumers' warps.
    pub(super) k_ring: Barriers,
    /// The tile's V; emptied by the consumers' warps.
    pub(super) v_ring: Barriers,
}

impl Layout {
    /// The places of this block of threads.
    #[inline(always)]
    pub(super) fn new<T: Tiles>() -> Self {
        let config = T::CONFIG;
        let of_block = const { T::SCHEDULE.keys_of_block() };
        let keys = BoxedTile::n_bytes(of_block, 2 * T::HEAD_DIM);
        let queries = BoxedTile::n_bytes(config.block_q, 2 * T::HEAD_DIM);
        let k = special::shared_base();
        let v = k + keys;
        let q = v + BoxedTile::n_bytes(of_block, 2 * T::VALUE_DIM);
        let d_o = q + STAGES * queries;
        let d_s =
            d_o + T::SCHEDULE.d_o_stages * BoxedTile::n_bytes(config.block_q, 2 * T::VALUE_DIM);
        let behind_d_s = d_s + STAGES * d_s_bytes::<T>();
        let (out, pieces) = if !T::SCHEDULE.divides_keys() {
            (behind_d_s, behind_d_s + STAGES * d_s_bytes::<T>())
        } else if T::SCHEDULE.queries_down {
            (v, behind_d_s)
        } else {
            (behind_d_s, behind_d_s + T::SCHEDULE.outs * keys)
        };
        let d_s_peer = pieces
            + if T::SCHEDULE.divides_keys() {
                CONSUMERS * piece_bytes::<T>()
            } else {
                0
            };
        let k_peer = d_s_peer + peers::<T>() * STAGES * d_s_bytes::<T>();
        let lse = k_peer + peers::<T>() * k_peer_bytes::<T>();
        let delta = lse + STAGES * config.block_q * 4;
        let steps = delta + STAGES * config.block_q * 4;
        let work_slots = steps + STAGES * SLOT;
        let listed = work_slots + STAGES * SLOT;
        let dq_slots = listed + STAGES * ListedTile::N_BYTES;
        let q_ring = Barriers::new(dq_slots + STAGES * SLOT, STAGES);
        let d_o_ring = Barriers::new(q_ring.end(), T::SCHEDULE.d_o_stages);
        let d_s_ring = Barriers::new(d_o_ring.end(), STAGES);
        let p_ring = Barriers::new(d_s_ring.end(), STAGES);
        let work_ring = Barriers::new(p_ring.end(), STAGES);
        let dq_slot_ring = Barriers::new(work_ring.end(), STAGES);
        let piece_rings = Barriers::new(dq_slot_ring.end(), STAGES);
        let behind_pieces = Barriers::new(piece_rings.end(), STAGES).end();
        let k_ring = Barriers::new(behind_pieces, 1);
        let v_ring = Barriers::new(k_ring.end(), 1);
        let claim = v_ring.end();
        let d_s_peer_full = claim + SLOT;
        let claim_ring = Barriers::new(d_s_peer_full + STAGES * 8, 1);
        Layout {
            k,
            v,
            q,
            d_o,
            d_s,
            out,
            pieces,
            d_s_peer,
            k_peer,
            claim,
            lse,
            delta,
            steps,
            work_slots,
            listed,
            dq_slots,
            q_ring,
            d_o_ring,
            d_s_ring,
            d_s_peer_full,
            claim_ring,
            p_ring,
            work_ring,
            dq_slot_ring,
            piece_rings,
            k_ring,
            v_ring,
        }
    }

    /// Makes all barriers.
    ///
    /// # Safety
    /// One thread does, before all others meet it.
    #[inline(always)]
    pub(super) unsafe fn make_barriers<T: Tiles>(self) {
        // The warps that make dS, and read V.
        let makers = match T::SCHEDULE.division {
            Division::Products => WARPS / 2,
            Division::Keys | Division::Columns => WARPS,
        };
        let of_p = match T::SCHEDULE.division {
            Division::Keys | Division::Products => ALL_THREADS / 2,
            Division::Columns => WARPS,
        };
        // SAFETY: the caller's contract.
        unsafe {
            self.q_ring.make(1, ALL_THREADS);
            self.d_o_ring.make(1, WARPS);
            self.d_s_ring.make(makers, T::SCHEDULE.cluster * WARPS);
            self.p_ring.make(of_p, of_p);
            // In a cluster the warp that sends dS reads them, too.
            self.work_ring.make(1, ALL_THREADS + STAGES + peers::<T>());
            self.dq_slot_ring.make(1, ALL_THREADS);
            for consumer in 0..CONSUMERS {
                self.piece_ring(consumer).make(WARPS / CONSUMERS, 1);
            }
            self.k_ring.make(1, WARPS);
            self.v_ring.make(1, makers);
            if const { peers::<T>() > 0 } {
                for stage in 0..STAGES {
                    mbarrier::mbarrier_init(self.d_s_peer_full(stage), 1);
                }
                self.claim_ring.make(1, 1);
            }
        }
    }

    /// K of the tile.
    #[inline(always)]
    pub(super) const fn k<T: Tiles>(self) -> BoxedTile {
        BoxedTile {
            base: self.k,
            rows: T::SCHEDULE.keys_of_block(),
        }
    }

    /// K of the peer's keys: this block's columns of dQ.
    #[inline(always)]
    pub(super) const fn k_peer<T: Tiles>(self) -> BoxedTile {
        BoxedTile {
            base: self.k_peer,
            rows: T::SCHEDULE.keys_of_block(),
        }
    }

    /// A stage of the peer's dS, as [`Layout::d_s`].
    #[inline(always)]
    pub(super) const fn d_s_peer<T: Tiles>(self, stage: u32) -> BoxedTile {
        BoxedTile {
            base: self.d_s_peer + stage * d_s_bytes::<T>(),
            rows: T::SCHEDULE.keys_of_block(),
        }
    }

    /// The barrier that says that a stage of the peer's dS is full.
    #[inline(always)]
    pub(super) const fn d_s_peer_full(self, stage: u32) -> u32 {
        self.d_s_peer_full + stage * 8
    }

    /// V of the tile.
    #[inline(always)]
    pub(super) const fn v<T: Tiles>(self) -> BoxedTile {
        BoxedTile {
            base: self.v,
            rows: T::SCHEDULE.keys_of_block(),
        }
    }

    /// A stage of Q.
    #[inline(always)]
    pub(super) const fn q<T: Tiles>(self, stage: u32) -> BoxedTile {
        queries::<T>(self.q, stage, T::HEAD_DIM)
    }

    /// A stage of dO.
    #[inline(always)]
    pub(super) const fn d_o<T: Tiles>(self, stage: u32) -> BoxedTile {
        queries::<T>(self.d_o, stage, T::VALUE_DIM)
    }

    /// A stage of dSᵀ, keys down and queries across; or of dS, where the schedule has queries down.
    #[inline(always)]
    pub(super) const fn d_s<T: Tiles>(self, stage: u32) -> BoxedTile {
        let config = T::CONFIG;
        BoxedTile {
            base: self.d_s + stage * d_s_bytes::<T>(),
            rows: if T::SCHEDULE.queries_down {
                config.block_q
            } else {
                T::SCHEDULE.keys_of_block()
            },
        }
    }

    /// A consumer's piece of dQ on its way to memory.
    #[inline(always)]
    pub(super) const fn piece<T: Tiles>(self, consumer: u32) -> u32 {
        self.pieces + consumer * piece_bytes::<T>()
    }

    /// Stages of a consumer's pieces, all in one place: see [`Consumer::leave_piece`].
    ///
    /// [`Consumer::leave_piece`]: super::consumer::Consumer::leave_piece
    #[inline(always)]
    pub(super) const fn piece_ring(self, consumer: u32) -> Barriers {
        Barriers::new(self.piece_rings.full(0) + consumer * STAGES * 16, STAGES)
    }

    /// A consumer's keys of a gradient on their way out: the `nth` of dV and dK.
    #[inline(always)]
    pub(super) const fn out<T: Tiles>(self, consumer: u32, nth: u32) -> BoxedTile {
        if T::SCHEDULE.queries_down {
            return self.v::<T>().from_row(consumer * WARPGROUP_ROWS);
        }
        let place = if T::SCHEDULE.outs == 2 {
            nth * CONSUMERS
        } else {
            0
        } + consumer;
        BoxedTile {
            base: self.out + place * BoxedTile::n_bytes(WARPGROUP_ROWS, 2 * T::HEAD_DIM),
            rows: WARPGROUP_ROWS,
        }
    }

    /// A stage of Pᵀ: as [`Layout::d_s`], or registers of one consumer that the other takes over.
    #[inline(always)]
    pub(super) const fn p<T: Tiles>(self, stage: u32) -> BoxedTile {
        BoxedTile {
            base: self.out + stage * d_s_bytes::<T>(),
            rows: T::SCHEDULE.keys_of_block(),
        }
    }

    /// A stage of lse.
    #[inline(always)]
    pub(super) const fn lse<T: Tiles>(self, stage: u32) -> u32 {
        self.lse + stage * T::CONFIG.block_q * 4
    }

    /// A stage of Δ.
    #[inline(always)]
    pub(super) const fn delta<T: Tiles>(self, stage: u32) -> u32 {
        self.delta + stage * T::CONFIG.block_q * 4
    }

    /// Writes which rows of q, and which keys of the tile, a stage is for.
    ///
    /// # Safety
    /// The stage is empty.
    #[inline(always)]
    pub(super) unsafe fn write_step(self, stage: u32, first_query: u32, first_key: u32) {
        // SAFETY: the caller's contract.
        unsafe { shared::st_shared_x2(self.steps + stage * SLOT, [first_query, first_key]) };
    }

    /// Writes the mask's data for a stage's step: under a block mask, 1 where all pairs are visible, also those that the band hides; with a prefix
    /// and lengths, the first key after the prefix, counted as the stage's rows are.
    ///
    /// # Safety
    /// The stage is empty.
    #[inline(always)]
    pub(super) unsafe fn write_mask_word(self, stage: u32, word: u32) {
        // SAFETY: the caller's contract.
        unsafe { shared::st_shared_u32(self.steps + stage * SLOT + 8, word) };
    }

    /// Reads it.
    ///
    /// # Safety
    /// The stage is full.
    #[inline(always)]
    pub(super) unsafe fn read_mask_word(self, stage: u32) -> u32 {
        // SAFETY: the caller's contract.
        unsafe { shared::ld_shared_u32(self.steps + stage * SLOT + 8) }
    }

    /// Reads which row of q is the first of a stage.
    ///
    /// # Safety
    /// The stage is full.
    #[inline(always)]
    pub(super) unsafe fn read_first_query(self, stage: u32) -> u32 {
        // SAFETY: the caller's contract.
        unsafe { shared::ld_shared_u32(self.steps + stage * SLOT) }
    }

    /// Reads which key is the first of the tile that a stage is for.
    ///
    /// # Safety
    /// The stage is full.
    #[inline(always)]
    pub(super) unsafe fn read_first_key(self, stage: u32) -> u32 {
        // SAFETY: the caller's contract.
        unsafe { shared::ld_shared_u32(self.steps + stage * SLOT + 4) }
    }

    /// Writes work to a slot.
    ///
    /// # Safety
    /// The slot is empty.
    #[inline(always)]
    pub(super) unsafe fn write_work(self, slot: u32, work: Work) {
        // SAFETY: the caller's contract.
        unsafe { shared::st_shared_x4(self.work_slots + slot * SLOT, work.words()) };
    }

    /// Reads the work in a slot.
    ///
    /// # Safety
    /// The slot is full.
    #[inline(always)]
    pub(super) unsafe fn read_work(self, slot: u32) -> Work {
        // SAFETY: the caller's contract.
        Work::from_words(unsafe { shared::ld_shared_x4(self.work_slots + slot * SLOT) })
    }

    /// The same, with what decides where a thread goes broadcast from lane 0, so that ptxas treats the branches as warp-uniform.
    ///
    /// # Safety
    /// As [`Layout::read_work`]; warp-collective.
    #[inline(always)]
    pub(super) unsafe fn read_uniform_work(self, slot: u32) -> Work {
        // SAFETY: the caller's contract.
        unsafe {
            let [block, head, steps, kind] = self.read_work(slot).words();
            let [steps, kind] = [steps, kind].map(|x| shuffle::shuffle_idx_u32(x, 0));
            Work::from_words([block, head, steps, kind])
        }
    }

    /// Writes to a work slot the list's entry of the work's sequence.
    ///
    /// # Safety
    /// The slot is empty.
    #[inline(always)]
    pub(super) unsafe fn write_listed(self, slot: u32, tile: ListedTile) {
        // SAFETY: the caller's contract.
        unsafe { write_listed_shared(self.listed + slot * ListedTile::N_BYTES, tile) };
    }

    /// Reads the list's entry of the sequence of the work in a slot.
    ///
    /// # Safety
    /// The slot is full.
    #[inline(always)]
    pub(super) unsafe fn read_listed(self, slot: u32) -> ListedTile {
        // SAFETY: the caller's contract.
        unsafe { read_listed_shared(self.listed + slot * ListedTile::N_BYTES) }
    }

    /// Reads the lengths of a tile's sequence, of q and of k.
    ///
    /// # Safety
    /// As [`Layout::read_listed`].
    #[inline(always)]
    pub(super) unsafe fn read_lengths(self, slot: u32) -> [u32; 2] {
        // SAFETY: the caller's contract.
        unsafe { shared::ld_shared_x2(self.listed + slot * ListedTile::N_BYTES + 8) }
    }

    /// Writes to a slot which block of dQ comes next.
    ///
    /// # Safety
    /// The slot is empty.
    #[inline(always)]
    pub(super) unsafe fn write_dq_slot(self, slot: u32, dq: DqSlot) {
        // SAFETY: the caller's contract.
        unsafe { shared::st_shared_x2(self.dq_slots + slot * SLOT, [dq.block, dq.first]) };
    }

    /// Reads from a slot which block of dQ comes next.
    ///
    /// # Safety
    /// The slot is full.
    #[inline(always)]
    pub(super) unsafe fn read_dq_slot(self, slot: u32) -> DqSlot {
        // SAFETY: the caller's contract.
        let [block, first] = unsafe { shared::ld_shared_x2(self.dq_slots + slot * SLOT) };
        DqSlot { block, first }
    }
}

/// Bytes of a stage of dS.
pub(super) const fn d_s_bytes<T: Tiles>() -> u32 {
    T::CONFIG.block_q * T::SCHEDULE.keys_of_block() * 2
}

/// How many other blocks share a tile with this one.
const fn peers<T: Tiles>() -> u32 {
    T::SCHEDULE.cluster - 1
}

/// Columns of dQ that a block of a cluster has, in parts of 64.
pub(super) const fn parts_of_block<T: Tiles>() -> u32 {
    T::HEAD_DIM / BOX_COLUMNS / T::SCHEDULE.cluster
}

/// Bytes of K of the peer's keys.
pub(super) const fn k_peer_bytes<T: Tiles>() -> u32 {
    let columns = parts_of_block::<T>() * BOX_COLUMNS;
    BoxedTile::n_bytes(T::SCHEDULE.keys_of_block(), 2 * columns)
}

#[inline(always)]
const fn queries<T: Tiles>(base: u32, stage: u32, columns: u32) -> BoxedTile {
    let rows = T::CONFIG.block_q;
    BoxedTile {
        base: base + stage * BoxedTile::n_bytes(rows, 2 * columns),
        rows,
    }
}

//! dQ on its way from the consumers' registers to its accumulator in global memory.
//!
//! A block of the accumulator lies there piece after piece, as consumers hold it: fragments of all threads one after the
//! other. Consumers that share the keys leave their pieces in shared memory, and go on; a semaphore warp sends them when the
//! semaphore lets the tile pass. Where shared memory is full, consumers add from their registers, and go on when the memory has taken them.

use super::Tiles;
use super::consumer::{Consumer, THREADS};
use super::layout::{CONSUMERS, DqSlot, Layout, rank};
use super::scheduler::{Steps, WorkTile, query_heads};
use crate::attention::batch_and_head;
use crate::attention::block_order::{self, BlockOrder};
use crate::attention::lengths::ListedTile;
use crate::attention::mask::Band;
use crate::config::{Division, TMA_BACKWARD_STAGES as STAGES};
use crate::kernels::band;
use crate::kernels::varlen::band_of_sequence;
use crate::params::{BackwardParams, FASTEST, ORDERED, Schedule};
use crate::ptx::{atomic, barrier, global, mbarrier, shared, shuffle, spec, special, tma};
use crate::tile::element::Element;
use crate::tile::register::Accumulator;
use crate::tile::ring::Ring;
use crate::tile::warpgroup::{Pending, WarpgroupTile, begin_gemm_ss};

/// Bytes of a fragment of all threads of a consumer.
pub(super) const FRAGMENT_BYTES: u32 = THREADS * 16;

/// Bytes of a piece.
pub(super) const fn piece_bytes<T: Tiles>() -> u32 {
    T::PIECE_FRAGMENTS * FRAGMENT_BYTES
}

/// The address of a block of the accumulator.
fn block_address<T: Tiles>(p: &BackwardParams, block: u32) -> u64 {
    let block_bytes = const { T::CONFIG.block_q * T::ACCUM_COLUMNS * 4 };
    p.d_q_accum + u64::from(block) * u64::from(block_bytes)
}

/// The address of the semaphore of a block of the accumulator: in a cluster each block has one, for its columns.
#[inline(always)]
pub(super) fn semaphore_address<T: Tiles>(p: &BackwardParams, block: u32, rank: u32) -> u64 {
    let each = const { T::CONFIG.cluster as u64 };
    p.dq_semaphore + (u64::from(block) * each + u64::from(rank)) * 4
}

/// The address of a row of the accumulator, the first one of a piece.
#[inline(always)]
pub(super) fn row_address<T: Tiles>(p: &BackwardParams, head: u32, row: u32) -> u64 {
    let rows = u64::from(head) * p.padded_q + u64::from(row);
    p.d_q_accum + rows * u64::from(const { T::ACCUM_COLUMNS * 4 })
}

/// Sends off the consumers' dQ of step `at` once they have written it, and waits until all of it is in memory.
///
/// # Safety
/// One thread of the block does it for each stage, in the order of the steps; the semaphore lets the tile pass.
#[inline(always)]
unsafe fn send_pieces<T: Tiles>(p: &BackwardParams, layout: Layout, at: Ring, slot: DqSlot) {
    let n_bytes = const { piece_bytes::<T>() };
    // SAFETY: the caller's contract; pieces are sent when they are there, overwritten when they have been read.
    unsafe {
        for consumer in 0..CONSUMERS {
            let ring = layout.piece_ring(consumer);
            let to = block_address::<T>(p, slot.block) + u64::from(consumer * n_bytes);
            ring.await_full(at);
            if slot.first == 1 {
                tma::bulk_store(to, layout.piece::<T>(consumer), n_bytes);
            } else {
                tma::bulk_add_f32(to, layout.piece::<T>(consumer), n_bytes);
            }
            tma::bulk_commit_group();
            tma::bulk_wait_group_read::<0>();
            mbarrier::mbarrier_arrive_if(ring.empty(at.stage), 1);
        }
        tma::bulk_wait_group::<0>();
    }
}

/// A thread's part of a piece of dQ on its way to memory.
#[derive(Clone, Copy, Default)]
pub(super) struct PlacedPiece {
    address: u64,
    /// 1: it is added to what is there.
    adds: u32,
    /// 1: it is the first there.
    stores: u32,
}

impl PlacedPiece {
    /// Sends a fragment. Without a branch, so that it may stand between products.
    ///
    /// # Safety
    /// The accumulator has the piece, and the semaphore lets the tile pass.
    #[inline(always)]
    pub(super) unsafe fn send<T: Tiles>(self, n: usize, d_q: &T::QueryGradient) {
        let address = self.address + n as u64 * u64::from(FRAGMENT_BYTES);
        let fragment = d_q.fragment(0, n);
        // SAFETY: the caller's contract.
        unsafe {
            atomic::red_add_f32x4_if(address, fragment, self.adds);
            global::st_global_x4_if(address, fragment.map(f32::to_bits), self.stores == 1);
        }
    }
}

impl Consumer<'_> {
    /// Leaves this consumer's piece of dQ of step `i` where the semaphore warp finds it; `half`: see [`TmaBackward::halves_a_part`](crate::config::TmaBackward::halves_a_part).
    #[inline(always)]
    pub(super) unsafe fn leave_piece<T: Tiles>(
        &self,
        i: u32,
        d_q: &T::QueryGradient,
        half: Option<&T::QueryGradientOfHalf>,
    ) {
        let at = Ring::at(STAGES, i);
        // Opaque: no register need hold what follows from it. See `Consumer::send`.
        let thread = special::opaque(special::thread_idx_x()) % THREADS;
        // SAFETY: the place is empty when it is written: the piece of the step before has been read. One place serves all steps. It
        // has barriers for even and for odd steps, because a semaphore warp waits at those of its own steps only.
        unsafe {
            let ring = self.layout.piece_ring(self.idx);
            ring.await_empty(Ring::at(STAGES, i.wrapping_add(1)));
            let own = self.layout.piece::<T>(self.idx) + thread * 16;
            for n in 0..T::QueryGradient::N {
                let fragment = d_q.fragment(0, n).map(f32::to_bits);
                shared::st_shared_x4(own + n as u32 * FRAGMENT_BYTES, fragment);
            }
            if let Some(half) = half {
                let own = own + T::QueryGradient::N as u32 * FRAGMENT_BYTES;
                for n in 0..T::QueryGradientOfHalf::N {
                    let fragment = half.fragment(0, n).map(f32::to_bits);
                    shared::st_shared_x4(own + n as u32 * FRAGMENT_BYTES, fragment);
                }
            }
            tma::fence_proxy_async();
            barrier::warp_sync();
            mbarrier::mbarrier_arrive_if(ring.full(at.stage), self.leads);
        }
    }

    /// Waits until the tile may add to a step's block of dQ.
    #[inline(always)]
    pub(super) unsafe fn await_dq_slot(&self, at: Ring) -> DqSlot {
        // SAFETY: the slot is full when it is read.
        unsafe {
            self.layout.dq_slot_ring.await_full(at);
            let DqSlot { block, first } = self.layout.read_dq_slot(at.stage);
            let first = shuffle::shuffle_idx_u32(first, 0);
            DqSlot { block, first }
        }
    }

    /// The thread has added.
    #[inline(always)]
    pub(super) unsafe fn release_dq_slot(&self, at: Ring) {
        // SAFETY: every thread arrives for itself.
        unsafe { mbarrier::mbarrier_arrive_if(self.layout.dq_slot_ring.empty(at.stage), 1) }
    }

    /// Adds the `piece`-th piece of a block of dQ to memory, from registers: where there is no shared memory to spare.
    #[inline(always)]
    pub(super) unsafe fn add_piece<T: Tiles>(
        &self,
        slot: DqSlot,
        piece: u32,
        d_q: &T::QueryGradient,
    ) {
        let address = self.piece_address::<T>(slot.block, piece);
        let fragment = |n: usize| address + n as u64 * u64::from(FRAGMENT_BYTES);
        // SAFETY: the accumulator has the block, and the semaphore lets the tile pass.
        unsafe {
            if slot.first == 1 {
                for n in 0..T::QueryGradient::N {
                    global::st_global_f32x4(fragment(n), d_q.fragment(0, n));
                }
            } else {
                for n in 0..T::QueryGradient::N {
                    atomic::red_add_f32x4(fragment(n), d_q.fragment(0, n));
                }
            }
        }
    }

    /// Where the thread's part of a piece of a block of dQ lies.
    #[inline(always)]
    fn piece_address<T: Tiles>(&self, block: u32, piece: u32) -> u64 {
        // Opaque: no register need hold what follows from it. See `Consumer::send`.
        let thread = special::opaque(special::thread_idx_x()) % THREADS;
        let own = piece * piece_bytes::<T>() + thread * 16;
        block_address::<T>(self.p, block) + u64::from(own)
    }

    /// Where the piece goes of a step that has been waited for, fragment by fragment. Without a step, `is_there` is 0, nowhere.
    #[inline(always)]
    pub(super) unsafe fn await_piece<T: Tiles>(
        &self,
        at: Ring,
        piece: u32,
        is_there: u32,
    ) -> PlacedPiece {
        if is_there == 0 {
            return PlacedPiece::default();
        }
        // SAFETY: as `await_dq_slot`.
        let DqSlot { block, first } = unsafe { self.await_dq_slot(at) };
        PlacedPiece {
            address: self.piece_address::<T>(block, piece),
            adds: 1 - first,
            stores: first,
        }
    }

    /// Begins columns `64 · piece ..` of dQ = dS K of a step.
    #[inline(always)]
    pub(super) unsafe fn begin_columns<'b, E: Element, T: Tiles>(
        &self,
        at: Ring,
        piece: u32,
        d_q: &'b mut T::QueryGradient,
    ) -> Pending<'b, T::QueryGradient> {
        let (d_s, k) = (self.layout.d_s::<T>(at.stage), self.layout.k::<T>());
        let keys = const { T::SCHEDULE.keys_of_block() / 16 };
        // SAFETY: as `consume`; both consumers have written their dS.
        // dQ = dS K
        unsafe { begin_gemm_ss::<E, _>(d_q, d_s.t(), k.from_part(piece), keys, 0) }
    }

    /// All of this consumer's columns of dQ of a step are in memory.
    #[inline(always)]
    pub(super) unsafe fn end_columns(&self, at: Ring) {
        // SAFETY: as `consume`.
        unsafe {
            mbarrier::mbarrier_arrive_if(self.layout.d_s_ring.empty(at.stage), self.leads);
            self.release_dq_slot(at);
        }
    }
}

// Parts of dQ of consumers that share the keys of a tile: each multiplies some of dQ's rows or columns, over all keys, and leaves them for
// a semaphore warp.
//
// `wgmma` reads columns in parts of 64 (`BoxedTile`), so where there are three parts, each consumer has a
// part of its own, and half of the third.

impl Consumer<'_> {
    /// Which consumer; opaque, where registers would not hold what follows from it through all steps.
    #[inline(always)]
    pub(super) fn idx<T: Tiles>(&self) -> u32 {
        if T::SCHEDULE.halves_a_part || matches!(T::SCHEDULE.division, Division::Columns) {
            special::opaque(self.idx)
        } else {
            self.idx
        }
    }

    /// Begins this consumer's part of dQ = dS K of step `i`: where a block has 128 queries its half of them, else its half of
    /// the columns. Or of dQᵀ = Kᵀ dSᵀ.
    #[inline(always)]
    pub(super) unsafe fn begin_query_gradient<'b, E: Element, T: Tiles>(
        &self,
        i: u32,
        d_q: &'b mut T::QueryGradient,
    ) -> Pending<'b, T::QueryGradient> {
        let at = Ring::at(STAGES, i);
        let (d_s, k) = (self.layout.d_s::<T>(at.stage), self.layout.k::<T>());
        let keys = const { T::SCHEDULE.keys_of_block() / 16 };
        // SAFETY: as `consume`; both consumers have written their dS.
        unsafe {
            self.layout.d_s_ring.await_full(at);
            if T::SCHEDULE.queries_down {
                // dQᵀ = Kᵀ dSᵀ
                begin_gemm_ss::<E, _>(d_q, k.from_part(self.idx).t(), d_s.t(), keys, 0)
            } else if const { T::CONFIG.block_q == 128 } {
                // dQ = dS K
                begin_gemm_ss::<E, _>(d_q, d_s.from_part(self.idx).t(), k, keys, 0)
            } else {
                // dQ = dS K
                begin_gemm_ss::<E, _>(d_q, d_s.t(), k.from_part(self.idx::<T>()), keys, 0)
            }
        }
    }

    /// This consumer's part of dQ of step `i`, from its product to memory; where consumers halve a part of its columns, its half of that,
    /// too.
    #[inline(always)]
    pub(super) unsafe fn query_gradient<E: Element, T: Tiles>(&self, i: u32) {
        let mut d_q = T::QueryGradient::undefined();
        // SAFETY: as `begin_query_gradient`.
        unsafe {
            let begun = self.begin_query_gradient::<E, T>(i, &mut d_q);
            if !T::SCHEDULE.halves_a_part {
                begun.wait::<0>();
                self.end_query_gradient::<T>(i, &d_q, None);
                return;
            }
            let (d_s, k) = (self.layout.d_s::<T>(i % STAGES), self.layout.k::<T>());
            let k = k.from_half_of_part(2, self.idx::<T>());
            let mut half = T::QueryGradientOfHalf::undefined();
            let keys = const { T::SCHEDULE.keys_of_block() / 16 };
            // dQ = dS K
            let begun_half = begin_gemm_ss::<E, _>(&mut half, d_s.t(), k, keys, 0);
            begun.wait::<1>();
            begun_half.wait::<0>();
            self.end_query_gradient::<T>(i, &d_q, Some(&half));
        }
    }

    /// This consumer's part of dQ of step `i` is there: off to memory. dS may be overwritten.
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

// The semaphore warps: each waits until the tile may add to a step's block of dQ, sends what consumers have left of it (or lets
// them accumulate), and lets the next tile pass.
//
// To poll the semaphore, and to make sure that everybody sees what was added before the next tile is let pass, takes longer
// than a step. So two helper threads (even and odd steps) do it, and consumers never stall on a global-memory read.

/// The whole of a semaphore warp's work: every step that is `mine`, counted modulo [`STAGES`].
///
/// # Safety
/// One thread of the block does it for each stage; the barriers have been made.
#[inline(always)]
pub(super) unsafe fn serve<T: Tiles>(p: &BackwardParams, layout: Layout, mine: u32) {
    let band = band(&p.shape, p.window);
    let (mut n, mut step) = (0, 0);
    // SAFETY: slots are read when they are full.
    unsafe {
        loop {
            let slot = Ring::at(STAGES, n);
            layout.work_ring.await_full(slot);
            let work = layout.read_work(slot.stage);
            if work.is_end() {
                return;
            }
            let (band, q_blocks_before) = if spec::lengths() {
                let ListedTile {
                    seqlen_q,
                    seqlen_k,
                    q_blocks_before,
                    ..
                } = layout.read_listed(slot.stage);
                (
                    band_of_sequence(seqlen_q, seqlen_k, p.window),
                    q_blocks_before,
                )
            } else {
                (band, 0)
            };
            mbarrier::mbarrier_arrive_if(layout.work_ring.empty(slot.stage), 1);
            n += 1;
            if !work.is_conversion() {
                serve_tile::<T>(
                    p,
                    layout,
                    mine,
                    band,
                    q_blocks_before,
                    work.tile(),
                    &mut step,
                );
            }
        }
    }
}

/// The steps of one tile; `step` counts those of all tiles.
#[inline(always)]
unsafe fn serve_tile<T: Tiles>(
    p: &BackwardParams,
    layout: Layout,
    mine: u32,
    band: Band,
    q_blocks_before: u32,
    work: WorkTile,
    step: &mut u32,
) {
    let config = T::CONFIG;
    let q_blocks = p.padded_q as u32 / config.block_q;
    let (batch_idx, kv_head_idx) = batch_and_head(work.tile.head, p.shape.heads_k);
    let heads = query_heads(p, kv_head_idx);
    let head = batch_idx * p.shape.heads_q + heads.first;
    let first_block = head * q_blocks + q_blocks_before;
    let blocks = block_order::q_blocks(&band, work.tile.k_block, config.block_q, config.block_k);
    let schedule = Schedule {
        // Shifted tiles are never of sequences with lengths of their own.
        order: if spec::lengths() {
            ORDERED
        } else {
            p.schedule.order
        },
        ..p.schedule
    };
    let order = BlockOrder::begin(band, work.tile, blocks, &schedule, heads.n);
    let mut left = work.steps;
    // SAFETY: slots are written when they are empty. Tiles that are waited for run: they were claimed earlier, or are in the
    // same shifted order, whose tiles all run at once.
    unsafe {
        let mut steps = Steps::<T>::begin(p, work.tile, order);
        while left > 0 {
            let at = Ring::at(STAGES, *step);
            if at.stage == mine {
                let block = first_block + steps.head() * q_blocks + steps.block();
                let semaphore = semaphore_address::<T>(p, block, rank::<T>());
                let ordered = p.schedule.order != FASTEST;
                let rank = if ordered {
                    steps.rank(config.block_q, config.block_k)
                } else {
                    1
                };
                if ordered && rank > 0 {
                    while atomic::ld_acquire_u32(semaphore) != rank {}
                }
                let first = (rank == 0) as u32;
                let slot = DqSlot { block, first };
                if !T::SCHEDULE.divides_keys() {
                    layout.write_dq_slot(mine, slot);
                    mbarrier::mbarrier_arrive_if(layout.dq_slot_ring.full(mine), 1);
                    // All have added when the slot is empty again.
                    mbarrier::mbarrier_wait(layout.dq_slot_ring.empty(mine), at.parity);
                } else {
                    tma::fence_proxy_async_global();
                    send_pieces::<T>(p, layout, at, slot);
                }
                // Counted in any order: who converts dQ waits for the last.
                atomic::red_release_add_u32(semaphore, 1);
            }
            steps.advance();
            *step += 1;
            left -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::backward::sm90::tiles;

    /// Addresses of blocks and rows of large problems, worked out in 128 bits.
    fn check<T: Tiles>() {
        let p = BackwardParams {
            d_q_accum: 1 << 40,
            padded_q: 1 << 20,
            ..BackwardParams::default()
        };
        let row_bytes = u128::from(T::ACCUM_COLUMNS * 4);
        for (head, row) in [
            (0, 128),
            (2, 640),
            (4095, 1 << 19),
            (1 << 16, (1 << 20) - 64),
        ] {
            let rows = (u128::from(head) << 20) + u128::from(row);
            let address = u128::from(row_address::<T>(&p, head, row));
            assert_eq!(address, (1 << 40) + rows * row_bytes);
        }
        for block in [1, (1 << 17) + 1, (1 << 30) + 3] {
            let rows = u128::from(block) * u128::from(T::CONFIG.block_q);
            let address = u128::from(block_address::<T>(&p, block));
            assert_eq!(address, (1 << 40) + rows * row_bytes);
        }
    }

    #[test]
    fn addresses_in_the_accumulator_have_64_bits() {
        check::<tiles!(64, 64, Default)>();
        check::<tiles!(96, 96, Default)>();
        check::<tiles!(128, 128, Default)>();
        check::<tiles!(192, 192, Default)>();
        check::<tiles!(256, 256, Default)>();
        check::<tiles!(128, 128, Wide)>();
        check::<tiles!(256, 256, Wide)>();
        check::<tiles!(256, 256, Paired)>();
        check::<tiles!(192, 128, Default)>();
    }
}

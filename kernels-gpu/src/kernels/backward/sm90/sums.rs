//! dQ on its way from the consumers' registers to its accumulator in global memory.
//!
//! A block of the accumulator lies there piece after piece, as consumers hold it: fragments of all threads one after the
//! other. Consumers that share the keys leave their pieces in shared memory, and go on; a semaphore warp sends them when the
//! semaphore lets the tile pass. Where shared memory is full, consumers add from their registers, and go on when the memory has taken them.

use super::Tiles;
use super::consumer::{Consumer, THREADS};
use super::layout::{CONSUMERS, DqSlot, Layout};
use crate::config::TMA_BACKWARD_STAGES as STAGES;
use crate::params::BackwardParams;
use crate::ptx::{atomic, barrier, global, mbarrier, shared, shuffle, special, tma};
use crate::tile::register::Accumulator;
use crate::tile::ring::Ring;

/// Bytes of a fragment of all threads of a consumer.
pub(super) const FRAGMENT_BYTES: u32 = THREADS * 16;

/// Bytes of a piece.
pub(super) const fn piece_bytes<T: Tiles>() -> u32 {
    T::PIECE_FRAGMENTS * FRAGMENT_BYTES
}

/// The address of a block of the accumulator.
fn block_address<T: Tiles>(p: &BackwardParams, block: u32) -> u64 {
    let block_bytes = const { T::FOOTPRINT.block_q * T::ACCUM_COLUMNS * 4 };
    p.d_q_accum + u64::from(block) * u64::from(block_bytes)
}

/// The address of a row of the accumulator, the first one of a piece.
#[inline(always)]
pub(super) fn row_address<T: Tiles>(p: &BackwardParams, head: u32, row: u32) -> u64 {
    let rows = u64::from(head) * p.padded_q + u64::from(row);
    p.d_q_accum + rows * u64::from(const { T::ACCUM_COLUMNS * 4 })
}

/// Sends off what consumers leave of step `at`, when they have, and waits until all of it is in memory.
///
/// # Safety
/// One thread of the block does it for each stage, in the order of the steps; the semaphore lets the tile pass.
#[inline(always)]
pub(super) unsafe fn send_pieces<T: Tiles>(
    p: &BackwardParams,
    layout: Layout,
    at: Ring,
    slot: DqSlot,
) {
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

impl Consumer<'_> {
    /// Leaves this consumer's piece of dQ of step `i` where the semaphore warp finds it; `half`: [`Tiles::HALVES_A_PART`].
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
        // Opaque: no register need hold what follows from it. See `Consumer::send`.
        let thread = special::opaque(special::thread_idx_x()) % THREADS;
        let own = piece * piece_bytes::<T>() + thread * 16;
        let address = block_address::<T>(self.p, slot.block) + u64::from(own);
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::backward::sm90::{DefaultTiles, ValueTiles, WideTiles};

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
            let rows = u128::from(block) * u128::from(T::FOOTPRINT.block_q);
            let address = u128::from(block_address::<T>(&p, block));
            assert_eq!(address, (1 << 40) + rows * row_bytes);
        }
    }

    #[test]
    fn addresses_in_the_accumulator_have_64_bits() {
        check::<DefaultTiles<64>>();
        check::<DefaultTiles<96>>();
        check::<DefaultTiles<128>>();
        check::<DefaultTiles<192>>();
        check::<DefaultTiles<256>>();
        check::<WideTiles<128>>();
        check::<ValueTiles<192, 128>>();
    }
}

//! Numbers of all sequences added up: by all threads of a block, into arrays that tell which sequence the n-th tile is of.

use super::{SORTED, THREADS};
use crate::params::TileListParams;
use crate::ptx::{barrier, global, shared, special};

/// The arrays of the scratch.
#[derive(Clone, Copy)]
pub(super) enum Scratch {
    /// Which sequence comes when.
    Order,
    /// How many tiles there are up to the end of the sequence that comes then.
    Tiles,
    /// How many query blocks there are up to the end of the sequence.
    QBlocks,
}

impl Scratch {
    #[inline(always)]
    pub(super) fn at(self, p: &TileListParams, idx: u32) -> u64 {
        p.scratch + (self as u64 * u64::from(p.shape.batch) + u64::from(idx)) * 4
    }
}

/// Writes how many there are up to the end of each place, and gives how many there are.
#[inline(always)]
pub(super) unsafe fn count(p: &TileListParams, to: Scratch, n_at: impl Fn(u32) -> u32) -> u32 {
    let (n, thread) = (p.shape.batch, special::thread_idx_x());
    let each = n.div_ceil(THREADS);
    let (begin, end) = (thread * each, (thread + 1) * each);
    let end = if end < n { end } else { n };
    let mut own = 0u32;
    let mut at = begin;
    while at < end {
        own = own.saturating_add(n_at(at));
        at += 1;
    }
    // SAFETY: all threads of the block come here.
    unsafe {
        let (sum, all) = sum(own);
        let mut sum = sum - own;
        let mut at = begin;
        while at < end {
            sum = sum.saturating_add(n_at(at));
            global::st_global_u32(to.at(p, at), sum);
            at += 1;
        }
        all
    }
}

/// The sum of all threads' numbers up to the thread's own, and of all.
///
/// # Safety
/// All threads of the block come here; shared memory has room for their sums.
#[inline(always)]
pub(super) unsafe fn sum(own: u32) -> (u32, u32) {
    let thread = special::thread_idx_x();
    let sums = special::shared_base() + SORTED * 4;
    // SAFETY: the caller's contract.
    unsafe {
        barrier::barrier_sync_all();
        shared::st_shared_u32(sums + thread * 4, own);
        barrier::barrier_sync_all();
        let mut sum = own;
        let mut distance = 1;
        while distance < THREADS {
            let before = if thread >= distance {
                shared::ld_shared_u32(sums + (thread - distance) * 4)
            } else {
                0
            };
            barrier::barrier_sync_all();
            sum = sum.saturating_add(before);
            shared::st_shared_u32(sums + thread * 4, sum);
            barrier::barrier_sync_all();
            distance *= 2;
        }
        (sum, shared::ld_shared_u32(sums + (THREADS - 1) * 4))
    }
}

/// The first place up to whose end there are more than `idx`, and how many there are before it.
#[inline(always)]
pub(super) unsafe fn find(p: &TileListParams, of: Scratch, idx: u32) -> (u32, u32) {
    let (mut low, mut high) = (0, p.shape.batch);
    while low + 1 < high {
        let middle = (low + high) / 2;
        // SAFETY: the array has been written.
        if unsafe { global::ld_global_u32(of.at(p, middle - 1)) } <= idx {
            low = middle;
        } else {
            high = middle;
        }
    }
    // SAFETY: as above.
    (low, unsafe { before(p, of, low) })
}

/// How many there are before a place.
#[inline(always)]
pub(super) unsafe fn before(p: &TileListParams, of: Scratch, at: u32) -> u32 {
    if at == 0 {
        return 0;
    }
    // SAFETY: the caller's contract.
    unsafe { global::ld_global_u32(of.at(p, at - 1)) }
}

//! Numbers of all sequences added up: by all threads of a block, into arrays that tell which sequence the n-th tile is of.

use super::{KEPT, SORTED, THREADS};
use crate::attention::mask::Rows;
use crate::params::TileListParams;
use crate::ptx::{barrier, global, shared, shuffle, special};

/// Arrays of a word for each sequence. They lie in shared memory, where searches are fast; those of too many sequences for that in the
/// workspace.
#[derive(Clone, Copy)]
pub(super) enum Scratch {
    /// Which sequence comes when.
    Order,
    /// How many tiles there are up to the end of the sequence that comes then.
    Tiles,
    /// How many query blocks there are up to the end of the sequence.
    QBlocks,
}

/// Bytes of shared memory before the sums of warps.
const ARRAYS: u32 = 3 * SORTED * 4;

impl Scratch {
    /// The address in shared memory.
    #[inline(always)]
    pub(super) fn shared(self, idx: u32) -> u32 {
        special::shared_base() + (self as u32 * SORTED + idx) * 4
    }

    #[inline(always)]
    fn global(self, p: &TileListParams, idx: u32) -> u64 {
        let batch = u64::from(p.shape.batch);
        p.scratch + (ROWS_WORDS + self as u64) * batch * 4 + u64::from(idx) * 4
    }

    /// # Safety
    /// The word has been written, and no thread writes it now.
    #[inline(always)]
    pub(super) unsafe fn read(self, p: &TileListParams, idx: u32) -> u32 {
        // SAFETY: the caller's contract; there is a word for each sequence.
        unsafe {
            if p.shape.batch <= SORTED {
                shared::ld_shared_u32(self.shared(idx))
            } else {
                global::ld_global_u32(self.global(p, idx))
            }
        }
    }

    /// # Safety
    /// No other thread uses the word now.
    #[inline(always)]
    pub(super) unsafe fn write(self, p: &TileListParams, idx: u32, word: u32) {
        // SAFETY: the caller's contract; there is a word for each sequence.
        unsafe {
            if p.shape.batch <= SORTED {
                shared::st_shared_u32(self.shared(idx), word);
            } else {
                global::st_global_u32(self.global(p, idx), word);
            }
        }
    }
}

/// Words of a sequence's rows of q, and of k and v.
const ROWS_WORDS: u64 = 4;
/// Bytes of shared memory before the rows of sequences: arrays, and the sums of warps.
const BEFORE_ROWS: u32 = ARRAYS + THREADS / 32 * 4;

/// A sequence's rows of q, and of k and v, as [`write_rows`] has written them.
///
/// # Safety
/// They have been written, and no thread writes them now.
#[inline(always)]
pub(super) unsafe fn read_rows(p: &TileListParams, sequence: u32) -> [Rows; 2] {
    // SAFETY: the caller's contract.
    let [q_first, q_len, k_first, k_len] = unsafe {
        if p.shape.batch <= KEPT {
            shared::ld_shared_x4(special::shared_base() + BEFORE_ROWS + sequence * 16)
        } else {
            global::ld_global_x4(p.scratch + u64::from(sequence) * 16)
        }
    };
    let rows = |first, len| Rows { first, len };
    [rows(q_first, q_len), rows(k_first, k_len)]
}

/// Writes them: to shared memory, or to the workspace if sequences are too many.
///
/// # Safety
/// No other thread uses them now.
#[inline(always)]
pub(super) unsafe fn write_rows(p: &TileListParams, sequence: u32, [q, k]: [Rows; 2]) {
    let words = [q.first, q.len, k.first, k.len];
    // SAFETY: the caller's contract.
    unsafe {
        if p.shape.batch <= KEPT {
            shared::st_shared_x4(special::shared_base() + BEFORE_ROWS + sequence * 16, words);
        } else {
            global::st_global_x4(p.scratch + u64::from(sequence) * 16, words);
        }
    }
}

/// Writes how many there are up to the end of each place, and gives how many there are.
///
/// # Safety
/// All threads of the block come here.
#[inline(always)]
pub(super) unsafe fn count(p: &TileListParams, to: Scratch, n_at: impl Fn(u32) -> u32) -> u32 {
    let (n, thread) = (p.shape.batch, special::thread_idx_x());
    let each = n.div_ceil(THREADS);
    let (begin, end) = (thread * each, (thread + 1) * each);
    let end = if end < n { end } else { n };
    let (mut own, mut last) = (0u32, 0);
    let mut at = begin;
    while at < end {
        last = n_at(at);
        own = own.saturating_add(last);
        at += 1;
    }
    // SAFETY: the caller's contract.
    unsafe {
        let (sum, all) = sum(own);
        let mut sum = sum - own;
        let mut at = begin;
        while at < end {
            // Most often there is one.
            let n = if each == 1 { last } else { n_at(at) };
            sum = sum.saturating_add(n);
            to.write(p, at, sum);
            at += 1;
        }
        all
    }
}

/// The sum of all threads' numbers up to the thread's own, and of all.
///
/// # Safety
/// All threads of the block come here; shared memory has room for the sums of the warps.
#[inline(always)]
pub(super) unsafe fn sum(own: u32) -> (u32, u32) {
    const WARPS: u32 = THREADS / 32;
    let (warp, lane) = (special::thread_idx_x() / 32, special::lane_idx());
    let sums = special::shared_base() + ARRAYS;
    // SAFETY: the caller's contract.
    unsafe {
        let mut sum = own;
        let mut distance = 1;
        while distance < 32 {
            let before = shuffle::shuffle_idx_u32(sum, lane.wrapping_sub(distance) % 32);
            if lane >= distance {
                sum = sum.saturating_add(before);
            }
            distance *= 2;
        }
        // Sums of an earlier call have been read.
        barrier::barrier_sync_all();
        if lane == 31 {
            shared::st_shared_u32(sums + warp * 4, sum);
        }
        barrier::barrier_sync_all();
        let (mut before, mut all) = (0u32, 0u32);
        for other in 0..WARPS {
            if other == warp {
                before = all;
            }
            all = all.saturating_add(shared::ld_shared_u32(sums + other * 4));
        }
        (before.saturating_add(sum), all)
    }
}

/// The first place up to whose end there are more than `idx`, and how many there are before it.
///
/// # Safety
/// The array has been written.
#[inline(always)]
pub(super) unsafe fn find(p: &TileListParams, of: Scratch, idx: u32) -> (u32, u32) {
    let (mut low, mut high) = (0, p.shape.batch);
    while low + 1 < high {
        let middle = (low + high) / 2;
        // SAFETY: the caller's contract.
        if unsafe { of.read(p, middle - 1) } <= idx {
            low = middle;
        } else {
            high = middle;
        }
    }
    // SAFETY: as above.
    (low, unsafe { before(p, of, low) })
}

/// How many there are before a place.
///
/// # Safety
/// The array has been written.
#[inline(always)]
pub(super) unsafe fn before(p: &TileListParams, of: Scratch, at: u32) -> u32 {
    if at == 0 {
        return 0;
    }
    // SAFETY: the caller's contract.
    unsafe { of.read(p, at - 1) }
}

//! Merges what the splits of a sequence's keys have found: see [`crate::attention::split_kv`].
//!
//! ```text
//! m ← max over splits of L_s
//! w_s ← exp(L_s − m)
//! O ← Σ w_s O_s / Σ w_s,   L ← m + log Σ w_s
//! ```
//!
//! A block of threads takes one row of one head. Its four warps take every fourth split each, and add up in the order of the warps: the
//! order of the sums depends on the number of splits alone.

use super::partial::{inverse, lse_of_all, weight};
use crate::attention::batch_and_head;
use crate::attention::divide;
use crate::attention::mask::Rows;
use crate::attention::split_kv::n_splits;
use crate::config;
use crate::kernels::lengths::{n_listed, rows_k, rows_q};
use crate::params::CombineParams;
use crate::ptx::math::{fma, max};
use crate::ptx::{barrier, global, shared, shuffle, spec, special};
use crate::tile::element::Element;
use crate::tile::global::GlobalRows;

const THREADS: u32 = config::combine().threads;
const WARPS: u32 = THREADS / 32;
/// Columns of a lane, side by side, in each piece of 128.
const LANE_COLUMNS: u32 = 4;
/// Columns of a piece.
const PIECE: u32 = 32 * LANE_COLUMNS;
/// Pieces of the widest row.
const PIECES: usize = (config::COMBINE_COLUMNS / PIECE) as usize;

/// A row of one head.
///
/// # Safety
/// The launch is as [`config::combine`] says, with a block for every row of lse; tensors are as [`CombineParams`] says.
#[inline(always)]
pub unsafe fn combine<E: Element>(p: &CombineParams) {
    let idx = special::block_idx_x();
    let head = divide(idx, p.rows_q);
    let row = idx - head * p.rows_q;
    let (batch_idx, head_idx) = batch_and_head(head, p.shape.heads_q);
    // SAFETY: the caller's contract; all threads of the block take the same way.
    unsafe {
        let Some(seqlen_k) = seqlen_k(p, batch_idx, row) else {
            return;
        };
        let n = n_splits(seqlen_k, p.split.keys);
        let most = most_of_block(largest(p, idx, n));
        let sums = merge(p, idx, n, most);
        if special::thread_idx_x() >= 32 {
            return;
        }
        let inverse = inverse(sums.weight);
        let o = GlobalRows::new(&p.o, batch_idx, head_idx, 0);
        for piece in 0..PIECES {
            let column = piece as u32 * PIECE + special::lane_idx() * LANE_COLUMNS;
            let x = sums.o[piece].map(|x| x * inverse);
            let packed = [E::pack(x[0], x[1]), E::pack(x[2], x[3])];
            let address = o.chunk(row, 0) + u64::from(column) * 2;
            global::st_global_x2_if(address, packed, column < p.shape.head_dim);
        }
        let lse = lse_of_all(sums.weight, most);
        let address = p.lse + u64::from(idx) * 4;
        global::st_global_f32_if(address, lse, special::lane_idx() == 0);
    }
}

/// Keys of the row's sequence; `None` where the row is none's, or nothing has been computed.
#[inline(always)]
unsafe fn seqlen_k(p: &CombineParams, batch_idx: u32, row: u32) -> Option<u32> {
    if !spec::lengths() {
        return Some(p.shape.seqlen_k);
    }
    // SAFETY: the caller's contract: the list has been made, and lengths are there.
    unsafe {
        if n_listed(p.list.tiles) == 0 {
            return None;
        }
        let sequence = if p.list.packed_q == 1 {
            packed_sequence(p, row)
        } else {
            batch_idx
        };
        let Rows { first, len } = rows_q(&p.lengths, &p.shape, sequence);
        // Not `&&`: one branch for the block.
        let is_its = (row >= first) & (row < first + len);
        is_its.then(|| rows_k(&p.lengths, &p.shape, sequence).len)
    }
}

/// The last of the packed sequences that begins at the row or before it.
#[inline(always)]
unsafe fn packed_sequence(p: &CombineParams, row: u32) -> u32 {
    let (mut low, mut high) = (0, p.shape.batch);
    while low + 1 < high {
        let middle = (low + high) / 2;
        // SAFETY: the sequence exists.
        if unsafe { rows_q(&p.lengths, &p.shape, middle) }.first <= row {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// L of a split.
#[inline(always)]
unsafe fn lse_of(p: &CombineParams, idx: u32, split: u32) -> f32 {
    let row = u64::from(split) * p.split.rows + u64::from(idx);
    // SAFETY: the caller's contract: the split has been written.
    unsafe { global::ld_global_f32(p.split.lse + row * 4) }
}

/// The largest L among a thread's splits.
#[inline(always)]
unsafe fn largest(p: &CombineParams, idx: u32, n: u32) -> f32 {
    let mut largest = f32::NEG_INFINITY;
    let mut split = special::thread_idx_x();
    while split < n {
        // SAFETY: the split exists.
        largest = max(largest, unsafe { lse_of(p, idx, split) });
        split += THREADS;
    }
    largest
}

/// The largest of the block's.
#[inline(always)]
unsafe fn most_of_block(own: f32) -> f32 {
    let (base, lane) = (special::shared_base(), special::lane_idx());
    let mut most = own;
    // SAFETY: all threads come here; shared memory has room for a word of each warp.
    unsafe {
        for mask in [16, 8, 4, 2, 1] {
            most = max(most, shuffle::shuffle_bfly_f32(most, mask));
        }
        if lane == 0 {
            shared::st_shared_f32(base + special::thread_idx_x() / 32 * 4, most);
        }
        barrier::barrier_sync_all();
        for warp in 0..WARPS {
            most = max(most, shared::ld_shared_f32(base + warp * 4));
        }
        // The place is written again.
        barrier::barrier_sync_all();
    }
    most
}

/// A lane's columns of Σ w_s O_s, and Σ w_s.
struct Sums {
    o: [[f32; LANE_COLUMNS as usize]; PIECES],
    weight: f32,
}

/// The sums over all splits, in warp 0; in the others something else.
#[inline(always)]
unsafe fn merge(p: &CombineParams, idx: u32, n: u32, most: f32) -> Sums {
    let (warp, lane) = (special::thread_idx_x() / 32, special::lane_idx());
    let mut sums = Sums {
        o: [[0.0; LANE_COLUMNS as usize]; PIECES],
        weight: 0.0,
    };
    let mut split = warp;
    // SAFETY: the caller's contract; all threads come to the barrier.
    unsafe {
        while split < n {
            let lse = lse_of(p, idx, split);
            let weight = weight(lse, most);
            sums.weight += weight;
            let row = u64::from(split) * p.split.rows + u64::from(idx);
            let row = p.split.o + row * u64::from(p.shape.head_dim) * 4;
            for piece in 0..PIECES {
                let column = piece as u32 * PIECE + lane * LANE_COLUMNS;
                if column < p.shape.head_dim {
                    let o = global::ld_global_f32x4(row + u64::from(column) * 4);
                    let sum = &mut sums.o[piece];
                    *sum = [0, 1, 2, 3].map(|i| fma(weight, o[i], sum[i]));
                }
            }
            split += WARPS;
        }
        // What a lane has of a piece, 16 bytes for each lane side by side; then the weights.
        let piece_at = |warp: u32, piece: usize| {
            special::shared_base() + ((warp * PIECES as u32 + piece as u32) * 32 + lane) * 16
        };
        let weight_at = |warp: u32| {
            special::shared_base() + (WARPS * PIECES as u32 * LANE_COLUMNS + warp) * 128 + lane * 4
        };
        for piece in 0..PIECES {
            shared::st_shared_x4(piece_at(warp, piece), sums.o[piece].map(f32::to_bits));
        }
        shared::st_shared_f32(weight_at(warp), sums.weight);
        barrier::barrier_sync_all();
        for other in 1..WARPS {
            for piece in 0..PIECES {
                let x = shared::ld_shared_x4(piece_at(other, piece)).map(f32::from_bits);
                let sum = &mut sums.o[piece];
                *sum = [0, 1, 2, 3].map(|i| sum[i] + x[i]);
            }
            sums.weight += shared::ld_shared_f32(weight_at(other));
        }
    }
    sums
}

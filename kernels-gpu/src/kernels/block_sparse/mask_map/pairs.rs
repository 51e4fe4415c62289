//! Blocks that intervals leave open, decided pair by pair: a warp evaluates the mask at all pairs of a block, until it has found one that is hidden and one
//! that is shown.

use ferroflash_expression::interval::Truth;

use super::{Task, map_task, state};
use crate::attention::score::{ScoreRows, ScoreTile};
use crate::params::{MAP_THREADS, MaskMapParams, PARTIAL_BLOCK, Scale};
use crate::ptx::{global, score, shuffle, special};

/// Queries that a warp evaluates at a time: two rows of each thread.
const ROWS: u32 = 16;
/// Blocks of a warp: as many as a word has bytes.
const BLOCKS: u32 = 32 / MAP_THREADS;

/// Finds the bytes of the blocks that are open: all, if there is no program.
///
/// # Safety
/// As [`mask_map`](super::mask_map), with [`MAP_THREADS`] threads for each block of the map. If there is a program, an earlier launch has
/// written the map.
#[inline(always)]
pub(super) unsafe fn settle(p: &MaskMapParams) {
    const { assert!(BLOCKS as usize == size_of::<u32>()) };
    let thread = super::THREADS * special::block_idx_x() + special::thread_idx_x();
    let first = thread / 32 * BLOCKS;
    if first >= super::n_blocks(p) {
        return;
    }
    let address = p.map.map + u64::from(first);
    let is_first_lane = special::lane_idx() == 0;
    let mut word = const { u32::from_le_bytes([PARTIAL_BLOCK; BLOCKS as usize]) };
    // SAFETY: the caller's contract; the map has room for the last four bytes, and the earlier launch has written them.
    unsafe {
        if is_first_lane && p.program.end > 0 {
            word = global::ld_global_u32(address);
        }
        word = shuffle::shuffle_idx_u32(word, 0);
    }
    let mut block = 0;
    while block < BLOCKS {
        let shift = 8 * block;
        if word >> shift & 0xff == u32::from(PARTIAL_BLOCK) {
            let task = map_task(p, first + block);
            let truth = match &task {
                // SAFETY: the caller's contract; the block is the same for all lanes.
                Some(task) => unsafe { truth_of_pairs(p, task) },
                None => Truth::Unknown,
            };
            word = word & !(0xff << shift) | u32::from(state(p, task, truth)) << shift;
        }
        // Unrolled, the loop would have the mask's text, which may be long, several times.
        block = special::opaque(block + 1);
    }
    if is_first_lane {
        // SAFETY: as above; what this lane writes it alone has read.
        unsafe { global::st_global_u32(address, word) };
    }
}

/// The mask at all pairs of a block.
///
/// # Safety
/// As [`settle`]; the block is the same for all lanes.
#[inline(always)]
unsafe fn truth_of_pairs(p: &MaskMapParams, task: &Task) -> Truth {
    let lane = special::lane_idx();
    let (mut any, mut all) = (false, true);
    let mut q = task.q.0;
    while q <= task.q.1 && (!any || all) {
        let (shown, hidden) = rows(p, task, q + lane / 4, task.k.0 + lane % 4 * 2);
        // SAFETY: the caller's contract; rows are the same for all lanes.
        unsafe {
            any |= shuffle::vote_any(shown);
            all &= !shuffle::vote_any(hidden);
        }
        // As above.
        q = special::opaque(q + ROWS);
    }
    match (any, all) {
        (false, _) => Truth::False,
        (true, true) => Truth::True,
        (true, false) => Truth::Unknown,
    }
}

/// Whether the mask shows any of a thread's pairs, in two rows and the block's columns from the thread's first on, and whether it hides any.
#[inline(always)]
fn rows(p: &MaskMapParams, task: &Task, row: u32, first_column: u32) -> (bool, bool) {
    let tile = ScoreTile {
        batch: task.batch,
        head: task.head,
        kv_head: crate::attention::divide(task.head, p.shape.group_size),
        seqlen_q: p.shape.seqlen_q,
        seqlen_k: p.shape.seqlen_k,
        rows: [row, row + ROWS / 2],
    };
    let scale = Scale::default();
    score::score_tile(&p.score, &scale, ScoreRows::Queries, tile);
    score::score_block(first_column);
    let (mut any, mut all) = (false, true);
    for n in 0..score::MOST_FRAGMENTS {
        let shows = score::shows(n);
        for idx in 0..4 {
            let column = first_column + 8 * n as u32 + idx as u32 % 2;
            // What lies beyond the sequences is neither.
            if tile.rows[idx / 2] <= task.q.1 && column <= task.k.1 {
                any |= shows[idx];
                all &= shows[idx];
            }
        }
    }
    (any, !all)
}

const _: () = assert!(score::MOST_FRAGMENTS as u32 * 8 == super::ROWS);

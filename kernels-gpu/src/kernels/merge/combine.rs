//! Merges the results of the splits of a sequence's keys, if the tiles themselves have not: see [`crate::attention::split_kv`]. The
//! arithmetic stands in `partial.rs`.
//!
//! A warp takes one row of one head.

use super::partial::{PIECE, SplitRow};
use crate::attention::batch_and_head;
use crate::attention::divide;
use crate::attention::mask::Rows;
use crate::attention::split_kv::n_splits;
use crate::config;
use crate::kernels::varlen::{n_listed, rows_k, rows_q, split_keys};
use crate::params::CombineParams;
use crate::ptx::{global, shuffle, spec, special};
use crate::tile::element::Element;
use crate::tile::global::GlobalRows;

const ROWS: u32 = config::combine().block_q;
/// Pieces of most rows.
const PIECES: usize = (config::COMBINE_COLUMNS / PIECE) as usize;

/// A row of one head for each warp.
///
/// # Safety
/// The launch is as [`config::combine`] says, with a warp for every row of lse; tensors are as [`CombineParams`] says.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub unsafe fn combine<E: Element>(p: &CombineParams) {
    // SAFETY: the caller's contract; all lanes of a warp take the same way.
    unsafe {
        let warp = shuffle::shuffle_idx_u32(special::thread_idx_x() / 32, 0);
        let idx = special::block_idx_x() * ROWS + warp;
        if u64::from(idx) < p.split.rows
            && let Some(row) = SplitQuery::new(p, idx)
        {
            if p.shape.head_dim_v <= config::COMBINE_COLUMNS {
                row.merge::<E, PIECES, 8>(p);
            } else {
                row.merge::<E, { 2 * PIECES }, 4>(p);
            }
        }
    }
}

/// A row of lse whose splits are merged: a query of one head.
#[derive(Clone, Copy)]
pub struct SplitQuery {
    /// Which row of lse.
    pub(crate) idx: u32,
    /// The head, heads of all batch entries counted together.
    pub(crate) head: u32,
    /// The row of q, of the batch entry or of all sequences together.
    pub(crate) row: u32,
    /// The rows of q of its sequence.
    pub(crate) sequence: Rows,
    /// How many splits the sequence has.
    pub(crate) n: u32,
}

impl SplitQuery {
    /// The `idx`-th row of lse; `None` where the row is no sequence's, nothing has been computed, or there is nothing to merge.
    ///
    /// # Safety
    /// Lengths and the list, if there are any, are as [`CombineParams`] says.
    #[inline(always)]
    pub(crate) unsafe fn new(p: &CombineParams, idx: u32) -> Option<SplitQuery> {
        let head = divide(idx, p.rows_q);
        let row = idx - head * p.rows_q;
        let (batch_idx, _) = batch_and_head(head, p.shape.heads_q);
        // SAFETY: the caller's contract.
        let ((sequence, seqlen_k), split_keys) = unsafe {
            (
                sequence_of(p, batch_idx, row)?,
                split_keys(&p.split, &p.list),
            )
        };
        let n = n_splits(seqlen_k, split_keys);
        // Its tile has written it.
        let is_whole = (n == 1) & (p.split.whole_tiles == 1);
        (!is_whole).then_some(SplitQuery {
            idx,
            head,
            row,
            sequence,
            n,
        })
    }

    /// Writes its O and L over all splits: see [`SplitRow::merge_to`].
    ///
    /// # Safety
    /// All lanes of a warp come here with the same row. Its splits have been written, as this thread knows.
    #[inline(always)]
    pub(crate) unsafe fn merge<E: Element, const PIECES: usize, const IN_FLIGHT: usize>(
        self,
        p: &CombineParams,
    ) {
        let (batch_idx, head_idx) = batch_and_head(self.head, p.shape.heads_q);
        let splits = SplitRow {
            split: &p.split,
            row: u64::from(self.idx),
            n: self.n,
            head_dim: p.shape.head_dim_v,
            sinks: p.sinks,
            head_idx,
        };
        let target = GlobalRows::new(&p.o, batch_idx, head_idx, 0).chunk(self.row, 0);
        // SAFETY: the caller's contract.
        unsafe {
            let lse = splits.merge_to::<E, PIECES, IN_FLIGHT>(target);
            let address = p.lse + u64::from(self.idx) * 4;
            global::st_global_f32_if(address, lse, special::lane_idx() == 0);
        }
    }
}

/// The rows of q of a row's sequence, and how many keys it has; `None` as [`SplitQuery::new`] says.
#[inline(always)]
unsafe fn sequence_of(p: &CombineParams, batch_idx: u32, row: u32) -> Option<(Rows, u32)> {
    if !spec::lengths() {
        let all = Rows {
            first: 0,
            len: p.shape.seqlen_q,
        };
        return Some((all, p.shape.seqlen_k));
    }
    // SAFETY: the caller's contract: the list has been made, and lengths are there.
    unsafe {
        if p.list.tiles != 0 && n_listed(p.list.tiles) == 0 {
            return None;
        }
        let sequence = if p.list.packed_q == 1 {
            packed_sequence(p, row)
        } else {
            batch_idx
        };
        let rows = rows_q(&p.lengths, &p.shape, sequence);
        // Not `&&`: one branch for the warp.
        let is_its = (row >= rows.first) & (row < rows.first + rows.len);
        is_its.then(|| (rows, rows_k(&p.lengths, &p.shape, sequence).len))
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

//! Which tile a block works on, and on which of its keys.

use super::ROWS;
use super::share::Share;
use crate::attention::divisor::Divisor;
use crate::attention::mask::{Band, Rows};
use crate::attention::{batch_and_head, divide};
use crate::kernels::lengths;
use crate::params::ForwardParams;
use crate::ptx::{spec, special};

/// A block's tile, and the split of its keys.
#[derive(Clone, Copy)]
pub struct Tile {
    pub(super) sequence: u32,
    pub(super) kv_head_idx: u32,
    /// Its number among the tiles that share a sequence and a KV head.
    pub(super) idx: u32,
    /// How many of these there are.
    pub(super) n: u32,
    pub(super) split: u32,
    /// How many splits the sequence has, and the keys of each.
    pub(super) n_splits: u32,
    split_keys: u32,
    pub(super) rows_q: Rows,
    pub(super) rows_k: Rows,
}

/// Where one of a tile's rows stands.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// The head, among all heads of q.
    pub(super) head_idx: u32,
    /// The query of the sequence.
    pub(super) query: u32,
}

/// Quotient and remainder of a division by `n`, for which there is a divisor where sequences have lengths of their own.
#[inline(always)]
fn divide_by(idx: u32, n: u32, divisor: Divisor) -> (u32, u32) {
    if spec::lengths() {
        divisor.divide(idx)
    } else {
        batch_and_head(idx, n)
    }
}

impl Tile {
    /// The block's; `None` where there are not so many splits.
    ///
    /// # Safety
    /// All lanes of the warp come here; the lengths are as the parameters say.
    #[inline(always)]
    pub(super) unsafe fn of_block(p: &ForwardParams) -> Option<Tile> {
        let shape = &p.shape;
        let n = divide(shape.seqlen_q * shape.group_size + ROWS - 1, ROWS);
        // Blocks of neighbouring KV heads follow one another: together they read whole rows of memory.
        let (kv_head_idx, idx, share, rows_q) = if spec::lengths() {
            let (rest, kv_head_idx) = p.divisors.heads_k.divide(special::block_idx_x());
            let (rest, idx) = p.divisors.tiles.divide(rest);
            // SAFETY: the caller's contract; the sequence exists.
            unsafe {
                let share = if spec::split_kv() && p.split.parts > 0 {
                    Share::find(p, shape.heads_k * n, rest)?
                } else {
                    let (split, sequence) = batch_and_head(rest, shape.batch);
                    let rows_k = lengths::rows_k(&p.lengths, shape, sequence);
                    Share::of_equal_splits(p, sequence, split, rows_k)
                };
                let rows_q = lengths::rows_q(&p.lengths, shape, share.sequence);
                (kv_head_idx, idx, share, rows_q)
            }
        } else {
            let (rest, kv_head_idx) = batch_and_head(special::block_idx_x(), shape.heads_k);
            let (rest, idx) = batch_and_head(rest, n);
            let (split, sequence) = batch_and_head(rest, shape.batch);
            let all = |len| Rows { first: 0, len };
            let share = Share::of_equal_splits(p, sequence, split, all(shape.seqlen_k));
            (kv_head_idx, idx, share, all(shape.seqlen_q))
        };
        let Share {
            sequence,
            split,
            n_splits,
            split_keys,
            rows_k,
        } = share;
        (split < n_splits).then_some(Tile {
            sequence,
            kv_head_idx,
            idx,
            n,
            split,
            n_splits,
            split_keys,
            rows_q,
            rows_k,
        })
    }

    /// Of one of the tile's rows; its query may be one that the sequence does not have.
    #[inline(always)]
    pub(super) fn place(&self, p: &ForwardParams, row: u32) -> Place {
        let (query, in_group) = divide_by(
            self.idx * ROWS + row,
            p.shape.group_size,
            p.divisors.group_size,
        );
        Place {
            head_idx: self.kv_head_idx * p.shape.group_size + in_group,
            query,
        }
    }

    /// Chunks of keys that the tile's queries see in its split: the first, and one past the last.
    #[inline(always)]
    pub(super) fn chunks(&self, p: &ForwardParams, band: &Band) -> (u32, u32) {
        let last = band.seqlen_q() - 1;
        let (first, end) = (self.place(p, 0).query, self.place(p, ROWS - 1).query);
        let end = if end < last { end } else { last };
        let (mut first, mut end) = (band.first_key(first), band.end_key(end));
        if spec::split_kv() {
            let begin = self.split * self.split_keys;
            // Whatever the length of a split, the sequence's end comes first.
            let behind = begin.saturating_add(self.split_keys);
            first = if first > begin { first } else { begin };
            end = if end < behind { end } else { behind };
        }
        let (first, end) = (first / ROWS, end.div_ceil(ROWS));
        (first, if end > first { end } else { first })
    }
}

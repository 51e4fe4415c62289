//! Block masks: which blocks of the scores are hidden, which ones the mask decides, which are visible.
//!
//! A step of this backend takes keys of a single block: both sizes of a block are multiples of a step's. Its rows may belong to several blocks, and
//! with a map for each head neighbouring rows have different maps.

use std::ops::Range;

use ferroflash_kernels::params::{HIDDEN_BLOCK, PARTIAL_BLOCK};

use super::buffer::Panel;
use super::mask::hide_keys_from_lanes;
use super::sizes::Location;
use crate::arguments::{Argument, Operands};
use crate::problem::Problem;

/// The map of a problem.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockMap<'m> {
    bytes: &'m [u8],
    /// Bytes from one batch entry to the next; 0 if they share one map.
    batch_stride: usize,
    /// Bytes from one query head to the next; 0 if they share one map.
    head_stride: usize,
    k_blocks: usize,
    block_q: usize,
    block_k: usize,
}

/// What the map says of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Block {
    Hidden,
    ByMask,
    Full,
}

/// What the map says of the pairs of a piece of the scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    All(Block),
    Mixed,
}

impl<'m> BlockMap<'m> {
    /// The block mask of a call, if it has one.
    pub(super) fn of(problem: &Problem, operands: &Operands<'m>) -> Option<BlockMap<'m>> {
        let blocks = problem.block_mask()?;
        let [batch, heads, q_blocks, k_blocks] = problem.block_mask_shape()?;
        let of_head = q_blocks * k_blocks;
        let stride = |n: usize, elems: usize| if n > 1 { elems } else { 0 };
        Some(BlockMap {
            bytes: operands.numbers(Argument::BlockMask)?,
            batch_stride: stride(batch, heads * of_head),
            head_stride: stride(heads, of_head),
            k_blocks,
            block_q: blocks.block_q(),
            block_k: blocks.block_k(),
        })
    }

    fn block(&self, batch_idx: usize, head: usize, query: usize, key: usize) -> Block {
        let row = query / self.block_q * self.k_blocks;
        let of_head = batch_idx * self.batch_stride + head * self.head_stride;
        match self.bytes[of_head + row + key / self.block_k] {
            HIDDEN_BLOCK => Block::Hidden,
            PARTIAL_BLOCK => Block::ByMask,
            _ => Block::Full,
        }
    }
}

impl Location<'_> {
    /// What the map says of a row of the group and a key.
    fn block(&self, row: usize, key: usize) -> Block {
        let group_size = self.sequence.sizes.group_size;
        self.blocks.map_or(Block::ByMask, |map| {
            let head = self.first_head + row % group_size;
            map.block(self.sequence.q.batch_idx, head, row / group_size, key)
        })
    }

    /// What it says of some rows and the keys of one block.
    fn piece(&self, rows: &Range<usize>, key: usize) -> Piece {
        let first = self.block(rows.start, key);
        let differs = |row| self.block(row, key) != first;
        if self.blocks.is_some() && rows.clone().any(differs) {
            Piece::Mixed
        } else {
            Piece::All(first)
        }
    }

    /// Keys that these rows may see, from a multiple of `step` on: so sums do not depend on where a task begins.
    pub(super) fn keys(&self, rows: &Range<usize>, step: usize) -> Range<usize> {
        let sizes = &self.sequence.sizes;
        match self.blocks {
            None => sizes.first_key(rows.start) / step * step..sizes.end_key(rows.end - 1),
            Some(_) => 0..sizes.seqlen_k,
        }
    }

    /// The keys of one block that a step of these rows takes: none if all are hidden.
    pub(super) fn keys_of_step(&self, rows: &Range<usize>, keys: &Range<usize>) -> Range<usize> {
        let sizes = &self.sequence.sizes;
        let none = keys.start..keys.start;
        match self.piece(rows, keys.start) {
            Piece::All(Block::Hidden) => none,
            Piece::All(Block::ByMask) => {
                let end = sizes.end_key(rows.end - 1).min(keys.end);
                if end <= sizes.first_key(rows.start) {
                    none
                } else {
                    keys.start..end
                }
            }
            Piece::All(Block::Full) | Piece::Mixed => keys.clone(),
        }
    }

    /// Writes −∞ where a row does not see a key. Rows are in the lanes, and key `keys.start + i` in row `i` of the scores.
    pub(super) fn hide_keys(&self, s: &mut Panel, rows: &Range<usize>, keys: Range<usize>) {
        let sizes = &self.sequence.sizes;
        match self.piece(rows, keys.start) {
            Piece::All(Block::ByMask) => hide_keys_from_lanes(sizes, s, rows.start, keys),
            Piece::All(Block::Full) => {}
            Piece::All(Block::Hidden) | Piece::Mixed => {
                for (lane, row) in rows.clone().enumerate() {
                    let seen = match self.block(row, keys.start) {
                        Block::Hidden => 0..0,
                        Block::ByMask => sizes.first_key(row)..sizes.end_key(row),
                        Block::Full => keys.clone(),
                    };
                    for key in keys.clone().filter(|key| !seen.contains(key)) {
                        s.row_mut(key - keys.start)[lane] = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }

    /// Rows that may see one of these keys.
    pub(super) fn rows(&self, keys: &Range<usize>) -> Range<usize> {
        let sizes = &self.sequence.sizes;
        match self.blocks {
            None => sizes.first_row(keys.start)..sizes.end_row(keys.end - 1),
            Some(_) => 0..sizes.rows_per_group(),
        }
    }

    /// The first of these rows, with what follows them of the same kind, for a step with the keys of one block; `rows` keeps the rest. `None` if all are hidden.
    pub(super) fn rows_of_step(
        &self,
        rows: &mut Range<usize>,
        keys: &Range<usize>,
    ) -> Option<(Range<usize>, Block)> {
        let sizes = &self.sequence.sizes;
        while rows.start < rows.end {
            let block = self.block(rows.start, keys.start);
            let same = |&row: &usize| self.block(row, keys.start) == block;
            let run = match self.blocks {
                None => rows.clone(),
                Some(_) => rows.start..rows.clone().find(|row| !same(row)).unwrap_or(rows.end),
            };
            rows.start = run.end;
            let run = match block {
                Block::Hidden => continue,
                Block::ByMask => run.start.max(sizes.first_row(keys.start))..run.end,
                Block::Full => run,
            };
            if !run.is_empty() {
                return Some((run, block));
            }
        }
        None
    }
}

//! What a block of threads does next, as its producer tells the other roles.

use crate::attention::divide;
use crate::attention::schedule::{BackwardTile, Direction, QueryHeads, Shares};
use crate::params::BackwardParams;
use crate::ptx::spec;

/// A tile of keys, as the producer tells the others of it.
#[derive(Clone, Copy)]
pub(super) struct WorkTile {
    pub(super) tile: BackwardTile,
    /// How many query blocks it meets, of all query heads together; at least 1.
    pub(super) steps: u32,
}

/// The head of k and v, given a share of the query heads: see [`BackwardParams::n_shares`].
#[inline(always)]
pub(super) fn kv_head(p: &BackwardParams, head_idx: u32) -> u32 {
    if spec::shares() {
        divide(head_idx, p.n_shares)
    } else {
        head_idx
    }
}

/// The query heads that a tile of this KV head, or of this share of one, meets.
#[inline(always)]
pub(super) fn query_heads(p: &BackwardParams, head_idx: u32) -> QueryHeads {
    let heads = p.shape.group_size;
    if spec::shares() {
        let shares = Shares {
            n: p.n_shares,
            n_larger: p.n_larger_shares,
            heads,
        };
        shares.query_heads(head_idx)
    } else {
        QueryHeads {
            first: head_idx * heads,
            n: heads,
        }
    }
}

/// Rows of dQ to which all tiles have added: [`converted_rows`] of them are converted at once.
#[derive(Clone, Copy)]
pub(super) struct DqRows {
    /// Which of the head's.
    pub(super) block: u32,
    /// Which (batch, query head).
    pub(super) head: u32,
}

/// What a block of threads does next, as the words of a slot: three numbers and what they mean. An enum with fields would be taken
/// apart and put together again in every role.
#[derive(Clone, Copy)]
pub(super) struct Work {
    /// The tile of keys; of a conversion, which of the head's rows.
    block: u32,
    head: u32,
    steps: u32,
    kind: u32,
}

/// [`Work`]: all steps of a tile of keys, from its last query block down.
const DOWN: u32 = 0;
/// [`Work`]: the same, from its first query block up.
const UP: u32 = 1;
/// [`Work`]: f32 rows of dQ to the output type.
const CONVERT: u32 = 2;
/// [`Work`]: nothing more.
const END: u32 = 3;

impl Work {
    /// All steps of a tile of keys.
    #[inline(always)]
    pub(super) fn key_tile(work: WorkTile) -> Work {
        let WorkTile { tile, steps } = work;
        let kind = match tile.direction {
            Direction::Down => DOWN,
            Direction::Up => UP,
        };
        Work {
            block: tile.k_block,
            head: tile.head,
            steps,
            kind,
        }
    }

    /// Rows of dQ to be converted.
    #[inline(always)]
    pub(super) fn convert(rows: DqRows) -> Work {
        Work {
            block: rows.block,
            head: rows.head,
            steps: 0,
            kind: CONVERT,
        }
    }

    /// Nothing more.
    pub(super) const END: Work = Work {
        block: 0,
        head: 0,
        steps: 0,
        kind: END,
    };

    /// As a slot holds it.
    #[inline(always)]
    pub(super) fn words(self) -> [u32; 4] {
        [self.block, self.head, self.steps, self.kind]
    }

    /// From a slot.
    #[inline(always)]
    pub(super) fn from_words([block, head, steps, kind]: [u32; 4]) -> Work {
        Work {
            block,
            head,
            steps,
            kind,
        }
    }

    /// Whether there is nothing more.
    #[inline(always)]
    pub(super) fn is_end(self) -> bool {
        self.kind == END
    }

    /// Whether rows of dQ are to be converted.
    #[inline(always)]
    pub(super) fn is_conversion(self) -> bool {
        self.kind == CONVERT
    }

    /// The rows of a conversion.
    #[inline(always)]
    pub(super) fn rows(self) -> DqRows {
        DqRows {
            block: self.block,
            head: self.head,
        }
    }

    /// The tile of keys, where it is one.
    #[inline(always)]
    pub(super) fn tile(self) -> WorkTile {
        let direction = if self.kind == UP {
            Direction::Up
        } else {
            Direction::Down
        };
        let tile = BackwardTile {
            k_block: self.block,
            head: self.head,
            direction,
        };
        WorkTile {
            tile,
            steps: self.steps,
        }
    }
}

//! The positions of scores that an expression edits: see [`crate::spec::Constant::Score`].

use super::divide;

pub use ferroflash_expression::{RowTerms, ScoreRows};

/// The position of a tile of scores.
#[derive(Clone, Copy)]
pub struct ScoreTile {
    /// The sequence.
    pub batch: u32,
    /// The query head.
    pub head: u32,
    /// The head of keys and values.
    pub kv_head: u32,
    /// Queries of the sequence.
    pub seqlen_q: u32,
    /// Keys of the sequence.
    pub seqlen_k: u32,
    /// The thread's rows.
    pub rows: [u32; 2],
}

impl ScoreTile {
    /// The tile of a sequence and a query head, with `group_size` heads of q for one of k, whose first row of the thread is this one; sequences have
    /// this many rows of q and k.
    #[inline(always)]
    pub fn new(
        batch: u32,
        head: u32,
        group_size: u32,
        [seqlen_q, seqlen_k]: [u32; 2],
        row: u32,
    ) -> ScoreTile {
        ScoreTile {
            batch,
            head,
            kv_head: divide(head, group_size),
            seqlen_q,
            seqlen_k,
            rows: [row, row + 8],
        }
    }

    /// The tile this many rows below.
    #[inline(always)]
    pub const fn below(self, rows: u32) -> ScoreTile {
        ScoreTile {
            rows: [self.rows[0] + rows, self.rows[1] + rows],
            ..self
        }
    }
}

//! Where scores lie that an expression edits: see [`crate::spec::Constant::Score`].

/// Where a tile of scores lies.
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
    /// The tile so many rows below.
    #[inline(always)]
    pub const fn below(self, rows: u32) -> ScoreTile {
        ScoreTile {
            rows: [self.rows[0] + rows, self.rows[1] + rows],
            ..self
        }
    }
}

/// Which index of a score a thread's rows are; the other one runs along its columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScoreRows {
    /// Queries: forward kernels.
    Queries,
    /// Keys: backward kernels whose tiles are of keys.
    Keys,
}

/// Where the part of an edited score goes that is the same for all of a row's columns in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowTerms {
    /// Into each score.
    InScores,
    /// To the row's reference ([`crate::tile::softmax`]), by [`crate::ptx::score::with_row_terms`] and
    /// [`crate::ptx::score::without_row_terms`]. A warp's rows lie in one fragment then.
    Apart,
}

//! What a rotary position embedding is told: which elements form pairs, and where rows stand.

use std::fmt;

/// The most elements of a row that are rotated: many times what any model has.
///
/// The [module](crate::rotary) has an example.
pub const MAX_ROTARY_DIM: usize = 1 << 16;

/// Which elements of a row form pair i.
///
/// The [module](crate::rotary) has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pairs {
    /// i and i + rotary_dim / 2: Llama as transformers and candle have it, GPT-NeoX.
    Halves,
    /// 2i and 2i + 1: the paper, GPT-J, Llama as Meta wrote it.
    Interleaved,
}

/// At which positions the rows of a tensor stand.
///
/// The [module](crate::rotary) has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positions<'a> {
    /// Row i of every batch entry at this position plus i.
    From(usize),
    /// The same with a first position for each batch entry: `[batch]`, such as the lengths of a cache.
    FromEach(&'a [i32]),
    /// Each row where this says: `[batch · seqlen]`, of packed rows `[total]`.
    OfRows(&'a [i32]),
}

/// Which rows are rotated, and how far the tables of cosines and sines go.
///
/// The [module](crate::rotary) has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Turns {
    /// Which elements form pairs.
    pub pairs: Pairs,
    /// How many elements of a row are rotated, from the first on: even, at most head_dim.
    pub rotary_dim: usize,
    /// Positions that the tables have. Both are f32 `[n_positions, rotary_dim / 2]`, row-major.
    pub n_positions: usize,
}

impl Turns {
    /// Elements of each table; as many as 64 bits count where there are more.
    pub fn table_elems(&self) -> u64 {
        (self.n_positions as u64).saturating_mul(self.rotary_dim as u64 / 2)
    }
}

/// `halves 64 of 4096 positions`.
impl fmt::Display for Turns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs = match self.pairs {
            Pairs::Halves => "halves",
            Pairs::Interleaved => "interleaved",
        };
        write!(
            f,
            "{pairs} {} of {} positions",
            self.rotary_dim, self.n_positions
        )
    }
}

/// Which way rows are rotated.
///
/// The [module](crate::rotary) has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// By the angle of their position: the forward pass.
    Forth,
    /// By the negative angle: the backward pass, which gives the gradient of the rows from that of the turned ones.
    Back,
}

/// At which positions the queries of an append stand, of a sequence with so many rows in its cache before.
///
/// The [module](crate::rotary) has an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum QueryPositions {
    /// Query i at the position of new key i, `seqused_k + i`: for causal masks and windows.
    #[default]
    Ascending,
    /// Every query at the position of the first new key, `seqused_k`: FlashAttention's `flash_attn_with_kvcache` without a causal mask and
    /// without a window.
    First,
}

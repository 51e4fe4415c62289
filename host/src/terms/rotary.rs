//! What a rotary position embedding is told: which elements form pairs, and where rows stand.

/// The most elements of a row that are turned: many times what any model has.
pub const MAX_ROTARY_DIM: usize = 1 << 16;

/// Which elements of a row form pair i.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pairs {
    /// i and i + rotary_dim / 2: Llama as transformers and candle have it, GPT-NeoX.
    Halves,
    /// 2i and 2i + 1: the paper, GPT-J, Llama as Meta wrote it.
    Interleaved,
}

/// At which positions the rows of a tensor stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positions<'a> {
    /// Row i of every batch entry at this position plus i.
    From(usize),
    /// The same with a first position for each batch entry: `[batch]`, such as the lengths of a cache.
    FromEach(&'a [i32]),
    /// Each row where this says: `[batch · seqlen]`, of packed rows `[total]`.
    OfRows(&'a [i32]),
}

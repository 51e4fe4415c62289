//! Which scores a thread has whose expression is evaluated, and how a tensor is given that it reads.

/// Most tensors that an expression reads.
pub const MAX_TENSORS: usize = 4;
/// Most parameters of an expression.
pub const MAX_PARAMS: usize = 16;
/// Most dimensions of a tensor that an expression reads.
pub const MAX_RANK: usize = 4;
/// The greatest place of a query or a key, length of a sequence, and batch entry: sums of three of them fit 31 bits.
pub const MAX_INDEX: u32 = 1 << 29;

/// A tensor that an expression reads.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ScoreTensor {
    /// Address of its first element; aligned as an element is.
    pub base: u64,
    /// How many elements each dimension has; at least 1, and 1 behind the last dimension.
    pub len: [u32; MAX_RANK],
    /// Elements from one to the next of each dimension.
    pub stride: [i64; MAX_RANK],
}

const _: () = assert!(size_of::<ScoreTensor>() == 8 + 4 * 4 + 4 * 8);

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
    /// To the row's reference, which the kernel changes by what each row has in common. A warp's rows lie in one fragment then.
    Apart,
}

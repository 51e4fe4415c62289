//! The scores of a thread that evaluates an expression, and the form of a tensor that it reads.

/// Most tensors that an expression reads.
pub const MAX_TENSORS: usize = 4;
/// Most parameters of an expression.
pub const MAX_PARAMS: usize = 16;
/// Most dimensions of a tensor that an expression reads.
pub const MAX_RANK: usize = 4;
/// The greatest position of a query or a key, length of a sequence, and batch entry: sums of three of them fit 31 bits.
pub const MAX_INDEX: u32 = 1 << 29;

/// A tensor that an expression reads.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ScoreTensor {
    /// Address of its first element; aligned as an element is.
    pub base: u64,
    /// The extent of each dimension; at least 1, and 1 beyond the last dimension.
    pub len: [u32; MAX_RANK],
    /// The stride of each dimension in elements.
    pub stride: [i64; MAX_RANK],
}

const _: () = assert!(size_of::<ScoreTensor>() == 8 + 4 * 4 + 4 * 8);

/// Whether a thread's rows are queries or keys; its columns are the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScoreRows {
    /// Queries: forward kernels.
    Queries,
    /// Keys: backward kernels whose tiles are of keys.
    Keys,
}

/// The destination of the part of an edited score that is the same for all of a row's columns in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowTerms {
    /// Added to each score.
    InScores,
    /// Added to the row's reference by the kernel. A warp's rows are then in one fragment.
    Apart,
}

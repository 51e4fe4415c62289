//! What becomes of the blocks of scores that a mask expression hides or shows as a whole.

use std::fmt;

/// What becomes of the blocks of scores that a mask expression hides as a whole.
///
/// The [module](mod@crate::plan) has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaskBlocks {
    /// The expression is a band around the diagonal: the pass runs as under a built-in mask.
    Band,
    /// They are found before the pass, and skipped.
    Skipped,
    /// They are computed as all others are.
    Computed(Unmapped),
}

/// Why the blocks that a mask expression hides are not found before the pass.
///
/// The [module](mod@crate::plan) has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unmapped {
    /// The kernels are not for lists of blocks.
    Kernels,
    /// The problem has a block mask.
    BlockMask,
    /// Sequences have lengths of their own, or pages.
    Lengths,
    /// Keys are divided among tiles.
    SplitKv,
    /// There is too little to skip: finding it would take as long.
    Few {
        /// Blocks of scores that an SM computes, one after another.
        given: u64,
        /// The fewest with which it pays.
        needed: u64,
    },
    /// There are fewer queries than a block has.
    FewQueries {
        /// The queries.
        given: u64,
        /// Those of a block.
        needed: u64,
    },
    /// The map would have too many blocks.
    Many {
        /// Its blocks.
        given: u64,
        /// The most.
        most: u64,
    },
}

/// `skipped`, `computed: the problem has a block mask`.
impl fmt::Display for MaskBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MaskBlocks::Band => f.write_str("skipped: the expression is a band"),
            MaskBlocks::Skipped => f.write_str("skipped"),
            MaskBlocks::Computed(why) => write!(f, "computed: {why}"),
        }
    }
}

impl fmt::Display for Unmapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unmapped::Kernels => f.write_str("the kernels are not for lists of blocks"),
            Unmapped::BlockMask => f.write_str("the problem has a block mask"),
            Unmapped::Lengths => f.write_str("sequences have lengths of their own, or pages"),
            Unmapped::SplitKv => f.write_str("keys are divided among tiles"),
            Unmapped::Few { given, needed } => {
                write!(
                    f,
                    "an SM has {given} blocks of scores; it pays from {needed} on"
                )
            }
            Unmapped::FewQueries { given, needed } => {
                write!(f, "there are {given} queries; a block has {needed}")
            }
            Unmapped::Many { given, most } => {
                write!(f, "there are {given} blocks; a map has {most} at most")
            }
        }
    }
}

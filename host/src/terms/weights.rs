//! Chosen rows of the weights.

use std::ops::Range;

/// Which rows of the weights: of one sequence and one query head.
///
/// [`Attention::weights`](crate::Attention::weights) has an example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightsOf {
    /// Batch entry, or sequence where they are packed.
    pub batch: usize,
    /// Query head.
    pub head: usize,
    /// Queries, counted from the sequence's first one.
    pub rows: Range<usize>,
}

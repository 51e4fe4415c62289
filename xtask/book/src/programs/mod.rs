//! The algorithms of the book as plain Rust, of one head: chapters quote them, tests run them.
//!
//! | module | what it is |
//! |---|---|
//! | [`standard`] | attention by its definition |
//! | [`flash1`], [`flash2`], [`flash3`] | the schedules of the three papers |
//! | [`overlap`] | when each step of flash3 runs |
//! | [`backward`] | gradients, with P computed again |
//! | [`decode`] | keys in parts, and their merge |
//! | [`masks`] | which keys a query sees, and which blocks of keys a tile of queries meets |
//! | [`fp8`] | numbers of 8 bits, and attention with them |
//! | [`answers`] | answers to exercises |

pub mod answers;
pub mod backward;
pub mod decode;
pub mod flash1;
pub mod flash2;
pub mod flash3;
pub mod fp8;
pub mod masks;
pub mod overlap;
pub mod standard;

use std::ops::Range;

// ANCHOR: head
/// A row of a matrix with D columns.
pub type Row<const D: usize> = [f64; D];

/// One head.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a, const D: usize> {
    /// Queries.
    pub q: &'a [Row<D>],
    /// Keys.
    pub k: &'a [Row<D>],
    /// Values.
    pub v: &'a [Row<D>],
    /// The factor of the scores.
    pub scale: f64,
}

impl<const D: usize> Head<'_, D> {
    /// A row of S = scale · Q Kᵀ: the scores of query `i` with some keys.
    pub fn scores(&self, i: usize, keys: Range<usize>) -> Vec<f64> {
        let score = |k| self.scale * dot(&self.q[i], k);
        self.k[keys].iter().map(score).collect()
    }
}

/// The product of two rows: a · b.
pub fn dot<const D: usize>(a: &Row<D>, b: &Row<D>) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// sum ← sum + factor · row.
pub fn add<const D: usize>(sum: &mut Row<D>, factor: f64, row: &Row<D>) {
    for (sum, x) in sum.iter_mut().zip(row) {
        *sum += factor * x;
    }
}

/// The greatest of some numbers.
pub fn greatest(numbers: &[f64]) -> f64 {
    numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

/// The rows `0 .. n` in tiles of `size`; the last one may be shorter.
pub fn tiles(n: usize, size: usize) -> impl DoubleEndedIterator<Item = Range<usize>> {
    (0..n.div_ceil(size)).map(move |tile| tile * size..n.min((tile + 1) * size))
}
// ANCHOR_END: head

/// O, and L: the logarithms of the rows' sums of exponentials.
pub type Attended<const D: usize> = (Vec<Row<D>>, Vec<f64>);

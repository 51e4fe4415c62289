//! Masks: which keys a query sees, and which blocks of keys a tile of queries meets.

use std::ops::Range;

// ANCHOR: program
/// A mask that is a band along the diagonal.
#[derive(Clone, Copy, Debug)]
pub struct Band {
    /// Queries.
    pub seqlen_q: isize,
    /// Keys.
    pub seqlen_k: isize,
    /// How far a query sees to the left of its place; `None`: as far as there are keys.
    pub left: Option<isize>,
    /// The same to the right.
    pub right: Option<isize>,
}

impl Band {
    /// The keys that query `i` sees. The last query stands at the last key.
    pub fn keys(&self, i: isize) -> Range<isize> {
        let place = i + self.seqlen_k - self.seqlen_q;
        let first = self.left.map_or(0, |left| (place - left).max(0));
        let end = self.right.map_or(self.seqlen_k, |right| place + right + 1);
        first..end.clamp(first, self.seqlen_k.max(first))
    }

    /// `#`: every pair of the block is visible. `/`: some are, so each score is tested.
    /// `.`: none is, and nothing is loaded.
    pub fn block(&self, queries: Range<isize>, keys: Range<isize>) -> char {
        let sees = |(i, j): (isize, isize)| self.keys(i).contains(&j);
        let pairs = queries.flat_map(|i| keys.clone().map(move |j| (i, j)));
        let (seen, hidden): (Vec<_>, Vec<_>) = pairs.partition(|pair| sees(*pair));
        match (seen.is_empty(), hidden.is_empty()) {
            (true, _) => '.',
            (false, true) => '#',
            (false, false) => '/',
        }
    }
}
// ANCHOR_END: program

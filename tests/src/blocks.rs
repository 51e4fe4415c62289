//! Block masks of cases: their maps, and what these say of a pair, a second time.

use ferroflash::BlockMask;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::oracle::Sizes;

/// No pair is visible.
pub const HIDDEN: u8 = 0;
/// The mask decides.
pub const PARTIAL: u8 = 1;
/// Every pair is visible.
pub const FULL: u8 = 2;

/// The block mask of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Queries of a block.
    pub block_q: usize,
    /// Keys of a block.
    pub block_k: usize,
    /// Who has a map of his own.
    pub each: Each,
    /// What the maps look like.
    pub map: Map,
}

/// Who has a map of his own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Each {
    /// There is one for all.
    Shared,
    /// Batch entries.
    Batch,
    /// Query heads.
    Head,
    /// Query heads of each batch entry.
    BatchAndHead,
}

/// What a map looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Map {
    /// Three of ten blocks are partial or full; the others are hidden.
    Random,
    /// Blocks on the diagonal are partial, those just before them full.
    Diagonal,
    /// Blocks are partial or full, but for those of the queries of this block.
    HiddenQueries(usize),
    /// Blocks are partial or full, but for those of the keys of this block: those keys and values are NaN.
    HiddenKeys(usize),
    /// All blocks are full.
    Full,
    /// All blocks are partial.
    Partial,
}

/// A map with its numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// As the library takes it.
    pub bytes: Vec<u8>,
    shape: [usize; 4],
    block_q: usize,
    block_k: usize,
}

impl Blocks {
    /// The library's view of it.
    pub fn mask(&self) -> BlockMask {
        let mask = BlockMask::new(self.block_q, self.block_k);
        match self.each {
            Each::Shared => mask,
            Each::Batch => mask.per_batch(),
            Each::Head => mask.per_head(),
            Each::BatchAndHead => mask.per_batch().per_head(),
        }
    }

    /// The maps of a problem of these sizes; equal seeds give equal ones.
    pub fn table(&self, sizes: Sizes, seed: u64) -> Table {
        let mut rng = StdRng::seed_from_u64(seed.wrapping_add(1 << 33));
        let (batch, heads) = match self.each {
            Each::Shared => (1, 1),
            Each::Batch => (sizes.batch, 1),
            Each::Head => (1, sizes.heads_q),
            Each::BatchAndHead => (sizes.batch, sizes.heads_q),
        };
        let rows = sizes.seqlen_q.div_ceil(self.block_q);
        let columns = sizes.seqlen_k.div_ceil(self.block_k);
        let mut bytes = Vec::with_capacity(batch * heads * rows * columns);
        for _ in 0..batch * heads {
            for row in 0..rows {
                bytes.extend((0..columns).map(|column| self.byte(row, column, &mut rng)));
            }
        }
        Table {
            bytes,
            shape: [batch, heads, rows, columns],
            block_q: self.block_q,
            block_k: self.block_k,
        }
    }

    fn byte(&self, row: usize, column: usize, rng: &mut StdRng) -> u8 {
        let mut visible = || [PARTIAL, FULL, u8::MAX][rng.random_range(0..3)];
        match self.map {
            Map::Random => {
                let byte = visible();
                if rng.random_ratio(3, 10) {
                    byte
                } else {
                    HIDDEN
                }
            }
            Map::Diagonal => {
                let queries = row * self.block_q..(row + 1) * self.block_q;
                let keys = column * self.block_k..(column + 1) * self.block_k;
                if queries.start < keys.end && keys.start < queries.end {
                    PARTIAL
                } else if keys.end == queries.start {
                    FULL
                } else {
                    HIDDEN
                }
            }
            Map::HiddenQueries(hidden) if hidden == row => HIDDEN,
            Map::HiddenKeys(hidden) if hidden == column => HIDDEN,
            Map::HiddenQueries(_) | Map::HiddenKeys(_) => visible(),
            Map::Full => FULL,
            Map::Partial => PARTIAL,
        }
    }

    /// Keys and values that nobody may look at.
    pub fn nobodys_keys(&self, sizes: Sizes) -> std::ops::Range<usize> {
        match self.map {
            Map::HiddenKeys(hidden) => {
                let end = ((hidden + 1) * self.block_k).min(sizes.seqlen_k);
                (hidden * self.block_k).min(end)..end
            }
            _ => 0..0,
        }
    }
}

impl Table {
    /// What it says of query `i` of head `h` of a batch entry, and key `j`.
    pub fn at(&self, b: usize, h: usize, i: usize, j: usize) -> u8 {
        let [batch, heads, rows, columns] = self.shape;
        let (b, h) = (b % batch, h % heads);
        let (row, column) = (i / self.block_q, j / self.block_k);
        self.bytes[((b * heads + h) * rows + row) * columns + column]
    }
}

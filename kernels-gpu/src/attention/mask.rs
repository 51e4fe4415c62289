//! Masks: which keys a query sees, asked twice: for whole blocks, and for single elements at their edges.

use crate::params::Shape;

/// Rows of q, or of k and v: `first .. first + len`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// The first row.
    pub first: u32,
    /// How many.
    pub len: u32,
}

impl Rows {
    /// At most `len` rows from `first` on, as far as a sequence of `seqlen` has them; `first` is one of its rows.
    #[inline(always)]
    pub fn of_sequence(first: u32, len: u32, seqlen: u32) -> Rows {
        let len = min(len, seqlen - first);
        Rows { first, len }
    }
}

/// The KV blocks that a tile of queries meets, counted from 0: the full ones need no test per element, the edge
/// blocks, to their right, do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvBlocks {
    /// Blocks `0 .. full_end`: the tile's every query sees their every key.
    pub full_end: u32,
    /// Blocks `full_end .. end`: some pairs are masked.
    pub end: u32,
}

/// The query blocks that a tile of keys meets: `first .. end`; those from `full_begin` on need no test per element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QBlocks {
    /// The first block with a query that sees a key of the tile.
    pub first: u32,
    /// The first block whose every query sees every key of the tile.
    pub full_begin: u32,
    /// One past the last block of the sequence.
    pub end: u32,
}

/// How the work of the tiles along a sequence compares, which decides their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// All tiles meet as many blocks.
    Even,
    /// Later queries see more keys.
    Growing,
}

/// Which keys a query sees.
pub trait Mask: Copy {
    /// How the work grows along the sequence.
    const WORK: Work;

    /// The mask of one problem.
    fn new(shape: &Shape) -> Self;

    /// How many keys, from key 0 on, the query sees.
    fn visible(&self, q_idx: u32) -> u32;

    /// The first query that sees the key; queries behind it see it too.
    fn first_query(&self, k_idx: u32) -> u32;

    /// Whether the query sees the key; false also for keys behind the sequence's end.
    #[inline(always)]
    fn keep(&self, q_idx: u32, k_idx: u32) -> bool {
        k_idx < self.visible(q_idx)
    }

    /// The KV blocks of `block_k` rows that these queries meet. `queries.len` is at least 1.
    #[inline(always)]
    fn kv_blocks(&self, queries: Rows, block_k: u32) -> KvBlocks {
        let full_end = self.visible(queries.first) / block_k;
        let end = self
            .visible(queries.first + queries.len - 1)
            .div_ceil(block_k);
        KvBlocks { full_end, end }
    }

    /// The query blocks of `block_q` rows that these keys meet; `keys.len` is at least 1, and `keys_end` is one past
    /// the last row of the tile, which may lie behind the sequence's end.
    #[inline(always)]
    fn q_blocks(&self, keys: Rows, shape: &Shape, block_q: u32) -> QBlocks {
        let end = shape.seqlen_q.div_ceil(block_q);
        let first = self.first_query(keys.first) / block_q;
        let last_key = keys.first + keys.len - 1;
        let full_begin = if last_key < shape.seqlen_k {
            self.first_query(last_key).div_ceil(block_q)
        } else {
            end
        };
        QBlocks {
            first: min(first, end),
            full_begin: min(full_begin, end),
            end,
        }
    }
}

/// Every query sees every key.
#[derive(Clone, Copy, Debug)]
pub struct Full {
    seqlen_k: u32,
}

impl Mask for Full {
    const WORK: Work = Work::Even;

    #[inline(always)]
    fn new(shape: &Shape) -> Self {
        Full {
            seqlen_k: shape.seqlen_k,
        }
    }

    #[inline(always)]
    fn visible(&self, _q_idx: u32) -> u32 {
        self.seqlen_k
    }

    #[inline(always)]
    fn first_query(&self, _k_idx: u32) -> u32 {
        0
    }
}

/// Query `i` sees key `j` where `j ≤ i + seqlen_k − seqlen_q`: the last query sees every key.
#[derive(Clone, Copy, Debug)]
pub struct Causal {
    seqlen_q: u32,
    seqlen_k: u32,
}

impl Mask for Causal {
    const WORK: Work = Work::Growing;

    #[inline(always)]
    fn new(shape: &Shape) -> Self {
        Causal {
            seqlen_q: shape.seqlen_q,
            seqlen_k: shape.seqlen_k,
        }
    }

    #[inline(always)]
    fn visible(&self, q_idx: u32) -> u32 {
        let hidden = self.seqlen_q.saturating_sub(q_idx + 1);
        self.seqlen_k.saturating_sub(hidden)
    }

    #[inline(always)]
    fn first_query(&self, k_idx: u32) -> u32 {
        (k_idx + self.seqlen_q).saturating_sub(self.seqlen_k)
    }
}

#[inline(always)]
fn min(a: u32, b: u32) -> u32 {
    if a < b { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(seqlen_q: u32, seqlen_k: u32) -> Shape {
        Shape {
            seqlen_q,
            seqlen_k,
            ..Shape::default()
        }
    }

    /// The definition, in signed arithmetic.
    fn causal_by_definition(shape: &Shape, i: u32, j: u32) -> bool {
        j < shape.seqlen_k
            && i64::from(j) <= i64::from(i) + i64::from(shape.seqlen_k) - i64::from(shape.seqlen_q)
    }

    /// Blocks of about as many queries as keys, and of fewer, as compact tiles have them.
    const BLOCKS: [(u32, u32); 3] = [(4, 3), (3, 4), (1, 6)];

    fn check_blocks<M: Mask>(
        shape: &Shape,
        (block_q, block_k): (u32, u32),
        definition: impl Fn(u32, u32) -> bool,
    ) {
        let mask = M::new(shape);
        let visible = |i, j| i < shape.seqlen_q && definition(i, j);
        for q_block in 0..shape.seqlen_q.div_ceil(block_q) {
            let first = q_block * block_q;
            let queries = Rows {
                first,
                len: block_q.min(shape.seqlen_q - first),
            };
            let blocks = mask.kv_blocks(queries, block_k);
            for k_block in 0..shape.seqlen_k.div_ceil(block_k) + 1 {
                let pairs = || {
                    (first..first + queries.len).flat_map(|i| {
                        (k_block * block_k..(k_block + 1) * block_k).map(move |j| (i, j))
                    })
                };
                if k_block < blocks.full_end {
                    assert!(
                        pairs().all(|(i, j)| visible(i, j)),
                        "full block with a masked pair"
                    );
                } else if k_block >= blocks.end {
                    assert!(
                        pairs().all(|(i, j)| !visible(i, j)),
                        "unvisited block with a visible pair"
                    );
                }
                assert!(pairs().all(|(i, j)| mask.keep(i, j) == visible(i, j)));
            }
        }
        for k_tile in 0..shape.seqlen_k.div_ceil(block_k) {
            let keys = Rows {
                first: k_tile * block_k,
                len: block_k,
            };
            let blocks = mask.q_blocks(keys, shape, block_q);
            for q_block in 0..shape.seqlen_q.div_ceil(block_q) {
                let pairs = || {
                    (q_block * block_q..(q_block + 1) * block_q)
                        .filter(|&i| i < shape.seqlen_q)
                        .flat_map(|i| (keys.first..keys.first + keys.len).map(move |j| (i, j)))
                };
                if q_block < blocks.first || q_block >= blocks.end {
                    assert!(
                        pairs().all(|(i, j)| !visible(i, j)),
                        "unvisited block with a visible pair"
                    );
                } else if q_block >= blocks.full_begin {
                    assert!(
                        pairs().all(|(i, j)| visible(i, j)),
                        "full block with a masked pair"
                    );
                }
            }
        }
    }

    #[test]
    fn blocks_agree_with_the_definition() {
        for seqlen_q in 0..14 {
            for seqlen_k in 0..14 {
                let shape = shape(seqlen_q, seqlen_k);
                for blocks in BLOCKS {
                    check_blocks::<Full>(&shape, blocks, |_, j| j < shape.seqlen_k);
                    check_blocks::<Causal>(&shape, blocks, |i, j| {
                        causal_by_definition(&shape, i, j)
                    });
                }
            }
        }
    }
}

//! Masks: which keys a query sees, for whole blocks, and for single elements at their edges.
//!
//! A [`Band`] is full attention, a causal mask or a sliding window, by two numbers. Query `i` of a sequence has the position
//! `i + seqlen_k − seqlen_q` among the keys, so that the last query is at the last key; it sees the keys from `left` positions before that to
//! `right` positions after it. A prefix-LM mask (Raffel et al. 2020, section 3.2.1) is a causal mask with a third number:
//! all queries also see the first `prefix` keys.

use crate::params::Window;

/// Rows of q, or of k and v: `first .. first + len`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// The first row.
    pub first: u32,
    /// How many.
    pub len: u32,
}

impl Rows {
    /// At most `len` rows from `first` on, limited to a sequence of `seqlen`; `first` is one of its rows.
    #[inline(always)]
    pub fn of_sequence(first: u32, len: u32, seqlen: u32) -> Rows {
        let len = min(len, seqlen - first);
        Rows { first, len }
    }

    /// The last row; there is at least one.
    #[inline(always)]
    fn last(self) -> u32 {
        self.first + self.len - 1
    }
}

/// Blocks of rows that a tile visits, `first .. end`; those of `full_first .. full_end` need no test per element. `first` is at
/// most `end`, and the full blocks are between them; if there are none, `full_first` and `full_end` are `first`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// The first block with a visible pair.
    pub first: u32,
    /// The first block whose pairs are all visible.
    pub full_first: u32,
    /// One past the last block whose pairs are all visible.
    pub full_end: u32,
    /// One past the last block with a visible pair.
    pub end: u32,
}

impl Blocks {
    #[inline(always)]
    fn new(first: u32, full_first: u32, full_end: u32, end: u32) -> Blocks {
        let some_full = full_first < full_end;
        Blocks {
            first: min(first, end),
            full_first: if some_full {
                full_first
            } else {
                min(first, end)
            },
            full_end: if some_full { full_end } else { min(first, end) },
            end,
        }
    }

    /// The number of blocks.
    #[inline(always)]
    pub fn n(&self) -> u32 {
        self.end - self.first
    }
}

/// How the work of the tiles changes along a sequence, which decides their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// All tiles visit the same number of blocks.
    Even,
    /// Later queries see more keys.
    Growing,
    /// Later queries see fewer keys.
    Shrinking,
}

/// The sides on which a band ends. On the GPU this is known when the driver compiles: [`crate::spec`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Whether `left` applies.
    pub left: bool,
    /// Whether `right` applies.
    pub right: bool,
    /// Whether `prefix` applies. Only if `right` does, and `left` does not.
    pub prefix: bool,
}

impl Bounds {
    /// How the work grows along the sequence.
    #[inline(always)]
    pub fn work(self) -> Work {
        match self {
            Bounds { right: true, .. } => Work::Growing,
            Bounds { left: true, .. } => Work::Shrinking,
            _ => Work::Even,
        }
    }
}

/// Which keys the queries of one sequence see. Lengths and distances are at most [`MAX_ROWS`].
///
/// [`MAX_ROWS`]: crate::params::MAX_ROWS
#[derive(Clone, Copy, Debug)]
pub struct Band {
    seqlen_q: u32,
    seqlen_k: u32,
    /// Query `i` sees keys from `i + left` on.
    left: i32,
    /// Query `i` sees keys before `i + right`.
    right: i32,
    /// Every query sees keys before this one; 0 without a prefix.
    prefix: u32,
    bounds: Bounds,
}

impl Band {
    /// The band of a sequence of these lengths.
    #[inline(always)]
    pub fn new(seqlen_q: u32, seqlen_k: u32, window: Window, bounds: Bounds) -> Band {
        Band {
            seqlen_q,
            seqlen_k,
            left: window.left,
            right: window.right,
            prefix: if bounds.prefix { window.prefix } else { 0 },
            bounds,
        }
    }

    /// The same with another prefix.
    #[inline(always)]
    pub fn with_prefix(self, prefix: u32) -> Band {
        Band { prefix, ..self }
    }

    /// Rows of q.
    #[inline(always)]
    pub fn seqlen_q(&self) -> u32 {
        self.seqlen_q
    }

    /// Rows of k and v.
    #[inline(always)]
    pub fn seqlen_k(&self) -> u32 {
        self.seqlen_k
    }

    /// The sides on which it ends.
    #[inline(always)]
    pub fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// The first key that the query sees, if it sees any.
    #[inline(always)]
    pub fn first_key(&self, q_idx: u32) -> u32 {
        if self.bounds.left {
            at_least(0, q_idx as i32 + self.left)
        } else {
            0
        }
    }

    /// One past the last key that the query sees; 0 if it sees none.
    #[inline(always)]
    pub fn end_key(&self, q_idx: u32) -> u32 {
        if self.bounds.right {
            min(
                at_least(self.prefix, q_idx as i32 + self.right),
                self.seqlen_k,
            )
        } else {
            self.seqlen_k
        }
    }

    /// The first query that sees the key, if any does.
    #[inline(always)]
    pub fn first_query(&self, k_idx: u32) -> u32 {
        if self.bounds.right && k_idx >= self.prefix {
            at_least(0, k_idx as i32 - self.right + 1)
        } else {
            0
        }
    }

    /// One past the last query that sees the key, as if the queries had no end.
    #[inline(always)]
    fn end_query_unbounded(&self, k_idx: u32) -> u32 {
        at_least(0, k_idx as i32 - self.left + 1)
    }

    /// One past the last query that sees the key, if any does.
    #[inline(always)]
    pub fn end_query(&self, k_idx: u32) -> u32 {
        if self.bounds.left {
            min(self.end_query_unbounded(k_idx), self.seqlen_q)
        } else {
            self.seqlen_q
        }
    }

    /// Whether the key is beyond what the query sees to the right, ignoring the prefix.
    #[inline(always)]
    pub fn hides_right(&self, q_idx: i32, k_idx: i32) -> bool {
        self.bounds.right && q_idx + self.right <= k_idx
    }

    /// Whether the key is beyond what the query sees to the left.
    #[inline(always)]
    pub fn hides_left(&self, q_idx: i32, k_idx: i32) -> bool {
        self.bounds.left && k_idx < q_idx + self.left
    }

    /// Whether the query sees the key; false also for keys beyond the sequence's end.
    #[inline(always)]
    pub fn keep(&self, q_idx: u32, k_idx: u32) -> bool {
        self.first_key(q_idx) <= k_idx && k_idx < self.end_key(q_idx)
    }

    /// The blocks of `block_k` keys that these queries visit. `queries.len` is at least 1.
    #[inline(always)]
    pub fn kv_blocks(&self, queries: Rows, block_k: u32) -> Blocks {
        let end = self.end_key(queries.last()).div_ceil(block_k);
        let full_end = self.end_key(queries.first) / block_k;
        if self.bounds.left {
            let first = self.first_key(queries.first) / block_k;
            let full_first = self.first_key(queries.last()).div_ceil(block_k);
            Blocks::new(first, full_first, full_end, end)
        } else {
            Blocks {
                first: 0,
                full_first: 0,
                full_end,
                end,
            }
        }
    }

    /// The blocks of `block_q` queries that these keys visit. `keys.len` is at least 1; its rows, except the first, may be beyond the sequence's
    /// end. Rows beyond the last query count as visible: kernels handle them separately.
    #[inline(always)]
    pub fn q_blocks(&self, keys: Rows, block_q: u32) -> Blocks {
        let all = self.seqlen_q.div_ceil(block_q);
        let first = self.first_query(keys.first) / block_q;
        let whole = keys.last() < self.seqlen_k;
        let full_first = if whole {
            min(self.first_query(keys.last()).div_ceil(block_q), all)
        } else {
            all
        };
        if self.bounds.left {
            let last = if whole {
                keys.last()
            } else {
                self.seqlen_k - 1
            };
            let full_end = match self.end_query_unbounded(keys.first) {
                end if end < self.seqlen_q => end / block_q,
                _ => all,
            };
            Blocks::new(
                first,
                full_first,
                full_end,
                self.end_query(last).div_ceil(block_q),
            )
        } else {
            Blocks {
                first: min(first, all),
                full_first,
                full_end: all,
                end: all,
            }
        }
    }
}

#[inline(always)]
fn at_least(least: u32, x: i32) -> u32 {
    if x < least as i32 { least } else { x as u32 }
}

#[inline(always)]
fn min(a: u32, b: u32) -> u32 {
    if a < b { a } else { b }
}

#[cfg(test)]
mod tests;

//! Where the scores, the weights and the heads of tensors lie in memory.

use crate::attention::divide;
use crate::params::{Shape, StandardParams};
use crate::tile::global::GlobalRows;

/// Bytes of one head's scores: `f32 [seqlen_q, padded_k]`.
#[inline(always)]
fn scores_bytes(p: &StandardParams) -> u64 {
    u64::from(p.shape.seqlen_q) * scores_row_bytes(p)
}

/// Bytes of a row of the scores.
#[inline(always)]
pub fn scores_row_bytes(p: &StandardParams) -> u64 {
    p.padded_k * 4
}

/// Address of the scores of head `head` (`batch_idx · heads_q + head_idx`).
#[inline(always)]
pub fn scores_of_head(p: &StandardParams, head: u32) -> u64 {
    p.scores + u64::from(head) * scores_bytes(p)
}

/// Bytes of one head's weights: `element [seqlen_q, padded_k]`.
#[inline(always)]
pub fn weights_bytes(p: &StandardParams) -> u64 {
    u64::from(p.shape.seqlen_q) * p.padded_k * 2
}

/// The rows of the weights of head `head` (`batch_idx · heads_q + head_idx`).
#[inline(always)]
pub fn weights_rows(p: &StandardParams, head: u32) -> GlobalRows {
    GlobalRows {
        base: p.weights + u64::from(head) * weights_bytes(p),
        row_bytes: p.padded_k * 2,
        len: p.shape.seqlen_q,
    }
}

/// A head of one batch entry.
#[derive(Clone, Copy)]
pub struct Head {
    /// Which batch entry.
    pub batch_idx: u32,
    /// Which of its heads.
    pub head_idx: u32,
}

impl Head {
    /// From the number that counts the heads of all batch entries, `heads` each.
    #[inline(always)]
    pub fn new(number: u32, heads: u32) -> Self {
        let batch_idx = divide(number, heads);
        Head {
            batch_idx,
            head_idx: number - batch_idx * heads,
        }
    }

    /// The number that counts the heads of all batch entries, `heads` each.
    #[inline(always)]
    pub fn number(self, heads: u32) -> u32 {
        self.batch_idx * heads + self.head_idx
    }

    /// The key and value head of a query head.
    #[inline(always)]
    pub fn kv_head_idx(self, shape: &Shape) -> u32 {
        divide(self.head_idx, shape.group_size)
    }

    /// The first query head that shares this key and value head.
    #[inline(always)]
    pub fn first_of_group(self, shape: &Shape) -> Self {
        Head {
            head_idx: self.head_idx * shape.group_size,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_and_weights_of_large_problems_have_64_bit_addresses() {
        let p = StandardParams {
            scores: 1 << 40,
            weights: 1 << 41,
            padded_k: 1 << 20,
            shape: Shape {
                seqlen_q: 1 << 20,
                ..Shape::default()
            },
            ..StandardParams::default()
        };
        assert_eq!(scores_of_head(&p, 3), (1 << 40) + 3 * (1 << 42));
        let weights = weights_rows(&p, 3);
        assert_eq!(weights.base, (1 << 41) + 3 * (1 << 41));
        let last = (1 << 20) - 1;
        let row = u64::from(last) << 21;
        assert_eq!(weights.chunk(last, 0), weights.base + row);
    }
}

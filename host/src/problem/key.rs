//! A problem as a key of hash maps.

use super::{
    BlockMask, Expressions, Fp8Kv, Mask, Order, Pages, Precision, Problem, SplitKv, Values,
};
use crate::dtype::Dtype;

/// Everything of a [`Problem`].
pub(crate) type ProblemKey = (
    [usize; 6],
    (Option<usize>, Values),
    (Dtype, Mask, Option<u32>, Order, Precision),
    [Option<usize>; 2],
    Option<BlockMask>,
    SplitKv,
    Option<Pages>,
    (Option<Fp8Kv>, Expressions, bool, u32),
);

impl Problem {
    /// All of it; numbers by their bits.
    pub(crate) fn key(&self) -> ProblemKey {
        let Problem {
            batch,
            heads_q,
            heads_k,
            seqlen_q,
            seqlen_k,
            head_dim,
            head_dim_v,
            values,
            dtype,
            mask,
            softmax_scale,
            order,
            precision,
            total_q,
            total_k,
            block_mask,
            split_kv,
            pages,
            fp8_kv,
            expressions,
            sinks,
            dropout,
        } = *self;
        (
            [batch, heads_q, heads_k, seqlen_q, seqlen_k, head_dim],
            (head_dim_v, values),
            (
                dtype,
                mask,
                softmax_scale.map(f32::to_bits),
                order,
                precision,
            ),
            [total_q, total_k],
            block_mask,
            split_kv,
            pages,
            (fp8_kv, expressions, sinks, dropout.to_bits()),
        )
    }
}

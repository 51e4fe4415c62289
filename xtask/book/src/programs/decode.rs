//! Keys in parts: split-KV, and the merge of the parts.

use super::flash2::flash2;
use super::standard::log_sum_exp;
use super::{Head, Row, add, tiles};

// ANCHOR: program
/// One query over keys in `n_splits` parts. On a GPU each part is a block of threads of
/// its own.
pub fn split_kv<const D: usize>(head: &Head<D>, n_splits: usize) -> (Row<D>, f64) {
    let size = head.k.len().div_ceil(n_splits);
    let part = |keys: std::ops::Range<usize>| {
        let (k, v) = (&head.k[keys.clone()], &head.v[keys]);
        let (o, lse) = flash2(&Head { k, v, ..*head }, [1, 64]);
        (o[0], lse[0])
    };
    let parts: Vec<_> = tiles(head.k.len(), size).map(part).collect();
    merge(&parts)
}

/// O and L over all keys, from those over parts: L = log Σ exp(L_i), O = Σ exp(L_i − L)
/// O_i.
pub fn merge<const D: usize>(parts: &[(Row<D>, f64)]) -> (Row<D>, f64) {
    let sums: Vec<f64> = parts.iter().map(|(_, lse)| *lse).collect();
    let all = log_sum_exp(&sums);
    let mut o = [0.0; D];
    for (part, lse) in parts {
        add(&mut o, (lse - all).exp(), part);
    }
    (o, all)
}
// ANCHOR_END: program

//! Sets of cases that other sets are made of, which give each case something more: dropout, sinks.

use ferroflash::{Dtype, Mask};

use super::{Case, HALVES, HEADS, MASKS};
use crate::inputs::LseGradient;

/// One of so many.
pub fn one_in<T>(n: usize, cases: Vec<T>) -> Vec<T> {
    cases.into_iter().step_by(n).collect()
}

/// Each head_dim of the kernels; rows that see no key, empty sequences, no heads; head_dims that kernels pad.
pub fn all() -> Vec<Case> {
    let mut cases = super::quick();
    let lengths = [(200, 17), (130, 64), (5, 0), (0, 5), (257, 128), (70, 3)];
    for (at, (seqlen_q, seqlen_k)) in lengths.into_iter().enumerate() {
        for (of_mask, mask) in MASKS.into_iter().enumerate() {
            let (batch, heads_q, heads_k) = HEADS[(at + of_mask) % HEADS.len()];
            let head_dim = [64, 128][at / 2 % 2];
            let case = Case::new(HALVES[at % 2], mask, head_dim, seqlen_q, seqlen_k);
            cases.push(Case {
                lse_gradient: [LseGradient::Given, LseGradient::Absent][(at + of_mask) % 2],
                seed: at as u64,
                ..case.heads(batch, heads_q, heads_k)
            });
        }
    }
    let of = |heads| {
        let (batch, heads_q, heads_k) = heads;
        Case::new(Dtype::Bf16, Mask::Full, 64, 7, 7).heads(batch, heads_q, heads_k)
    };
    cases.extend([of((0, 4, 2)), of((1, 0, 0)), of((3, 8, 1))]);
    let of_columns = |head_dim, head_dim_v| {
        let lengths = [(150, 130), (70, 200)].into_iter().enumerate();
        lengths.flat_map(move |(at, (seqlen_q, seqlen_k))| {
            MASKS.into_iter().enumerate().map(move |(of_mask, mask)| {
                let dtype = HALVES[(at + of_mask) % 2];
                let case = Case::new(dtype, mask, head_dim, seqlen_q, seqlen_k);
                case.heads(1, 2, 1 + at).columns(head_dim, head_dim_v)
            })
        })
    };
    // Values of fewer and of more columns, which have tiles of their own.
    cases.extend(of_columns(192, 128));
    cases.extend(one_in(3, super::padded()));
    cases.extend(of_columns(64, 256).chain(of_columns(64, 512)));
    cases
}

/// Windows and prefixes.
pub fn masks() -> Vec<Case> {
    one_in(3, super::windows::all())
}

/// Sequences of lengths of their own, packed and padded, and rows of none.
pub fn lengths() -> Vec<Case> {
    one_in(3, super::lengths::all())
}

/// Block masks.
pub fn blocks() -> Vec<Case> {
    one_in(4, super::blocks::all())
}

/// Compact tiles of flash3's forward pass, and keys divided.
pub fn short() -> Vec<Case> {
    let sets = [
        super::short::packed(),
        super::short::lengths(),
        super::short::splits(),
    ];
    one_in(3, sets.concat())
}

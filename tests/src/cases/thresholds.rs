//! Small problems for a device whose thresholds are smaller still ([`Thresholds`](ferroflash::plan::Thresholds)): a plan takes the ways that
//! otherwise only problems of thousands of rows get.

use ferroflash::Mask;

use super::mla::{self, MlaCase};
use super::{Case, HALVES, MASKS, window};
use crate::lengths::{Lengths, Rows};

/// Values in the keys, of which queries see the last ones.
pub fn mla_windows() -> Vec<MlaCase> {
    let mut cases = mla::lengths();
    for (at, case) in cases.iter_mut().enumerate() {
        case.paged.case.mask = window(Some([30, 100][at % 2]), Some(0));
    }
    cases
}

/// Several wide tiles of one head, with every kind of mask; columns of the kernels that have them.
pub fn wide() -> Vec<Case> {
    let masks = [MASKS[0], MASKS[1], Mask::PrefixLm { prefix: 70 }];
    let sizes = [(64, 400, 400), (128, 250, 500), (104, 400, 300)];
    let mut cases = Vec::new();
    for (at, (head_dim, seqlen_q, seqlen_k)) in sizes.into_iter().enumerate() {
        for (of_mask, mask) in masks.into_iter().enumerate() {
            let case = Case::new(
                HALVES[(at + of_mask) % 2],
                mask,
                head_dim,
                seqlen_q,
                seqlen_k,
            );
            cases.push(case.heads(1, 2, 1));
        }
    }
    cases
}

/// Packed sequences of which the longest meets an edge of the mask that one of their average length does not: a plan takes them for unmasked.
pub fn wide_lengths() -> Vec<Case> {
    const LENGTHS: Lengths = Lengths {
        n: 3,
        q: Rows::packed(&[260, 130, 3]),
        k: Rows::packed(&[300, 9, 5]),
    };
    let masks = [
        window(Some(150), Some(150)),
        Mask::PrefixLm { prefix: 140 },
        Mask::Full,
    ];
    let of = |(at, mask): (usize, Mask)| {
        [64, 128].map(|head_dim| {
            let case = Case::new(HALVES[at % 2], mask, head_dim, 0, 0);
            case.heads(1, 2, 1).of_rows(LENGTHS)
        })
    };
    masks.into_iter().enumerate().flat_map(of).collect()
}

//! Problems for the compact tiles of flash3's forward pass: few queries, and groups of heads that share a tile or do not.

use ferroflash::{Dtype, Mask};

use super::{Case, HALVES, MASKS, lengths, window, windows};
use crate::buffer::ALIGNED;
use crate::inputs::{ADVERSARIAL, Fill};

/// Lengths of q: with a single tile's rows left empty, and filled, and one more.
const QUERIES: [usize; 6] = [1, 3, 5, 16, 64, 65];

/// Lengths of k around its blocks of 128, 112, 80 and 64 keys: more than queries, and fewer, so that under the causal
/// mask rows see no key.
const KEYS: [usize; 7] = [130, 1, 200, 64, 3, 241, 0];

/// `(batch, heads_q, heads_k)` in groups of 2, 4, 8, of 3 and 5 that share no tile, of 6 of which two do, of 12 of which
/// four do, and one head of keys for 64.
const HEADS: [(usize, usize, usize); 8] = [
    (1, 4, 2),
    (2, 4, 1),
    (1, 16, 2),
    (2, 3, 1),
    (1, 5, 1),
    (1, 6, 1),
    (1, 12, 1),
    (1, 64, 1),
];

/// head_dims of the kernels.
const KERNEL_HEAD_DIMS: [usize; 5] = [64, 96, 128, 192, 256];

/// The same, and those that are padded to each.
const HEAD_DIMS: [usize; 11] = [64, 128, 40, 72, 128, 96, 192, 104, 256, 136, 200];

/// Every pair of heads and lengths of q with both masks; the rest goes round.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for (batch, heads_q, heads_k) in HEADS {
        for seqlen_q in QUERIES {
            // Of 64 heads one head_dim and two lengths, of a tile and of several, are enough work.
            if heads_q == 64 && ![1, 5].contains(&seqlen_q) {
                continue;
            }
            for mask in MASKS {
                let round = cases.len();
                let head_dim = match heads_q {
                    64 => 64,
                    _ => HEAD_DIMS[round % HEAD_DIMS.len()],
                };
                let seqlen_k = KEYS[round % KEYS.len()];
                let dtype = HALVES[round / 3 % 2];
                cases.push(Case {
                    arrangement: ALIGNED[round % ALIGNED.len()],
                    seed: round as u64,
                    ..Case::new(dtype, mask, head_dim, seqlen_q, seqlen_k)
                        .heads(batch, heads_q, heads_k)
                });
            }
        }
    }
    cases
}

/// Packed heads in each head_dim of the kernels with both types and masks; one problem under several seeds; adversarial
/// numbers; scores that rise from block to block.
pub fn packed() -> Vec<Case> {
    let mut cases = Vec::new();
    for (at, head_dim) in KERNEL_HEAD_DIMS.into_iter().enumerate() {
        for dtype in HALVES {
            cases.extend(
                MASKS.map(|mask| Case::new(dtype, mask, head_dim, 9 + at, 170).heads(1, 8, 2)),
            );
        }
    }
    for (of_mask, mask) in MASKS.into_iter().enumerate() {
        for seed in 0..4 {
            let case = Case::new(HALVES[seed % 2], mask, 128, 20, 300).heads(2, 4, 1);
            cases.push(Case {
                seed: 100 + seed as u64,
                ..case
            });
        }
        let fills = ADVERSARIAL.into_iter().chain([Fill::Rising]);
        cases.extend(fills.enumerate().map(|(at, fill)| Case {
            fill,
            ..Case::new(HALVES[(at + of_mask) % 2], mask, 64, 7, 200).heads(1, 4, 1)
        }));
    }
    cases
}

/// Windows and prefixes.
pub fn windows() -> Vec<Case> {
    windows::small(&KERNEL_HEAD_DIMS)
}

/// Sequences of lengths of their own, with every kind of mask, with packed heads and without.
pub fn lengths() -> Vec<Case> {
    lengths::of_their_own([packed(), windows()].concat())
}

/// Keys divided into splits: few queries over many keys, in one split and in many, the last one of a single key; with every kind of
/// mask, so that queries see none of some splits; with packed heads and without; of sequences of lengths of their own, too.
pub fn splits() -> Vec<Case> {
    const SPLITS: [usize; 4] = [256, 1, 300, 1 << 40];
    const SIZES: [(usize, usize); 6] = [(1, 1025), (1, 700), (5, 513), (16, 640), (16, 3), (3, 0)];
    const MASKS: [Mask; 4] = [
        Mask::Full,
        Mask::Causal,
        window(Some(200), Some(0)),
        Mask::PrefixLm { prefix: 150 },
    ];
    let mut cases = Vec::new();
    for (at, (seqlen_q, seqlen_k)) in SIZES.into_iter().enumerate() {
        for (of_mask, mask) in MASKS.into_iter().enumerate() {
            let round = cases.len();
            let (batch, heads_q, heads_k) = HEADS[round % 7];
            let head_dim = HEAD_DIMS[(round + at) % HEAD_DIMS.len()];
            let case = Case::new(HALVES[of_mask % 2], mask, head_dim, seqlen_q, seqlen_k);
            cases.push(Case {
                arrangement: ALIGNED[round % ALIGNED.len()],
                fill: if round % 5 == 4 {
                    Fill::Rising
                } else {
                    Fill::Normal
                },
                seed: round as u64,
                ..case.heads(batch, heads_q, heads_k)
            });
        }
    }
    // Every thread takes the emulator its time and memory, and merging takes a block of them for each row.
    const MOST_ROWS: usize = 300;
    const MOST_KEYS_IN_SHORTEST: usize = 300;
    let in_lengths = lengths::of_their_own(cases.clone());
    let all = cases.into_iter().chain(in_lengths).chain(lengths::all());
    let decode_rows = |case: &Case| {
        let sizes = case.sizes;
        case.dtype != Dtype::F32 && sizes.batch * sizes.heads_q * sizes.seqlen_q <= MOST_ROWS
    };
    let split = |(at, case): (usize, Case)| {
        let least = match case.sizes.seqlen_k {
            0..=MOST_KEYS_IN_SHORTEST => 1,
            _ => 200,
        };
        let keys = SPLITS[(at / 3) % SPLITS.len()].max(least);
        Case {
            split_kv: Some(keys),
            ..case
        }
    };
    all.filter(decode_rows).enumerate().map(split).collect()
}

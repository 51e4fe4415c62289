//! Problems for flash3's wide tiles: sequences that are long enough to get them.

use ferroflash::Mask;

use super::{Case, HALVES, cliff, lengths, window};

/// `(seqlen_q, seqlen_k, head_dim)` of the full mask, around tiles of 192 queries and 128 or 80 keys; head_dims that are
/// padded among them. Those of head_dim above 96 have wide tiles in the backward pass too, of 128 keys and 80 queries.
const FULL: [(usize, usize, usize); 9] = [
    (1536, 130, 64),
    (1536, 128, 64),
    (1537, 1, 64),
    (1600, 300, 40),
    (1600, 0, 64),
    (4096, 90, 128),
    (4100, 170, 104),
    (4097, 257, 112),
    (4100, 0, 128),
];

/// The same under the causal mask, which wants longer sequences: most rows see no key, or all rows do.
const CAUSAL: [(usize, usize, usize); 5] = [
    (4096, 300, 64),
    (4100, 0, 40),
    (4096, 700, 64),
    (8192, 700, 128),
    (8200, 90, 104),
];

/// Prefixes, and a window that is open to the left: one that has a left side takes no wide tiles.
const MASKED: [(Mask, (usize, usize, usize)); 4] = [
    (Mask::PrefixLm { prefix: 100 }, (4096, 300, 64)),
    (Mask::PrefixLm { prefix: 81 }, (8192, 200, 128)),
    (OPEN, (4100, 200, 64)),
    (OPEN, (8192, 130, 104)),
];

const OPEN: Mask = window(None, Some(40));

/// All of them.
pub fn all() -> Vec<Case> {
    let full = FULL.into_iter().map(|sizes| (Mask::Full, sizes));
    let causal = CAUSAL.into_iter().map(|sizes| (Mask::Causal, sizes));
    let mut cases = with(full.chain(causal));
    let steep = |(seqlen_q, head_dim)| {
        let case = Case::new(HALVES[1], Mask::Full, head_dim, seqlen_q, 200);
        cliff(case.heads(1, 1, 1))
    };
    cases.extend([(1536, 64), (4096, 128)].map(steep));
    cases
}

/// Those with a prefix or a window.
pub fn windows() -> Vec<Case> {
    with(MASKED.into_iter())
}

/// Some of all these as sequences of lengths of their own.
pub fn lengths() -> Vec<Case> {
    let all = [all(), windows()].concat();
    lengths::of_their_own(all.into_iter().step_by(2).collect())
}

/// Types and heads going round.
fn with(sizes: impl Iterator<Item = (Mask, (usize, usize, usize))>) -> Vec<Case> {
    sizes
        .enumerate()
        .map(|(at, (mask, (seqlen_q, seqlen_k, head_dim)))| {
            let case = Case::new(HALVES[at % 2], mask, head_dim, seqlen_q, seqlen_k);
            Case {
                seed: at as u64,
                ..case.heads(1, 1 + at / 2 % 2, 1)
            }
        })
        .collect()
}

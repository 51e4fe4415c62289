//! Problems for flash1, whose outer loop is over keys: several blocks of them, between which O, l and m wait in memory, and several blocks of queries.

use ferroflash::Mask;
use ferroflash_kernels::config::flash1_forward;

use super::{Case, MASKS, nth, window, with_lse_gradients};

/// The head_dims of its kernels.
const HEAD_DIMS: [usize; 4] = [32, 64, 128, 256];

/// Masks of which some blocks of keys are seen by no query, by a few and by all; and queries that see no key of the first block.
const OTHER_MASKS: [Mask; 5] = [
    window(Some(40), Some(0)),
    window(Some(100), Some(30)),
    window(Some(33), None),
    window(None, Some(9)),
    Mask::PrefixLm { prefix: 70 },
];

/// Lengths around one, two and three blocks of keys, and around blocks of 128 queries, in each head_dim.
pub fn blocks() -> Vec<Case> {
    let of_dim = |(of_dim, head_dim): (usize, usize)| {
        let block = flash1_forward(head_dim as u32).block_k as usize;
        let lengths = [
            (127, 2 * block + 1),
            (128, block),
            (129, block - 1),
            (257, block + 1),
            (1, 2 * block),
            (300, 2 * block + 70),
        ];
        let cases = lengths
            .into_iter()
            .enumerate()
            .flat_map(move |(at, lengths)| {
                MASKS.into_iter().enumerate().map(move |(of_mask, mask)| {
                    let round = of_dim + at + of_mask;
                    nth(round, mask, head_dim, lengths).heads(1, 2, 1 + round % 2)
                })
            });
        cases.collect::<Vec<_>>()
    };
    let cases = HEAD_DIMS.into_iter().enumerate().flat_map(of_dim);
    with_lse_gradients(cases.collect())
}

/// Windows and prefixes over several blocks of keys.
pub fn windows() -> Vec<Case> {
    let of_dim = |(of_dim, head_dim): (usize, usize)| {
        let block = flash1_forward(head_dim as u32).block_k as usize;
        let lengths = [(2 * block + 30, 2 * block + 30), (140, 2 * block + 5)];
        let cases = OTHER_MASKS.into_iter().enumerate().map(move |(at, mask)| {
            let round = of_dim + at;
            let case = nth(round, mask, head_dim, lengths[round % 2]);
            case.heads(1, 2, 1 + at % 2)
        });
        cases.collect::<Vec<_>>()
    };
    let cases = HEAD_DIMS.into_iter().enumerate().flat_map(of_dim);
    with_lse_gradients(cases.collect())
}

/// Problems for the compact tiles of its backward pass.
pub fn compact() -> Vec<Case> {
    let [full, causal] = MASKS;
    let masks = [full, causal, OTHER_MASKS[0], OTHER_MASKS[4]];
    let cases = masks.into_iter().enumerate().flat_map(|(at, mask)| {
        [(150, 270), (17, 128), (130, 90)].map(|lengths| {
            let head_dim = [128, 104, 72, 128][(at + lengths.0) % 4];
            nth(at + lengths.0, mask, head_dim, lengths).heads(1, 2, 1 + at % 2)
        })
    });
    with_lse_gradients(cases.collect())
}

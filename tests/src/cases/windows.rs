//! Sliding windows: sides that end within a tile, at its edge, or beyond the sequence; tiles that nothing sees; keys that no
//! query sees, and queries that see no key. Prefixes, of tiles and of parts of tiles.

use ferroflash::Mask;

use super::{Case, HALVES, HEADS, window};
use crate::buffer::ALIGNED;

/// `(seqlen_q, seqlen_k, left, right)`.
type Window = (usize, usize, Option<usize>, Option<usize>);

const WINDOWS: [Window; 14] = [
    // Causal windows: within a tile, of a tile, of several; the last one hides nothing.
    (300, 300, Some(20), Some(0)),
    (400, 400, Some(128), Some(0)),
    (520, 520, Some(200), Some(0)),
    (150, 150, Some(150), Some(0)),
    // Every query sees its own key alone.
    (200, 200, Some(0), Some(0)),
    // To both sides.
    (300, 300, Some(64), Some(63)),
    (260, 390, Some(31), Some(100)),
    // One side only.
    (330, 330, Some(70), None),
    (200, 330, None, Some(40)),
    // Keys before the first query's window, which no query sees: several tiles of them.
    (70, 500, Some(33), Some(0)),
    (1, 400, Some(100), Some(0)),
    // Queries before the first key, which see none.
    (400, 90, Some(50), Some(0)),
    (330, 100, Some(40), Some(10)),
    (260, 260, Some(129), Some(257)),
];

/// `(seqlen_q, seqlen_k, prefix)`.
type Prefix = (usize, usize, usize);

const PREFIXES: [Prefix; 10] = [
    // Within the first keys that a warpgroup has, as many, and a few more.
    (200, 200, 20),
    (300, 300, 64),
    (300, 300, 70),
    // A tile, and several with a rest.
    (390, 390, 128),
    (450, 450, 301),
    // More keys than queries: some tiles are in the prefix that all see anyhow.
    (100, 400, 333),
    (70, 500, 100),
    // Queries before the first key, which see the prefix alone.
    (400, 90, 33),
    (330, 170, 130),
    // All but one.
    (200, 200, 199),
];

/// `(seqlen_q, seqlen_k, mask)` of each kind, of two blocks or three.
const SMALL: [(usize, usize, Mask); 5] = [
    (150, 150, window(Some(40), Some(0))),
    (100, 170, window(Some(20), Some(30))),
    (130, 90, window(Some(33), None)),
    (70, 140, window(None, Some(9))),
    (140, 160, Mask::PrefixLm { prefix: 70 }),
];

/// head_dims of each kind of kernel, those of flash2 among them.
const HEAD_DIMS: [usize; 7] = [64, 128, 32, 96, 192, 256, 160];

/// A small problem of each kind with each of these head_dims.
pub fn small(head_dims: &[usize]) -> Vec<Case> {
    let each = |(of_dim, head_dim): (usize, &usize)| {
        let case = |(of_mask, (seqlen_q, seqlen_k, mask)): (usize, _)| {
            let at = of_dim + of_mask;
            super::nth(at, mask, *head_dim, (seqlen_q, seqlen_k)).heads(1, 2, 1 + at % 2)
        };
        SMALL.into_iter().enumerate().map(case).collect::<Vec<_>>()
    };
    super::with_lse_gradients(head_dims.iter().enumerate().flat_map(each).collect())
}

/// Every window and prefix with some head_dim of each kind.
pub fn all() -> Vec<Case> {
    let windows =
        WINDOWS.map(|(seqlen_q, seqlen_k, left, right)| (seqlen_q, seqlen_k, window(left, right)));
    let prefixes = PREFIXES
        .map(|(seqlen_q, seqlen_k, prefix)| (seqlen_q, seqlen_k, Mask::PrefixLm { prefix }));
    let case = |(at, (seqlen_q, seqlen_k, mask)): (usize, (usize, usize, Mask))| {
        [0, 3].map(|of| {
            let round = at + of;
            let (batch, heads_q, heads_k) = HEADS[round % HEADS.len()];
            let head_dim = HEAD_DIMS[round % HEAD_DIMS.len()];
            let case = Case::new(HALVES[round % 2], mask, head_dim, seqlen_q, seqlen_k);
            Case {
                arrangement: ALIGNED[round % ALIGNED.len()],
                seed: round as u64,
                ..case.heads(batch, heads_q, heads_k)
            }
        })
    };
    let all = windows.into_iter().chain(prefixes).enumerate();
    super::with_lse_gradients(all.flat_map(case).collect())
}

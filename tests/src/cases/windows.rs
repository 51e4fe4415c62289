//! Sliding windows: sides that end within a tile, at its edge, or beyond the sequence; tiles that nothing sees; keys that no
//! query sees, and queries that see no key.

use ferroflash::Mask;

use super::{Case, HALVES, HEADS};
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

/// head_dims of each kind of kernel, those of flash2 among them.
const HEAD_DIMS: [usize; 6] = [64, 128, 32, 96, 192, 256];

/// Every window with some head_dim of each kind.
pub fn all() -> Vec<Case> {
    let case = |(at, &(seqlen_q, seqlen_k, left, right)): (usize, &Window)| {
        [0, 3].map(|of| {
            let round = at + of;
            let (batch, heads_q, heads_k) = HEADS[round % HEADS.len()];
            let head_dim = HEAD_DIMS[round % HEAD_DIMS.len()];
            let mask = Mask::Window { left, right };
            let case = Case::new(HALVES[round % 2], mask, head_dim, seqlen_q, seqlen_k);
            Case {
                arrangement: ALIGNED[round % ALIGNED.len()],
                seed: round as u64,
                ..case.heads(batch, heads_q, heads_k)
            }
        })
    };
    super::with_lse_gradients(WINDOWS.iter().enumerate().flat_map(case).collect())
}

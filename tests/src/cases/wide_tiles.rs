//! Problems for the wide tiles of flash3's forward pass: sequences that are long enough to get them.

use ferroflash::Mask;

use super::{Case, HALVES, MASKS};

/// `(seqlen_q, seqlen_k, head_dim)`, around tiles of 192 queries and 128 or 80 keys; head_dims that are padded among them.
const SIZES: [(usize, usize, usize); 8] = [
    (2048, 130, 64),
    (2112, 128, 64),
    (2113, 1, 64),
    (2050, 300, 40),
    (2300, 0, 64),
    (2048, 1990, 64),
    (4096, 90, 128),
    (4100, 170, 104),
];

/// All of them with both masks, types and heads going round; under the causal mask also one whose first tile sees keys.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for (at, (seqlen_q, seqlen_k, head_dim)) in SIZES.into_iter().enumerate() {
        for (of_mask, mask) in MASKS.into_iter().enumerate() {
            // The long one is there for the causal mask; above head_dim 64 only the full one has wide tiles.
            let left_out = match mask {
                Mask::Full => seqlen_k > 1000,
                Mask::Causal => head_dim > 64,
            };
            if left_out {
                continue;
            }
            let dtype = HALVES[(at + of_mask) % 2];
            let case = Case::new(dtype, mask, head_dim, seqlen_q, seqlen_k);
            cases.push(Case {
                seed: at as u64,
                ..case.heads(1, 1 + at % 2, 1)
            });
        }
    }
    cases
}

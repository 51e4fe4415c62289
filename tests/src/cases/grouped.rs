//! Problems for the grouped tiles of flash3's forward pass: few queries of groups of heads, more rows than a compact tile has.

use ferroflash::Mask;

use super::pages::PagedCase;
use super::{Case, HALVES, lengths, window};
use crate::buffer::ALIGNED;

/// `(batch, heads_q, heads_k, seqlen_q)`: a tile half full, full, one row more, several of them; groups of 8, 4, and of 6 of which two heads share
/// a tile.
const QUERIES: [(usize, usize, usize, usize); 7] = [
    (2, 8, 1, 9),
    (1, 8, 1, 16),
    (2, 8, 2, 17),
    (1, 16, 2, 16),
    (1, 4, 1, 33),
    (1, 8, 1, 64),
    (1, 12, 2, 40),
];

/// Lengths of k around blocks of 128 keys.
const KEYS: [usize; 4] = [1024, 1025, 1151, 1090];

/// head_dims of the kernels, and one that is padded.
const HEAD_DIMS: [usize; 3] = [128, 64, 96];

const MASKS: [Mask; 4] = [
    Mask::Full,
    Mask::Causal,
    window(Some(100), Some(0)),
    Mask::PrefixLm { prefix: 70 },
];

/// Rows of a page: some that a block of keys divides into boxes, a block, and an odd number.
const PAGE_SIZES: [usize; 4] = [16, 64, 256, 7];

/// All of these with two masks each; the rest goes round.
pub fn all() -> Vec<Case> {
    let rounds = QUERIES.into_iter().flat_map(|queries| [queries; 2]);
    let of = |(round, (batch, heads_q, heads_k, seqlen_q))| {
        let mask = MASKS[round % MASKS.len()];
        let (head_dim, seqlen_k) = (HEAD_DIMS[round % 3], KEYS[round % KEYS.len()]);
        Case {
            arrangement: ALIGNED[round % ALIGNED.len()],
            seed: round as u64,
            ..Case::new(HALVES[round / 2 % 2], mask, head_dim, seqlen_q, seqlen_k)
                .heads(batch, heads_q, heads_k)
        }
    };
    rounds.enumerate().map(of).collect()
}

/// The same in sequences that use some of their rows; there is one row more, and grouped tiles are for up to 64.
pub fn lengths() -> Vec<Case> {
    let few = all().into_iter().filter(|case| case.sizes.seqlen_q < 64);
    few.map(lengths::in_used_rows).collect()
}

/// Keys divided into splits, with and without lengths.
pub fn splits() -> Vec<Case> {
    let cases = all().into_iter().enumerate();
    let divided = cases.map(|(at, case)| Case {
        split_kv: Some([128, 384, 256][at % 3]),
        ..case
    });
    let of = |(at, case)| match at % 3 {
        0 => lengths::in_used_rows(case),
        _ => case,
    };
    divided.enumerate().map(of).collect()
}

/// Keys and values in pages.
pub fn pages() -> Vec<PagedCase> {
    let cases = lengths().into_iter().enumerate().step_by(2);
    let of = |(at, case)| PagedCase {
        case,
        page_size: PAGE_SIZES[at / 2 % PAGE_SIZES.len()],
        more_columns: at % 2,
        prefix: 0,
    };
    cases.map(of).collect()
}

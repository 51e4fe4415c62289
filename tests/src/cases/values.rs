//! Values of another number of columns than the keys: fewer and more, under masks, in groups of heads, of sequences of all lengths.

use ferroflash::{Dtype, Mask};

use super::{Case, HALVES, MASKS, window, with_lse_gradients};
use crate::buffer::{ALIGNED, Arrangement};
use crate::lengths::{Lengths, Rows};

/// Columns of keys, and of values: those of DeepSeek-V3's prompts, of linear layers of other widths; and some that no vector divides.
const COLUMNS: [(usize, usize); 10] = [
    (192, 128),
    (64, 128),
    (64, 256),
    (64, 512),
    (128, 64),
    (576, 512),
    (264, 136),
    (136, 40),
    (7, 40),
    (33, 5),
];

/// `(batch, heads_q, heads_k)`.
const HEADS: [(usize, usize, usize); 3] = [(1, 4, 2), (2, 2, 2), (1, 3, 1)];

/// Packed sequences, and padded ones of which some rows are used.
const LENGTHS: [Lengths; 2] = [
    Lengths {
        n: 3,
        q: Rows::packed(&[70, 0, 33]),
        k: Rows::packed(&[70, 9, 130]),
    },
    Lengths {
        n: 3,
        q: Rows::padded(40).used(&[40, 1, 17]),
        k: Rows::padded(90).used(&[90, 0, 65]).leftpad(&[3, 0, 64]),
    },
];

/// Each pair under both masks, with a window, and of other lengths; the rest goes round.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for (at, columns) in COLUMNS.into_iter().enumerate() {
        let (batch, heads_q, heads_k) = HEADS[at % HEADS.len()];
        let dtype = |round: usize| [HALVES[0], HALVES[1], Dtype::F32][(at + round) % 3];
        let of = |round: usize, mask: Mask, seqlen_q: usize, seqlen_k: usize| Case {
            arrangement: ALIGNED[(at + round) % ALIGNED.len()],
            seed: (10 * at + round) as u64,
            ..Case::new(dtype(round), mask, columns.0, seqlen_q, seqlen_k)
                .columns(columns.0, columns.1)
                .heads(batch, heads_q, heads_k)
        };
        cases.push(of(0, MASKS[0], 67, 130));
        cases.push(of(1, MASKS[1], 70, 70));
        cases.push(of(2, window(Some(20), Some(3)), 65, 90));
        cases.push(of(3, MASKS[at % 2], 0, 0).of_rows(LENGTHS[at % 2]));
        cases.push(Case {
            arrangement: Arrangement::Unaligned,
            ..of(4, MASKS[at % 2], 1, 300)
        });
    }
    with_lse_gradients(cases)
}

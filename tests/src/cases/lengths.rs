//! Sequences of different lengths: packed and padded sides, empty sequences, more queries than keys, one long sequence among
//! short ones. Rows that belong to no sequence are NaN in every input.

use ferroflash::{Dtype, Mask};

use super::{Case, HALVES};
use crate::buffer::ALIGNED;
use crate::inputs::{Fill, LseGradient};
use crate::lengths::{Lengths, Rows};

const LENGTHS: [Lengths; 11] = [
    // Self-attention over packed sequences, an empty one among them; then with rows of nobody on both sides.
    alike(5, Rows::packed(&[5, 130, 0, 64, 1])),
    alike(4, Rows::packed_between(3, &[65, 1, 128, 17], 9)),
    // One long sequence among short ones.
    alike(9, Rows::packed(&[3, 1, 2, 520, 5, 1, 1, 7, 4])),
    // Packed sequences that use some of their rows.
    alike(3, Rows::packed(&[90, 40, 130]).used(&[33, 40, 0])),
    // Padded ones.
    alike(4, Rows::padded(140).used(&[140, 1, 0, 77])),
    // Queries alone are packed, keys alone, or neither.
    both(
        4,
        Rows::packed(&[3, 70, 0, 17]),
        Rows::padded(150).used(&[150, 31, 20, 0]),
    ),
    both(3, Rows::packed(&[66, 1, 9]), Rows::padded(70)),
    both(3, Rows::padded(40), Rows::packed(&[200, 0, 33])),
    both(
        3,
        Rows::padded(70).used(&[1, 70, 64]),
        Rows::padded(130).used(&[129, 5, 64]),
    ),
    // More queries than keys.
    both(
        4,
        Rows::packed(&[70, 20, 9, 140]),
        Rows::packed(&[3, 40, 0, 129]),
    ),
    // Decoding: a query each.
    both(
        5,
        Rows::padded(1),
        Rows::padded(260).used(&[260, 1, 0, 129, 64]),
    ),
];

/// `(heads_q, heads_k)`.
const HEADS: [(usize, usize); 4] = [(2, 2), (4, 2), (3, 1), (1, 1)];

const MASKS: [Mask; 4] = [
    Mask::Full,
    Mask::Causal,
    Mask::Window {
        left: Some(20),
        right: Some(0),
    },
    Mask::Window {
        left: Some(40),
        right: Some(33),
    },
];

const HEAD_DIMS: [usize; 5] = [64, 128, 32, 96, 256];

const fn alike(n: usize, rows: Rows) -> Lengths {
    both(n, rows, rows)
}

const fn both(n: usize, q: Rows, k: Rows) -> Lengths {
    Lengths { n, q, k }
}

/// All lengths with every mask; the rest goes round.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for (at, lengths) in LENGTHS.into_iter().enumerate() {
        for (of_mask, mask) in MASKS.into_iter().enumerate() {
            let round = at + of_mask;
            let (heads_q, heads_k) = HEADS[(at + 3 * of_mask) % HEADS.len()];
            let head_dim = HEAD_DIMS[round % HEAD_DIMS.len()];
            let dtype = match round % 5 {
                4 => Dtype::F32,
                round => HALVES[round % 2],
            };
            let (longest_q, longest_k) = (lengths.q.longest(), lengths.k.longest());
            let case = Case::new(dtype, mask, head_dim, longest_q, longest_k);
            cases.push(Case {
                lengths: Some(lengths),
                arrangement: ALIGNED[(at + of_mask / 2) % ALIGNED.len()],
                fill: if round % 7 == 3 {
                    Fill::Rising
                } else {
                    Fill::Normal
                },
                lse_gradient: [LseGradient::Given, LseGradient::Absent][(at + of_mask / 2) % 2],
                seed: round as u64,
                ..case.heads(lengths.n, heads_q, heads_k)
            });
        }
    }
    cases
}

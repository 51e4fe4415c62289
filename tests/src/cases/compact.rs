//! Problems for the compact tiles of flash2's backward pass above head_dim 64.

use super::{Case, HALVES, HEADS, MASKS, blocks, lengths, windows, with_lse_gradients};
use crate::buffer::ALIGNED;
use crate::inputs::ADVERSARIAL;

/// The head_dims whose kernels have compact tiles.
pub const COMPACT_HEAD_DIMS: [usize; 2] = [128, 256];

/// Whether a head_dim is padded to one of those, or is one.
pub fn has_compact_tiles(head_dim: usize) -> bool {
    (65..=256).contains(&head_dim)
}

/// `(seqlen_q, seqlen_k)` around their blocks of 16 queries and tiles of 128 keys, or 32, and without either.
const LENGTHS: [(usize, usize); 16] = [
    (0, 0),
    (0, 5),
    (5, 0),
    (1, 1),
    (1, 257),
    (257, 1),
    (15, 127),
    (16, 128),
    (17, 129),
    (31, 33),
    (48, 256),
    (128, 128),
    (17, 200),
    (200, 17),
    (130, 257),
    (257, 130),
];

/// One problem per element type and mask, at lengths that no block divides.
pub fn quick() -> Vec<Case> {
    let of = |(mask, head_dim)| {
        HALVES.map(|dtype| {
            of(dtype, mask, 150, 170)
                .columns(head_dim, head_dim)
                .heads(1, 2, 1)
        })
    };
    let of_mask = |mask| COMPACT_HEAD_DIMS.map(|head_dim| (mask, head_dim));
    with_lse_gradients(MASKS.into_iter().flat_map(of_mask).flat_map(of).collect())
}

/// The same with fewer columns than the kernels have.
pub fn padded() -> Vec<Case> {
    let halves = HALVES.into_iter().cycle();
    let cases = MASKS
        .into_iter()
        .cycle()
        .zip(halves)
        .zip([72, 96, 136, 200]);
    let cases = cases.map(|((mask, dtype), head_dim)| {
        of(dtype, mask, 40, 140)
            .columns(head_dim, head_dim)
            .heads(1, 2, 1)
    });
    with_lse_gradients(cases.collect())
}

/// Every pair of lengths with both masks, heads, arrangements and types going round; one problem under several seeds;
/// adversarial numbers.
pub fn full() -> Vec<Case> {
    let mut cases = Vec::new();
    for (of_mask, mask) in MASKS.into_iter().enumerate() {
        for (at, (seqlen_q, seqlen_k)) in LENGTHS.into_iter().enumerate() {
            let round = at + of_mask;
            let (batch, heads_q, heads_k) = HEADS[round % HEADS.len()];
            let head_dim = COMPACT_HEAD_DIMS[usize::from(round % 3 == 0)];
            let case = of(HALVES[round % 2], mask, seqlen_q, seqlen_k).columns(head_dim, head_dim);
            cases.push(Case {
                arrangement: ALIGNED[at % ALIGNED.len()],
                seed: round as u64,
                ..case.heads(batch, heads_q, heads_k)
            });
        }
        for seed in 0..4 {
            let case = of(HALVES[seed % 2], mask, 70, 300).heads(1, 4, 2);
            cases.push(Case {
                seed: 100 + seed as u64,
                ..case
            });
        }
        for (at, fill) in ADVERSARIAL.into_iter().enumerate() {
            cases.push(Case {
                fill,
                ..of(HALVES[(at + of_mask) % 2], mask, 40, 140).heads(1, 1, 1)
            });
        }
    }
    with_lse_gradients(cases)
}

/// Windows and prefixes.
pub fn windows() -> Vec<Case> {
    windows::small(&COMPACT_HEAD_DIMS)
}

/// Sequences of lengths of their own, with every kind of mask.
pub fn lengths() -> Vec<Case> {
    lengths::of_their_own([full(), windows()].concat())
}

/// Block masks.
pub fn blocks() -> Vec<Case> {
    let halves = blocks::all().into_iter().filter(|case| {
        case.dtype != ferroflash::Dtype::F32 && case.sizes.head_dim == case.sizes.head_dim_v
    });
    let of = |(at, case): (usize, Case)| {
        let head_dim = COMPACT_HEAD_DIMS[at % COMPACT_HEAD_DIMS.len()];
        case.columns(head_dim, head_dim)
    };
    halves.step_by(3).enumerate().map(of).collect()
}

fn of(dtype: ferroflash::Dtype, mask: ferroflash::Mask, seqlen_q: usize, seqlen_k: usize) -> Case {
    Case::new(dtype, mask, COMPACT_HEAD_DIMS[0], seqlen_q, seqlen_k)
}

//! The problems that every backend is put through, in named sets.
//!
//! | set | what it is for |
//! |---|---|
//! | [`quick`] | one problem per element type, mask and head_dim of the kernels, at a length that no tile divides |
//! | [`full`] | every pair of lengths around the tiles, with heads, arrangements and types going round |
//! | [`edge`] | empty problems, rows that see no key, adversarial numbers, unusual scales |
//! | [`padded`] | head_dims that kernels pad to their own, and those that only some kernels have |
//! | [`wide`] | what only the CPU backend takes: other head_dims, f32, unaligned memory |
//! | [`random`] | anything that the kernels take |
//! | [`values`], [`mla`] | values of another number of columns than the keys; values in the keys |
//! | [`mod@blocks`] | block masks |
//! | [`scores`] | scores and masks of the user's own |
//! | [`sinks`] | sinks of heads, beside all of these |
//! | [`dropout`] | weights that are dropped, beside all of these |
//! | [`lengths`] | sequences of different lengths, packed and padded |
//! | [`aimed`] | small sets, each case for one mistake: strides of 0, mispredictions, edges of blocks, stages used again |
//! | [`compact`], [`short`], [`decode`], [`grouped`], [`wide_tiles`] | sets of their own for the compact tiles of flash2's backward pass, of flash3's forward pass, of flash2's; for grouped and wide ones |
//! | [`unseen`] | calls whose lengths and tables of pages are any numbers |
//! | [`mod@tf32`] | f32 tensors on a GPU, in both precisions |
//! | [`orders`], [`head_splits`] | the same for the orders of tiles, and for few tiles of shared keys, in flash3's backward pass |
//! | [`mod@thresholds`], [`many`] | plans that only large problems get: small ones for a device of smaller thresholds, and sequences by the hundred |
//! | [`pages`], [`fp8`], [`e4m3`], [`serving`], [`merges`], [`appends`] | keys and values in pages, in 8 bits, and engines that keep them so; operations beside attention |

pub mod aimed;
pub mod appends;
mod base;
pub mod blocks;
mod case;
pub mod compact;
pub mod decode;
pub mod dropout;
pub mod e4m3;
pub mod flash1;
pub mod fp8;
pub mod grouped;
pub mod head_splits;
pub mod lengths;
pub mod many;
pub mod merges;
pub mod mla;
pub mod orders;
pub mod paged_scores;
pub mod pages;
pub mod quantize;
mod random;
pub mod scores;
pub mod serving;
pub mod short;
pub mod sinks;
pub mod tf32;
pub mod thresholds;
pub mod unseen;
pub mod values;
pub mod wide_tiles;
pub mod windows;

use ferroflash::{Dtype, Mask};

pub use case::Case;
pub use random::{random, runner};

use crate::buffer::{ALIGNED, Arrangement};
use crate::inputs::{ADVERSARIAL, Fill, LseGradient};

/// Element types of the kernels.
const HALVES: [Dtype; 2] = [Dtype::Bf16, Dtype::F16];
const MASKS: [Mask; 2] = [Mask::Full, Mask::Causal];

/// Elements of 16 bytes, which kernels read at a time.
const fn chunk(dtype: Dtype) -> usize {
    match dtype {
        Dtype::F32 => 4,
        Dtype::Bf16 | Dtype::F16 => 8,
    }
}

const fn window(left: Option<usize>, right: Option<usize>) -> Mask {
    Mask::Window { left, right }
}

/// head_dims of the kernels, but for large ones.
pub const HEAD_DIMS: [usize; 3] = [32, 64, 128];

/// A large one, of which there are fewer cases.
const LARGE_HEAD_DIM: usize = 256;

/// `(seqlen_q, seqlen_k)` around the kernels' tiles of 64 and 128 rows.
const LENGTHS: [(usize, usize); 16] = [
    (1, 1),
    (1, 129),
    (129, 1),
    (63, 65),
    (65, 63),
    (64, 64),
    (127, 128),
    (128, 127),
    (128, 128),
    (129, 129),
    (17, 200),
    (200, 17),
    (191, 193),
    (192, 256),
    (257, 128),
    (130, 257),
];

/// `(batch, heads_q, heads_k)`: one head, several, groups, one key head for all.
const HEADS: [(usize, usize, usize); 5] = [(1, 1, 1), (2, 2, 2), (1, 4, 2), (1, 3, 1), (2, 2, 1)];

/// The `at`-th case of a set, of `lengths` of q and of k: types and arrangements alternate, and with each case the order of the emulator's
/// threads.
fn nth(at: usize, mask: Mask, head_dim: usize, lengths: (usize, usize)) -> Case {
    Case {
        arrangement: ALIGNED[at % ALIGNED.len()],
        seed: 10 * at as u64,
        ..Case::new(HALVES[at % 2], mask, head_dim, lengths.0, lengths.1)
    }
}

/// Gives a gradient of lse to every case with rows that see no key, where nobody may look at it, and to half of the others,
/// in an order that follows no cycle of theirs, nor that of the suite's second runs.
fn with_lse_gradients(mut cases: Vec<Case>) -> Vec<Case> {
    for (at, case) in cases.iter_mut().enumerate() {
        let some_see_none = case.rows_that_see().contains(&false);
        if some_see_none || (at as u32 + at.count_ones()).is_multiple_of(2) {
            case.lse_gradient = LseGradient::Given;
        }
    }
    cases
}

/// One problem per element type, mask and head_dim of the kernels.
pub fn quick() -> Vec<Case> {
    let mut cases = Vec::new();
    for head_dim in HEAD_DIMS.into_iter().chain([LARGE_HEAD_DIM]) {
        for mask in MASKS {
            cases.extend(
                HALVES.map(|dtype| Case::new(dtype, mask, head_dim, 150, 170).heads(1, 2, 1)),
            );
        }
    }
    with_lse_gradients(cases)
}

/// Every pair of lengths with both masks; the rest goes round, so that all combinations of two come up.
pub fn full() -> Vec<Case> {
    let mut cases = Vec::new();
    for (at, (seqlen_q, seqlen_k)) in LENGTHS.into_iter().enumerate() {
        for (of_mask, mask) in MASKS.into_iter().enumerate() {
            for (of_dim, head_dim) in HEAD_DIMS.into_iter().enumerate() {
                let round = at + of_mask + of_dim;
                let (batch, heads_q, heads_k) = HEADS[round % HEADS.len()];
                let case = Case::new(
                    HALVES[(at + of_dim) % 2],
                    mask,
                    head_dim,
                    seqlen_q,
                    seqlen_k,
                );
                let arrangement = ALIGNED[(at / 2 + of_dim + 2 * of_mask) % ALIGNED.len()];
                cases.push(Case {
                    arrangement,
                    seed: round as u64,
                    ..case.heads(batch, heads_q, heads_k)
                });
            }
        }
    }
    with_lse_gradients(cases)
}

/// Empty problems, rows that see no key, adversarial numbers, unusual scales.
pub fn edge() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in HALVES {
        for mask in MASKS {
            let of = |seqlen_q, seqlen_k| Case::new(dtype, mask, 64, seqlen_q, seqlen_k);
            cases.extend([
                of(0, 0),
                of(5, 0),
                of(0, 5),
                of(7, 7).heads(0, 2, 2),
                of(7, 7).heads(1, 0, 0),
            ]);
            cases.extend([of(200, 3), of(130, 64)]);
            cases.extend(ADVERSARIAL.map(|fill| Case {
                fill,
                ..of(70, 140)
            }));
            cases.extend([1e-3, 2.0].map(|scale| Case {
                softmax_scale: Some(scale),
                ..of(40, 90)
            }));
        }
    }
    cases.extend(HEAD_DIMS.map(|head_dim| Case {
        fill: Fill::Rising,
        ..Case::new(Dtype::Bf16, Mask::Causal, head_dim, 140, 300)
    }));
    for (mask, dtype) in MASKS.into_iter().zip(HALVES) {
        let steep = HEAD_DIMS.map(|head_dim| cliff(Case::new(dtype, mask, head_dim, 140, 300)));
        cases.extend(steep);
    }
    with_lse_gradients(cases)
}

/// A case with scores that fall along the keys so steeply that f32 does not hold the exponentials of the first relative to the
/// last: a kernel that meets the last keys first, and takes exponentials before it knows the maximum, has to begin again.
fn cliff(case: Case) -> Case {
    Case {
        fill: Fill::Falling,
        softmax_scale: Some(64.0 / case.sizes.head_dim as f32),
        ..case
    }
}

/// Multiples of 8 on both sides of the head_dims that kernels are compiled for, in every arrangement.
pub fn padded() -> Vec<Case> {
    let mut cases = Vec::new();
    for (at, head_dim) in [
        8, 56, 72, 96, 104, 136, 160, 176, 192, 200, 248, 256, 264, 384, 440, 512,
    ]
    .into_iter()
    .enumerate()
    {
        let (batch, heads_q, heads_k) = HEADS[at % HEADS.len()];
        cases.extend(MASKS.into_iter().enumerate().map(|(of_mask, mask)| {
            let dtype = HALVES[(at + of_mask) % HALVES.len()];
            Case {
                arrangement: ALIGNED[(at + 2 * of_mask) % ALIGNED.len()],
                ..Case::new(dtype, mask, head_dim, 70, 180).heads(batch, heads_q, heads_k)
            }
        }));
    }
    cases.push(cliff(Case::new(Dtype::F16, Mask::Full, 96, 140, 300)));
    with_lse_gradients(cases)
}

/// What only the CPU backend takes.
pub fn wide() -> Vec<Case> {
    let mut cases = Vec::new();
    for (at, head_dim) in [1, 7, 8, 40, 80, 96, 111, 192, 256].into_iter().enumerate() {
        for (dtype, mask) in [Dtype::F32, Dtype::Bf16, Dtype::F16].into_iter().zip([
            MASKS[at % 2],
            Mask::Full,
            Mask::Causal,
        ]) {
            cases.push(Case {
                arrangement: Arrangement::Unaligned,
                ..Case::new(dtype, mask, head_dim, 67, 75).heads(1, 2, 1)
            });
        }
    }
    for (at, (seqlen_q, seqlen_k)) in LENGTHS.into_iter().enumerate() {
        let (batch, heads_q, heads_k) = HEADS[at % HEADS.len()];
        for mask in MASKS {
            let case = Case::new(Dtype::F32, mask, 64, seqlen_q, seqlen_k);
            cases.push(Case {
                arrangement: ALIGNED[at % ALIGNED.len()],
                ..case.heads(batch, heads_q, heads_k)
            });
        }
    }
    for fill in ADVERSARIAL {
        cases.extend(MASKS.map(|mask| Case {
            fill,
            ..Case::new(Dtype::F32, mask, 32, 70, 140)
        }));
    }
    cases.push(Case::new(Dtype::F32, Mask::Causal, 64, 700, 900));
    with_lse_gradients(cases)
}

#[cfg(test)]
mod tests;

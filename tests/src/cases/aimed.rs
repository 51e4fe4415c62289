//! Small sets, each case for one mistake that the other sets hardly see. The emulator's sample has a third of each.

use std::collections::BTreeSet;

use ferroflash::{Algorithm, Dtype, Mask};
use ferroflash_kernels::variants::{Kind, TileShape, VARIANTS};

use super::lengths::{in_used_rows, of_their_own};
use super::{Case, HALVES, MASKS, window, with_lse_gradients};
use crate::buffer::{Arrangement, Repeats};
use crate::inputs::Fill;
use crate::lengths::{Lengths, Rows};

/// Inputs whose entries a stride of 0 repeats: batch entries, rows, heads.
pub fn repeated() -> Vec<Case> {
    let mut cases = Vec::new();
    for (at, repeats) in [Repeats::Batch, Repeats::Rows, Repeats::Heads]
        .into_iter()
        .enumerate()
    {
        for (of_mask, mask) in MASKS.into_iter().enumerate() {
            let round = at + of_mask;
            let head_dim = [64, 128, 32][round % 3];
            let case = Case::new(HALVES[round % 2], mask, head_dim, 70, 150).heads(2, 4, 2);
            cases.push(Case {
                arrangement: Arrangement::Repeated(repeats),
                ..case
            });
        }
    }
    with_lse_gradients(cases)
}

/// Scores that outgrow the speculative softmax's reference of the blocks before.
///
/// - Under the causal mask, in steps of as many keys as a block has. The diagonal goes through a block that some warps of a
///   consumer have to repeat, and hides keys from its other warps: those must be masked again. The same by the left side of a window.
/// - By a single early key in f16, by so little that the weight of a lane's columns is just above what f16 holds: 2^16.5.
pub fn mispredictions(tiles: TileShape) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    let blocks = blocks(Algorithm::Flash3, tiles).into_iter().enumerate();
    for (at, ([head_dim, head_dim_v], block_k)) in blocks {
        // Above that, maxima come first.
        if head_dim_v > 128 {
            continue;
        }
        // The first query of a tile sees 3/4 of a block.
        let seqlen_k = 140 + block_k - block_k / 4;
        let in_steps = |mask| Case {
            fill: Fill::Steps { keys: block_k },
            ..Case::new(HALVES[at % 2], mask, head_dim, 140, seqlen_k).columns(head_dim, head_dim_v)
        };
        let causal = in_steps(Mask::Causal);
        let windowed = in_steps(window(Some(block_k), Some(0)));
        let spike = Case {
            fill: Fill::Spike { log2_16: 264 },
            ..Case::new(Dtype::F16, MASKS[at % 2], head_dim, 140, 300).columns(head_dim, head_dim_v)
        };
        cases.extend([causal, windowed, spike]);
        cases.extend([causal, windowed].map(in_used_rows));
    }
    cases
}

/// The same for wide tiles, which only long sequences get.
pub fn wide_mispredictions() -> Vec<Case> {
    let of = |fill, mask, head_dim, seqlen_q, seqlen_k| Case {
        fill,
        ..Case::new(Dtype::F16, mask, head_dim, seqlen_q, seqlen_k).heads(1, 1, 1)
    };
    // Of the causal mask's queries the last 250 see a key: those of two tiles.
    vec![
        of(Fill::Steps { keys: 128 }, Mask::Causal, 64, 4096, 250),
        of(Fill::Steps { keys: 80 }, Mask::Causal, 128, 8192, 250),
        of(Fill::Spike { log2_16: 264 }, Mask::Full, 64, 1536, 250),
    ]
}

/// `([head_dim, head_dim_v], keys of a block)` of flash3's forward kernels, of flash1's, or of flash2's.
fn blocks(algorithm: Algorithm, tiles: TileShape) -> Vec<([usize; 2], usize)> {
    let kind = match algorithm {
        Algorithm::Flash3 => Kind::TmaForward,
        Algorithm::Flash1 => Kind::Flash1Forward,
        _ => Kind::Forward,
    };
    let rows = VARIANTS
        .iter()
        .filter(|row| row.kind == kind && row.tiles == tiles);
    let blocks = rows.filter_map(|row| {
        let (head_dim, block_k) = (row.head_dim?, row.tile_config.block_k as usize);
        let head_dim_v = row.head_dim_v.unwrap_or(head_dim);
        Some(([head_dim, head_dim_v].map(|n| n as usize), block_k))
    });
    let unique: BTreeSet<_> = blocks.collect();
    unique.into_iter().collect()
}

/// Masks whose edge hides one element of a block of keys from one row of a warp, or one more or fewer: a block that is taken for
/// whole, or one that is left out, shows. Some of them in sequences of lengths of their own, too.
pub fn edges(algorithm: Algorithm, tiles: TileShape) -> Vec<Case> {
    let mut cases = Vec::new();
    // So many that tiles of the default shape are planned where they are wanted.
    let (seqlen_q, heads) = match tiles {
        TileShape::Compact => (52, 1),
        _ => (84, 3),
    };
    for (at, ([head_dim, head_dim_v], block_k)) in blocks(algorithm, tiles).into_iter().enumerate()
    {
        let of = |mask, seqlen_q, seqlen_k| {
            let case = Case::new(HALVES[at % 2], mask, head_dim, seqlen_q, seqlen_k);
            case.heads(1, heads, 1).columns(head_dim, head_dim_v)
        };
        let first = cases.len();
        // The last key of a block lies behind the end.
        cases.extend([block_k - 1, 2 * block_k - 1].map(|n| of(Mask::Full, seqlen_q, n)));
        // A warp's first row sees all keys of a block but the last; row 0 also all of them, or one of the next.
        for (first_row, off) in [(0, 0), (0, 1), (0, 2), (16, 0), (32, 0)] {
            let seqlen_k = seqlen_q + block_k + off - 2 - first_row;
            cases.push(of(Mask::Causal, seqlen_q, seqlen_k));
        }
        // A warp's last row, of 16 or 32, does not see the first key of a block.
        let seqlen = seqlen_q.max(block_k + 33);
        cases.extend([14, 30].map(|left| of(window(Some(left), None), seqlen, seqlen)));
        let own = [first, first + 3, first + 7].map(|at| in_used_rows(cases[at]));
        cases.extend(own);
    }
    cases
}

/// More splits than lanes of a warp that merges them, each weighing far more or far less than that of 32 splits before. Sequences have few rows, or
/// so many that a launch of its own merges them; in flash2 their keys also have lengths of their own.
pub fn many_splits(algorithm: Algorithm) -> Vec<Case> {
    let (head_dims, split_keys): (&[usize], usize) = match algorithm {
        Algorithm::Flash3 => (&[64, 192], 128),
        _ => (&[32, 128], 64),
    };
    let fills = [Fill::Falling, Fill::Rising];
    let cases = head_dims.iter().zip(fills).enumerate();
    let cases = cases.flat_map(|(at, (&head_dim, fill))| {
        [1, 24].map(|seqlen_q| {
            let seqlen_k = 33 * split_keys + 40;
            let case = Case::new(HALVES[at], MASKS[at], head_dim, seqlen_q, seqlen_k);
            Case {
                fill,
                split_kv: Some(split_keys),
                ..case.heads(1, 1, 1)
            }
        })
    });
    let mut cases: Vec<Case> = cases.collect();
    if algorithm == Algorithm::Flash2 {
        let own = in_used_rows(cases[0]);
        cases.push(own);
    }
    cases
}

/// More sequences than a warp has lanes, of which flash2's blocks for few queries find their share of the keys by themselves.
pub fn many_sequences() -> Vec<Case> {
    const USED: [usize; 70] = {
        let mut used = [0; 70];
        let mut at = 0;
        while at < used.len() {
            used[at] = [1, 0, 65, 130, 7, 300 - at][at * 5 % 6];
            at += 1;
        }
        used
    };
    let lengths = Lengths {
        n: USED.len(),
        q: Rows::padded(1),
        k: Rows::padded(300).used(&USED),
    };
    let case = Case::new(Dtype::Bf16, Mask::Full, 32, 0, 0).heads(1, 1, 1);
    vec![case.of_rows(lengths)]
}

/// Several tiles and heads for each block of threads, on a device with one SM: every stage of shared memory is filled more than
/// once, by tiles that follow each other. Each run has another order of the emulator's threads.
pub fn stages() -> Vec<Case> {
    let mut cases = Vec::new();
    let columns = [32, 64, 96, 128, 192, 256].map(|columns| [columns, columns]);
    let of_values = [[192, 128], [64, 256], [64, 512]];
    for (at, [head_dim, head_dim_v]) in columns.into_iter().chain(of_values).enumerate() {
        for (of_mask, mask) in MASKS.into_iter().enumerate() {
            let case = Case::new(HALVES[(at + of_mask) % 2], mask, head_dim, 140, 270);
            cases.push(Case {
                seed: 1000,
                ..case.heads(1, 2, 1 + of_mask).columns(head_dim, head_dim_v)
            });
        }
    }
    let masks = [window(Some(60), Some(0)), Mask::PrefixLm { prefix: 90 }];
    let masked = [64, 128, 256].into_iter().zip(HALVES.into_iter().cycle());
    for (at, (head_dim, dtype)) in masked.enumerate() {
        cases.push(Case::new(dtype, masks[at % 2], head_dim, 140, 270));
    }
    cases.extend(of_their_own(cases.iter().copied().step_by(3).collect()));
    // The first tiles of each sequence's keys are seen by no query: nobody but the loader hears of them.
    cases.extend([64, 192].map(|head_dim| {
        let mask = window(Some(33), Some(0));
        let case = Case::new(Dtype::Bf16, mask, head_dim, 70, 500);
        in_used_rows(case.heads(2, 1, 1))
    }));
    with_lse_gradients(cases)
}

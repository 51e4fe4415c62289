//! Block masks: random maps, a diagonal, queries and keys that nobody meets, maps that say nothing new; of every batch entry and
//! head, and shared; lengths that blocks do not divide.

use ferroflash::{Dtype, Mask};

use super::{Case, HALVES};
use crate::blocks::{Blocks, Each, Map};
use crate::buffer::ALIGNED;

/// Seldom the same on both sides, and divided by no block, or by every one.
const LENGTHS: [(usize, usize); 6] = [
    (300, 300),
    (520, 400),
    (200, 700),
    (513, 129),
    (384, 768),
    (70, 500),
];

/// `(block_q, block_k)`.
const SIZES: [(usize, usize); 4] = [(128, 128), (256, 128), (128, 384), (1024, 256)];

/// `(batch, heads_q, heads_k)`.
const HEADS: [(usize, usize, usize); 4] = [(1, 2, 2), (2, 2, 2), (2, 2, 1), (1, 3, 1)];

const EACH: [Each; 4] = [Each::Shared, Each::Head, Each::Batch, Each::BatchAndHead];

const MAPS: [Map; 8] = [
    Map::Random,
    Map::Diagonal,
    Map::HiddenQueries(0),
    Map::HiddenKeys(0),
    Map::Full,
    Map::Partial,
    Map::HiddenQueries(1),
    Map::HiddenKeys(1),
];

const MASKS: [Mask; 4] = [
    Mask::Causal,
    Mask::Full,
    Mask::Window {
        left: Some(100),
        right: Some(30),
    },
    Mask::PrefixLm { prefix: 150 },
];

/// Of keys and of values.
const COLUMNS: [(usize, usize); 6] = [
    (64, 64),
    (128, 128),
    (40, 40),
    (192, 192),
    (512, 512),
    (192, 128),
];

/// Every map under every mask, in some sizes; all else goes round.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for (of_map, map) in MAPS.into_iter().enumerate() {
        for (of_mask, mask) in MASKS.into_iter().enumerate() {
            for of in 0..2 {
                let round = cases.len();
                let (seqlen_q, seqlen_k) = LENGTHS[(of_map + 2 * of_mask + 3 * of) % LENGTHS.len()];
                let (block_q, block_k) = SIZES[(of_map + of_mask + of) % SIZES.len()];
                let (batch, heads_q, heads_k) = HEADS[(of_map / 2 + of_mask + of) % HEADS.len()];
                let (head_dim, head_dim_v) = COLUMNS[(round + round / 6) % COLUMNS.len()];
                let dtype = match round % 7 {
                    6 => Dtype::F32,
                    round => HALVES[round % 2],
                };
                let case = Case::new(dtype, mask, head_dim, seqlen_q, seqlen_k);
                let case = case.columns(head_dim, head_dim_v);
                cases.push(Case {
                    blocks: Some(Blocks {
                        block_q,
                        block_k,
                        each: EACH[(round + of_mask) % EACH.len()],
                        map,
                    }),
                    arrangement: ALIGNED[round % ALIGNED.len()],
                    seed: round as u64,
                    ..case.heads(batch, heads_q, heads_k)
                });
            }
        }
    }
    // Values of more columns than keys: a mask's blocks have several of these kernels' blocks of keys.
    for (round, map) in [Map::Random, Map::Diagonal, Map::Partial]
        .into_iter()
        .enumerate()
    {
        let case = Case::new(HALVES[round % 2], MASKS[round], 64, 260, 390);
        cases.push(Case {
            blocks: Some(Blocks {
                block_q: 128,
                block_k: 128,
                each: EACH[round],
                map,
            }),
            ..case.columns(64, 512).heads(1, 2, 1)
        });
    }
    // No queries, no keys, no batch entries.
    let blocks = |each| Blocks {
        block_q: 128,
        block_k: 256,
        each,
        map: Map::Full,
    };
    for (seqlen_q, seqlen_k, batch) in [(0, 5, 1), (5, 0, 1), (7, 7, 0)] {
        let case = Case::new(Dtype::Bf16, Mask::Causal, 64, seqlen_q, seqlen_k);
        cases.push(Case {
            blocks: Some(blocks(Each::Batch)),
            ..case.heads(batch, 2, 2)
        });
    }
    super::with_lse_gradients(cases)
}

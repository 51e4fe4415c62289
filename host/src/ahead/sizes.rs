//! Default sizes for calls that give none: enough of them that every kernel of such calls is planned for some.

use super::words::Sizes;
use crate::validate::Pass;

/// Batch entries or sequences.
const BATCHES: [usize; 5] = [1, 2, 8, 32, 128];

/// Heads of q, and of k and v.
const HEADS: [[usize; 2]; 8] = [
    [1, 1],
    [4, 4],
    [16, 16],
    [16, 8],
    [32, 8],
    [64, 8],
    [64, 4],
    [128, 1],
];

/// Equal numbers of rows of q and k, as in training and in prefill.
const ALIKE: [usize; 13] = [
    1, 2, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 65_536,
];

/// Rows of a few queries, and of the caches that they read.
const DECODE: ([usize; 8], [usize; 5]) = (
    [1, 2, 4, 8, 16, 32, 64, 256],
    [256, 2048, 8192, 65_536, 131_072],
);

/// Sizes of one problem.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub(super) batch: usize,
    pub(super) heads: [usize; 2],
    pub(super) seqlens: [usize; 2],
}

/// All combinations; a given size replaces its list.
pub(super) fn sizes(pass: Pass, said: &Sizes) -> Vec<Size> {
    let batches = said.batch.map_or(BATCHES.to_vec(), |batch| vec![batch]);
    let heads = said.heads.map_or(HEADS.to_vec(), |heads| vec![heads]);
    let mut seqlens: Vec<[usize; 2]> = ALIKE.map(|n| [n, n]).to_vec();
    if pass == Pass::Forward {
        let (queries, caches) = DECODE;
        seqlens.extend(queries.iter().flat_map(|&q| caches.map(|k| [q, k])));
    }
    let with_said = |[q, k]: [usize; 2]| match (said.seqlen, said.seqlen_k) {
        (None, None) => [q, k],
        (Some(q), None) => [q, q],
        (q_said, Some(k)) => [q_said.unwrap_or(q), k],
    };
    let mut seqlens: Vec<_> = seqlens.into_iter().map(with_said).collect();
    seqlens.sort_unstable();
    seqlens.dedup();
    let mut sizes = Vec::new();
    for &batch in &batches {
        for &heads in &heads {
            let of = |&seqlens| Size {
                batch,
                heads,
                seqlens,
            };
            sizes.extend(seqlens.iter().map(of));
        }
    }
    sizes
}

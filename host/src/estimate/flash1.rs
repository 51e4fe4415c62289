//! What FlashAttention (Dao et al. 2022) moves: Algorithms 1 and 4, their outer loop over blocks of keys.

use super::sizes::{F32_BYTES, Sizes, Visits};
use super::{Counts, Gpu, Launch};
use crate::terms::Pass;

/// Rows of the blocks by the paper's rule, `(B_r, B_c)`: B_c = ⌈M / 4d⌉ keys and B_r = min(B_c, d) queries, where M is how many elements
/// shared memory holds.
fn blocks(sizes: &Sizes, gpu: &Gpu) -> (u32, u32) {
    let columns = sizes.head_dim.max(sizes.head_dim_v);
    let n_elements = gpu.sram_bytes / sizes.element;
    let block_k = n_elements.div_ceil(4 * columns).max(1);
    let block_q = block_k.min(columns);
    // A sequence may be shorter than a block.
    let within = |block: u64, seqlen: u64| block.min(seqlen.max(1)) as u32;
    (
        within(block_q, sizes.seqlen_q),
        within(block_k, sizes.seqlen_k),
    )
}

/// The one kernel of a pass, with the bytes of what it keeps in memory between blocks of keys.
pub(super) fn counts(sizes: &Sizes, pass: Pass, gpu: &Gpu) -> Counts {
    let (block_q, block_k) = blocks(sizes, gpu);
    let visits = sizes.of_key_tiles(block_q, block_k);
    let scores = sizes.heads_q * visits.blocks * u64::from(block_q) * u64::from(block_k);
    let columns = match pass {
        Pass::Backward => 3 * sizes.head_dim + 2 * sizes.head_dim_v,
        _ => sizes.head_dim + sizes.head_dim_v,
    };
    let (hbm_bytes, extra_bytes) = match pass {
        Pass::Backward => backward(sizes, visits),
        _ => forward(sizes, visits),
    };
    let launch = Launch {
        name: match pass {
            Pass::Backward => "backward",
            _ => "forward",
        },
        flops: 2 * scores * columns * sizes.products,
        exponentials: scores,
        hbm_bytes,
        l2_bytes: hbm_bytes,
    };
    Counts {
        launches: vec![launch],
        tiles: None,
        extra_bytes,
    }
}

/// Every query head reads its keys and values once, and for each block of them q; it reads and writes O, l and m again.
fn forward(sizes: &Sizes, visits: Visits) -> (u64, u64) {
    let kept_of_row = sizes.head_dim_v * F32_BYTES + 2 * F32_BYTES;
    let kept = sizes.heads_q * sizes.seqlen_q * kept_of_row;
    let of_row = sizes.head_dim * sizes.element + 2 * kept_of_row;
    let keys = sizes.group * (sizes.k() + sizes.v());
    let results = sizes.o() + sizes.row_values();
    // Written once before the first block: zeros, and −∞.
    let bytes = keys + sizes.heads_q * visits.rows * of_row + kept + results;
    (bytes, kept)
}

/// The same with K, V, dK and dV; for each block of keys q, o, dO, l and m are read, and dQ is read and written.
fn backward(sizes: &Sizes, visits: Visits) -> (u64, u64) {
    let kept_of_row = sizes.head_dim * F32_BYTES;
    let kept = sizes.heads_q * sizes.seqlen_q * kept_of_row;
    let read = (sizes.head_dim + 2 * sizes.head_dim_v) * sizes.element + 2 * F32_BYTES;
    let of_row = read + 2 * kept_of_row;
    let keys = 2 * sizes.group * (sizes.k() + sizes.v());
    let bytes = keys + sizes.heads_q * visits.rows * of_row + kept + sizes.q();
    (bytes, kept)
}

//! flash1's kernels. Its backward pass has flash2's tiles.

use super::{HALF_BYTES, TileConfig};

/// Forward: eight warps of 16 queries each. One block of threads has a query head, so that heads rarely fill an SM with two.
///
/// Each block of keys reads and writes O of all queries, so blocks of keys are as long as a warp's registers allow, which hold 16 rows of S and of O: the
/// paper takes what shared memory holds, too. At head_dim 32 and 64 Q, K and V take 40 and 80 KB, at 128 96 KB, which devices with 99 KB of shared memory
/// per block have. At 256 they take 128 KB.
pub const fn flash1_forward(head_dim: u32) -> TileConfig {
    let block_q = 128;
    let block_k = match head_dim {
        ..=64 => 256,
        65..=128 => 128,
        _ => 64,
    };
    TileConfig {
        threads: 256,
        shared_bytes: (block_q + 2 * block_k) * head_dim * HALF_BYTES,
        blocks_per_sm: 1,
        cluster: 1,
        block_q,
        block_k,
        launch_registers: 0,
        // All 255 registers are taken up to head_dim 128. Where copies begin, and the place of the head, lie in local memory: some words that are written once a
        // block of keys, and a few that each step reads.
        spill_bytes: match head_dim {
            ..=128 => 208,
            _ => 96,
        },
    }
}

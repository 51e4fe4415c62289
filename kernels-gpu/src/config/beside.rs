//! Tile configs of the kernels without attention's products: they list, clear and merge.

use ferroflash_expression::{MAX_MASK_BOUNDS, MAX_MASK_VALUES};

use super::{TileConfig, product};

/// Gradients of keys that no query sees: eight warps, eight rows each.
pub const fn clear() -> TileConfig {
    TileConfig {
        block_q: 64,
        block_k: 64,
        ..TileConfig::new(256, 4)
    }
}

/// How many sequences the kernel that lists tiles sorts by their lengths; more are taken in their own order.
pub const SORTED_SEQUENCES: u32 = 4096;

/// Of how many sequences it keeps the rows in shared memory; of more they lie in the workspace.
pub const KEPT_SEQUENCES: u32 = 1024;

/// Tiles of sequences: sixteen warps. One block lists them, with three words for each sequence, one for each warp, and four for each sequence that
/// it keeps; the others have four rows a warp.
pub const fn tile_list() -> TileConfig {
    let threads = 512;
    TileConfig {
        shared_bytes: (3 * SORTED_SEQUENCES + threads / 32 + 4 * KEPT_SEQUENCES) * 4,
        block_q: 64,
        block_k: 64,
        ..TileConfig::new(threads, 2)
    }
}

/// Lists of blocks: eight warps, a list each.
pub const fn block_list() -> TileConfig {
    TileConfig::new(256, 4)
}

/// Maps of masks: four warps, with a place in shared memory for each value that a thread's program holds or keeps, of 16 bytes.
pub const fn mask_map() -> TileConfig {
    let threads = 128;
    TileConfig {
        shared_bytes: threads * (MAX_MASK_VALUES + MAX_MASK_BOUNDS) as u32 * 16,
        ..TileConfig::new(threads, 2)
    }
}

/// Columns of the widest row whose splits are merged eight at a time. Rows of up to twice as many are merged four at a time.
pub const COMBINE_COLUMNS: u32 = 256;

/// Results of splits merged: four warps, a row of one head each.
pub const fn combine() -> TileConfig {
    TileConfig {
        block_q: 4,
        ..TileConfig::new(128, 1)
    }
}

/// Gradients of sinks: sixteen warps for all rows of a head, with a word each.
pub const fn sink_gradient() -> TileConfig {
    let threads = 512;
    TileConfig {
        shared_bytes: threads / 32 * 4,
        ..TileConfig::new(threads, 1)
    }
}

/// Gradients of tensors that a score reads: products of `standard` for 128 × 128 of the result. A thread holds three of these at a time, the sum, weights and dP: so
/// there is one block per SM.
pub const fn tensor_gradient() -> TileConfig {
    TileConfig {
        blocks_per_sm: 1,
        ..product()
    }
}

/// Two parts of the keys merged: eight warps for 32 rows. A row of head_dim 128 takes 16 lanes, so each thread then has two pieces. Many blocks per
/// SM keep many loads in flight.
pub const fn merge() -> TileConfig {
    TileConfig {
        block_q: 32,
        ..TileConfig::new(256, 6)
    }
}

/// Rows appended to a cache or rotated: four warps for 16 rows of one head. A row of head_dim 128 takes 8 lanes. Blocks are small, so that the
/// few rows of a decode step are spread over several SMs.
pub const fn append() -> TileConfig {
    TileConfig {
        block_q: 16,
        ..TileConfig::new(128, 8)
    }
}

/// A tensor to 8 bits: eight warps for 128 rows of the heads that share one of keys. A row of head_dim 128 takes 16 lanes, so a thread has eight pieces of such a
/// head. Shared memory holds a number for each warp.
pub const fn quantize() -> TileConfig {
    let threads = 256;
    TileConfig {
        block_q: 128,
        shared_bytes: threads / 32 * 4,
        ..TileConfig::new(threads, 3)
    }
}

/// q, k and v out of 8 bits: eight warps for 16 rows of all heads. Many blocks per SM keep many loads in flight.
pub const fn dequantize() -> TileConfig {
    TileConfig {
        block_q: 16,
        ..TileConfig::new(256, 6)
    }
}

//! Kernels of `standard`.

use super::{HALF_BYTES, TileConfig};

/// Rows of `standard`: four warps, one row each.
pub const fn weight_rows() -> TileConfig {
    TileConfig {
        block_q: 4,
        ..TileConfig::new(128, 1)
    }
}

/// Stages of both operands of a product of `standard`: one is multiplied while two arrive.
pub const PRODUCT_STAGES: u32 = 3;

/// How much of the product's inner dimension a stage holds, of elements of two bytes.
pub const PRODUCT_DEPTH: u32 = 32;

/// Matrix products of `standard`: 128 × 128 of the result by a block of eight warps; two blocks per SM, so that one
/// multiplies while the other begins or ends.
pub const fn product() -> TileConfig {
    let block = 128;
    TileConfig {
        shared_bytes: PRODUCT_STAGES * 2 * block * PRODUCT_DEPTH * HALF_BYTES,
        block_q: block,
        block_k: block,
        ..TileConfig::new(256, 2)
    }
}

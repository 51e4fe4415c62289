//! Kernels of f32 tensors.

use super::{Footprint, forward_stages};

/// Bytes of an element of f32.
pub const F32_BYTES: u32 = 4;

/// Forward of f32: four warps, each with 32 query rows, as [`super::forward`]. A row has twice as many bytes, so a block of keys has fewer: Q and two
/// stages of K and V fit the 99 KB of compute capability 8.6 and 8.9 at every head_dim. Two blocks share an SM where its shared memory has room.
pub const fn forward_f32(head_dim: u32) -> Footprint {
    let block_q = 128;
    // As many as shared memory has room for at head_dim 128. Below it, 64 keys would take more registers than there are where operands are split.
    let block_k = if head_dim == 128 { 16 } else { 32 };
    Footprint {
        threads: 128,
        shared_bytes: (block_q + 2 * forward_stages(head_dim) * block_k) * head_dim * F32_BYTES,
        blocks_per_sm: 2,
        block_q,
        block_k,
        launch_registers: 0,
        // A frame for what lies between the fields of a list's entry, under a block mask.
        spill_bytes: 8,
    }
}

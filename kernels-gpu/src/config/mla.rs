//! The tile config of flash3's forward kernel for values that are the first columns of the keys.

use super::{HALF_BYTES, TMA_LENGTHS, TMA_SLOTS, TileConfig, launch_registers};

/// Columns of O that each of the two consumers of such a kernel has.
pub const MLA_COLUMNS: u32 = 256;

/// Bytes of P of 64 rows and keys, by which the consumers of such a kernel meet; of their m, and of both l.
pub const MLA_EXCHANGE: [u32; 3] = [64 * 64 * HALF_BYTES, 64 * 4, 2 * 64 * 4];

/// Forward on Hopper where values are the first columns of the keys (MLA): compact tiles of 64 rows. O has up to 512 columns, as many as two
/// warpgroups have registers for. Shared memory: Q, two blocks of 64 keys, what the consumers tell each other, the slots, and two
/// barriers for each of Q, the slots, P and, of each block of keys, the three pieces in which it comes and goes.
pub const fn tma_forward_mla(head_dim: u32) -> TileConfig {
    let (consumers, block_q, block_k, kv_stages) = (2, 64, 64, 2);
    let columns = head_dim.next_multiple_of(64);
    let [p, m, l] = MLA_EXCHANGE;
    let barriers = 2 * (1 + 2 * kv_stages + TMA_SLOTS + consumers + 2 * kv_stages);
    TileConfig {
        threads: 128 * (consumers + 1),
        shared_bytes: (block_q + kv_stages * block_k) * columns * HALF_BYTES
            + p
            + m
            + l
            + TMA_SLOTS * 16
            + TMA_LENGTHS * 32
            + barriers * 8,
        blocks_per_sm: 1,
        block_q,
        block_k,
        launch_registers: launch_registers(128 * (consumers + 1), 1),
        // While O and S fill the registers, a consumer keeps what it wants at the end of a tile in local memory, where it is read and written
        // once a tile: nothing of it in the loop over blocks.
        spill_bytes: 480,
    }
}

//! flash2's kernels.

use super::{F32_BYTES, HALF_BYTES, TileConfig};
use crate::variants::TileShape;

/// How flash2's forward kernel works on a tile of queries, of which a block of four warps has one.
///
/// A warp has 32 query rows, so that a fragment of K or V read from shared memory feeds two `mma`; two blocks share an SM, so that one block's products hide
/// the other's softmax. At head_dim 256 a warp has registers for O of 16 rows; a tile of 64 queries and two stages of 32 keys take 96 KB, which devices with 99
/// KB of shared memory per block have, too. At head_dim 512 the four warps have the same 32 rows, and 128 columns each. They add up parts of S in shared memory:
/// 16 keys at a time, 72 KB in all, so that devices with 164 KB of it hold two blocks.
///
/// A row of f32 has twice as many bytes, so a block of keys has fewer: Q and two stages of K and V fit the 99 KB of compute capability 8.6 and 8.9 at every
/// head_dim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forward {
    /// Queries of a tile.
    pub block_q: u32,
    /// Keys of a block.
    pub block_k: u32,
    /// Stages of K, and of V: one is multiplied while the other arrives. Where warps divide the columns there is one: K arrives while V is multiplied.
    pub stages: u32,
    /// Warps that have the same rows, each with different columns. Above head_dim 256 no warp has registers for O of 16 rows.
    pub warps_across: u32,
    /// Blocks that share an SM.
    pub blocks_per_sm: u32,
    /// Bytes of spills and stack that ptxas may report. Up to head_dim 128 all 255 registers are taken, and a few words that are read once a block at most (pointers
    /// of the loads, the tile's place) lie in local memory. Smaller blocks of keys need none and are slower: 64 instead of 128 by 3 to 7 % at head_dim 64, 32
    /// instead of 64 by 2 to 9 % at head_dim 128 (H200).
    pub spill_bytes: u32,
}

impl Forward {
    /// Tiles with this many queries, keys and blocks per SM.
    const fn new(block_q: u32, block_k: u32, blocks_per_sm: u32, spill_bytes: u32) -> Forward {
        Forward {
            block_q,
            block_k,
            stages: 2,
            warps_across: 1,
            blocks_per_sm,
            spill_bytes,
        }
    }

    /// The tiles for elements of this many bytes, in this many columns.
    pub const fn of(element_bytes: u32, head_dim: u32) -> Forward {
        match (element_bytes, head_dim) {
            // Below head_dim 128, 64 keys would take more registers than there are where operands are split.
            (F32_BYTES, ..=64) => Forward::new(128, 32, 2, 0),
            // As many as shared memory has room for.
            (F32_BYTES, _) => Forward::new(128, 16, 2, 0),
            (_, ..=64) => Forward::new(128, 128, 2, 160),
            (_, 65..=128) => Forward::new(128, 64, 2, 160),
            (_, 129..=256) => Forward::new(64, 32, 1, 0),
            _ => Forward {
                stages: 1,
                warps_across: head_dim / 128,
                ..Forward::new(32, 16, 2, 0)
            },
        }
    }
}

/// Forward: shared memory holds Q, the stages of K and V, and what warps that have the same rows exchange.
pub const fn forward(element_bytes: u32, head_dim: u32) -> TileConfig {
    let tiles = Forward::of(element_bytes, head_dim);
    let exchange = match tiles.warps_across {
        1 => 0,
        warps => warps * tiles.block_q * tiles.block_k * 4,
    };
    let rows = tiles.block_q + 2 * tiles.stages * tiles.block_k;
    TileConfig {
        shared_bytes: rows * head_dim * element_bytes + exchange,
        block_q: tiles.block_q,
        block_k: tiles.block_k,
        spill_bytes: tiles.spill_bytes,
        ..TileConfig::new(128, tiles.blocks_per_sm)
    }
}

/// Warps of a block of flash2's decode kernel.
pub const DECODE_WARPS: u32 = 4;

/// Stages of each of its warps, with 16 keys and values each: while one is multiplied, the others arrive.
pub const DECODE_STAGES: u32 = 3;

/// Decode: tiles of 16 rows, in which the queries of a group of heads are packed. Each warp has its own chunks of 16 keys. At head_dim 128 two
/// blocks fill the shared memory of an SM, and 128 KB are in flight.
pub const fn forward_decode(head_dim: u32) -> TileConfig {
    let rows = 16;
    TileConfig {
        shared_bytes: DECODE_WARPS * DECODE_STAGES * 2 * rows * head_dim * HALF_BYTES,
        block_q: rows,
        block_k: rows * DECODE_WARPS,
        ..TileConfig::new(32 * DECODE_WARPS, 2)
    }
}

/// The same for keys and values in `e4m3`, which have half the bytes: so the same number of bytes is in flight.
pub const DECODE_E4M3_STAGES: u32 = 5;

/// As [`forward_decode`], for keys and values in `e4m3`, and their scales.
pub const fn forward_decode_e4m3(head_dim: u32) -> TileConfig {
    let few = forward_decode(head_dim);
    let scales = 4;
    TileConfig {
        shared_bytes: DECODE_WARPS * DECODE_E4M3_STAGES * 2 * few.block_q * (head_dim + scales),
        ..few
    }
}

/// Backward: a tile of keys, 128 up to head_dim 128, is resident, blocks of queries are streamed. Four warps own S, P and dV, four own dP, dS
/// and dK, 32 keys each; together they own dQ. Shared memory: K, V, two stages of Q, dO, lse and Δ, two stages that hold P and then dS,
/// 16 bytes for the number of the claimed tile, and 32 for the list's entry of it.
///
/// Blocks of 64 queries at head_dim 128 take 161 KB. The compact shape, for the 99 KB of compute capability 8.6 and 8.9,
/// has blocks of 16. 64 keys and blocks of 32 would fit too and be as much work between two barriers; but Q and dO would
/// be read, and dQ added to, twice as often, and eight warps of 16 keys would read 8 % more fragments from shared memory,
/// while four of 32 would leave each scheduler a single warp. That is counted, not timed on such a device.
///
/// At head_dim 256 a warp has registers for dV or dK of 16 keys: tiles are of 64, with blocks of 32 queries, and take 137 KB. The compact shape's
/// are of 32 keys, of two warps in each role, with blocks of 16 queries: 69 KB.
///
/// f32 has the same rows at head_dim 128, in 145 and 69 KB. Below it two warps in each role have 32 keys each: 49 KB at head_dim 32 and 81 KB at 64, so
/// that devices with 164 KB of shared memory hold two blocks.
pub const fn backward(element_bytes: u32, head_dim: u32, tiles: TileShape) -> TileConfig {
    let (role_warps, block_q, block_k) = match (element_bytes, tiles, head_dim) {
        (F32_BYTES, TileShape::Default, ..=64) => (2, 32, 64),
        (F32_BYTES, TileShape::Default, _) => (4, 32, 64),
        (F32_BYTES, TileShape::Compact, _) => (2, 16, 32),
        (_, TileShape::Default, ..=128) => (4, 64, 128),
        (_, TileShape::Compact, ..=128) => (4, 16, 128),
        (_, TileShape::Default, _) => (4, 32, 64),
        (_, TileShape::Compact, _) => (2, 16, 32),
        (_, TileShape::Wide | TileShape::Grouped | TileShape::OneLevel | TileShape::Paired, _) => {
            panic!("this kernel has no such tiles")
        }
    };
    TileConfig {
        threads: 2 * 32 * role_warps,
        shared_bytes: (2 * block_k + 4 * block_q) * head_dim * element_bytes
            + 2 * 2 * block_q * 4
            + 16
            + 32
            + 2 * block_k * d_s_row_bytes(element_bytes, block_q),
        cluster: 1,
        blocks_per_sm: match (element_bytes, head_dim) {
            (F32_BYTES, ..=64) => 2,
            _ => 1,
        },
        block_q,
        block_k,
        // At head_dim 128, ptxas keeps two words, for sm_90 three, that describe the tile's block order in local memory; taking P in
        // smaller pieces instead frees them and costs 4 % (H200).
        launch_registers: 0,
        spill_bytes: match (element_bytes, tiles) {
            (HALF_BYTES, TileShape::Default) if head_dim == 128 => 124,
            _ => 0,
        },
    }
}

/// Bytes of a row of P and dS in shared memory, a key's queries of a block: at least 64, the shortest row that the
/// swizzle knows.
pub const fn d_s_row_bytes(element_bytes: u32, block_q: u32) -> u32 {
    let bytes = block_q * element_bytes;
    if bytes < 64 { 64 } else { bytes }
}

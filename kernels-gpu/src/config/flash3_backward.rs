//! flash3's backward kernel: its schedules, by name, and what a block of each takes.

use super::{HALF_BYTES, TileConfig, divide_blocks, launch_registers, padded_columns};
use crate::variants::TileShape;

/// Stages of Q, of dS and, unless a schedule says otherwise, of dO, and slots for work tiles and for blocks of dQ: one is multiplied while the other
/// arrives. More stages of Q or dO were no faster (H200).
pub const TMA_BACKWARD_STAGES: u32 = 2;

/// Semaphores of a tile's sums of dV and dK in the flash3 backward kernel: of each for every consumer warp.
pub const TMA_BACKWARD_SUM_WARPS: u32 = 2 * 8;

/// What the two consumers of a block divide among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Division {
    /// The keys of a tile: each has dV and dK of 64.
    Keys,
    /// The products of a tile: one has dV, the other dK. Where registers hold either of 64 keys, not both.
    Products,
    /// The columns of dV and dK: each has half of both, of all keys of a tile, transposed. A tile then may have more than 64 keys.
    Columns,
}

/// How flash3's backward kernel works on a tile of keys.
///
/// | schedule | queries × keys of a step | consumers divide | dO's stages | dV and dK leave through |
/// |---|---|---|---|---|
/// | head_dim 64 | 128 × 128 | the keys | 2 | two places |
/// | 96 | 64 × 128 | the keys | 2 | one |
/// | 128 | 64 × 128 | the keys | 2 | one |
/// | 128, wide | 80 × 128 | the keys | 2 | V's |
/// | 192, values of 128 | 64 × 128 | the keys | 1 | none: from the registers |
/// | 192, 256 | 64 × 64 | the products | 2 | one, which P has before |
/// | 256, wide | 64 × 80 | the columns | 1 | V's and K's |
/// | 256, paired | 64 × 128 of two blocks | the columns | 1 | V's and K's |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TmaBackward {
    /// Queries of a step. At head_dim 64 there are 128: with 64, `wgmma` would read its operands from shared memory for as long as it multiplies. At
    /// 128 registers do not hold more than 80.
    pub block_q: u32,
    /// Keys of a tile.
    pub block_k: u32,
    /// Blocks of the cluster that works on a tile: each has as many of its keys, sends its dS to the others, and takes its share of dQ's columns, over all
    /// keys of the tile, to memory.
    pub cluster: u32,
    /// What consumers divide.
    pub division: Division,
    /// Stages of dO: one if shared memory has no room for two in addition to dQ on its way to memory.
    pub d_o_stages: u32,
    /// How many buffers dV and dK have on their way out: one each if shared memory has room for both, so that dK need not wait until dV has left;
    /// none if it has no room: then they leave from the registers.
    pub outs: u32,
    /// Whether dS lies in shared memory with its queries down, and consumers hold dQ transposed, 64 columns of a block each: where a block has not 64
    /// queries, or twice as many. dV and dK then leave through V's place, as there is no other.
    pub queries_down: bool,
    /// Whether consumers multiply Sᵀ after dQ and dK of the earlier steps, and not at the same time: registers do not hold both.
    pub s_after_dq: bool,
    /// Whether they multiply dK in the step that makes its dSᵀ, and not in the next: where registers do not keep it until then.
    pub dk_at_once: bool,
    /// Whether registers hold P unrounded until dS is made of it.
    pub keeps_p: bool,
    /// Whether consumers halve a third part of 64 columns of dQ.
    pub halves_a_part: bool,
    /// Registers of a thread of the producer warpgroup, and of a consumer: together not more than the 168 that the launch gives each thread. With 40 the
    /// producers need no local memory.
    pub registers: [u32; 2],
}

impl TmaBackward {
    const HEAD_DIM_64: TmaBackward = TmaBackward {
        block_q: 128,
        block_k: 128,
        cluster: 1,
        division: Division::Keys,
        d_o_stages: TMA_BACKWARD_STAGES,
        outs: 2,
        queries_down: false,
        s_after_dq: false,
        dk_at_once: false,
        keeps_p: false,
        halves_a_part: false,
        registers: [24, 240],
    };

    const HEAD_DIM_96: TmaBackward = TmaBackward {
        block_q: 64,
        outs: 1,
        ..TmaBackward::HEAD_DIM_64
    };

    const HEAD_DIM_128: TmaBackward = TmaBackward {
        s_after_dq: true,
        keeps_p: true,
        ..TmaBackward::HEAD_DIM_96
    };

    const HEAD_DIM_128_WIDE: TmaBackward = TmaBackward {
        block_q: 80,
        queries_down: true,
        keeps_p: false,
        ..TmaBackward::HEAD_DIM_128
    };

    const HEAD_DIM_192_VALUES_128: TmaBackward = TmaBackward {
        d_o_stages: 1,
        outs: 0,
        dk_at_once: true,
        keeps_p: false,
        halves_a_part: true,
        ..TmaBackward::HEAD_DIM_128
    };

    const HEAD_DIM_256: TmaBackward = TmaBackward {
        block_k: 64,
        division: Division::Products,
        dk_at_once: true,
        keeps_p: false,
        ..TmaBackward::HEAD_DIM_128
    };

    const HEAD_DIM_256_WIDE: TmaBackward = TmaBackward {
        block_k: 80,
        division: Division::Columns,
        d_o_stages: 1,
        outs: 2,
        keeps_p: true,
        ..TmaBackward::HEAD_DIM_256
    };

    const HEAD_DIM_256_PAIRED: TmaBackward = TmaBackward {
        block_k: 128,
        cluster: 2,
        registers: [40, 232],
        ..TmaBackward::HEAD_DIM_256_WIDE
    };

    const HEAD_DIM_192: TmaBackward = TmaBackward {
        registers: [40, 232],
        ..TmaBackward::HEAD_DIM_256
    };

    /// The schedule for tiles of this many columns; a shape that does not exist fails to compile.
    pub const fn of(head_dim: u32, head_dim_v: u32, tiles: TileShape) -> TmaBackward {
        match (tiles, head_dim, head_dim_v) {
            (TileShape::Default, 64, 64) => TmaBackward::HEAD_DIM_64,
            (TileShape::Default, 96, 96) => TmaBackward::HEAD_DIM_96,
            (TileShape::Default, 128, 128) => TmaBackward::HEAD_DIM_128,
            (TileShape::Wide, 128, 128) => TmaBackward::HEAD_DIM_128_WIDE,
            (TileShape::Default, 192, 128) => TmaBackward::HEAD_DIM_192_VALUES_128,
            (TileShape::Default, 192, 192) => TmaBackward::HEAD_DIM_192,
            (TileShape::Default, 256, 256) => TmaBackward::HEAD_DIM_256,
            (TileShape::Wide, 256, 256) => TmaBackward::HEAD_DIM_256_WIDE,
            (TileShape::Paired, 256, 256) => TmaBackward::HEAD_DIM_256_PAIRED,
            _ => panic!("this kernel has no such tiles"),
        }
    }

    /// Columns of dQ that a warp rounds at once: all of head_dim; half or a quarter of them where registers hold no more, 32 where they hold dK and dV besides.
    pub const fn rounded(self, head_dim: u32) -> u32 {
        match (self.halves_a_part, self.division) {
            (true, _) => 32,
            (false, Division::Products) => head_dim / 2,
            (false, Division::Columns) => head_dim / 4,
            (false, Division::Keys) => head_dim,
        }
    }

    /// Whether its tiles divide the blocks of block masks. Where consumers share the products of a tile, those of the forward pass do not, and no problem
    /// with a block mask gets so far.
    pub const fn divides_blocks(self) -> bool {
        divide_blocks(self.block_q, self.block_k) && self.divides_keys()
    }

    /// Whether consumers divide the keys. Where they do not, they add dQ to memory from their registers.
    pub const fn divides_keys(self) -> bool {
        matches!(self.division, Division::Keys)
    }

    /// Keys of a tile that a block has: rows of the boxes in which K and V come.
    pub const fn keys_of_block(self) -> u32 {
        self.block_k / self.cluster
    }

    /// Rows of the boxes in which dV and dK leave: keys of a consumer.
    pub const fn rows_out(self) -> u32 {
        match self.division {
            Division::Keys | Division::Products => 64,
            Division::Columns => self.keys_of_block(),
        }
    }
}

/// Backward on Hopper: one block per SM; two consumer warpgroups, and a producer warpgroup. Shared memory: K, V; the stages of Q, dO and dS; where
/// consumers divide the keys, dV and dK on the way out and dQ on its way to memory, else stages of P; lse and Δ; slots for steps, work tiles and
/// blocks of dQ; and the barriers. In a cluster of two blocks: the other's dS, K of its keys in this block's columns of dQ, a slot for claims, and the
/// barriers for these.
pub const fn tma_backward(head_dim: u32, head_dim_v: u32, tiles: TileShape) -> TileConfig {
    let schedule = TmaBackward::of(head_dim, head_dim_v, tiles);
    let TmaBackward {
        block_q,
        cluster,
        division,
        d_o_stages,
        outs,
        queries_down,
        ..
    } = schedule;
    let keys = schedule.keys_of_block();
    let stages = TMA_BACKWARD_STAGES;
    let row_bytes = padded_columns(head_dim) * HALF_BYTES;
    let value_bytes = padded_columns(head_dim_v) * HALF_BYTES;
    let rows = keys * (row_bytes + value_bytes)
        + stages * block_q * row_bytes
        + d_o_stages * block_q * value_bytes;
    let d_s = stages * keys * block_q * HALF_BYTES;
    let out = match (queries_down, division) {
        (true, _) => 0,
        (false, Division::Products | Division::Columns) => d_s,
        (false, Division::Keys) => outs * keys * row_bytes,
    };
    let d_q = match division {
        Division::Products | Division::Columns => 0,
        Division::Keys => block_q * padded_columns(head_dim) * 4,
    };
    let statistics = 2 * stages * block_q * 4;
    // Steps, work, the list's entry for the work, blocks of dQ.
    let slots = 3 * stages * 16 + stages * 32;
    let barriers = 2 * (8 * stages + 2) * 8;
    let of_peer = match cluster {
        1 => 0,
        _ => d_s + keys * row_bytes / cluster + 16 + stages * 8 + 2 * 8,
    };
    TileConfig {
        threads: 3 * 128,
        shared_bytes: rows + d_s + out + d_q + statistics + slots + barriers + of_peer,
        blocks_per_sm: 1,
        cluster,
        block_q,
        block_k: schedule.block_k,
        launch_registers: launch_registers(3 * 128, 1),
        // Stores and loads together. At head_dim 256 consumers need all registers that the producer warpgroup can give back. It
        // keeps a few words of a tile's block order in local memory, and computes them once a tile.
        spill_bytes: if head_dim <= 192 { 0 } else { 192 },
    }
}

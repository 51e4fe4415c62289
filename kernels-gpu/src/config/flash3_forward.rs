//! flash3's forward kernels: their schedules, by name, and what a block of each takes.

use super::{BYTE_BYTES, HALF_BYTES, TileConfig, launch_registers, padded_bytes, padded_columns};
use crate::variants::TileShape;

/// Slots by which the flash3 forward kernel's producer says which tile comes next.
pub const TMA_SLOTS: u32 = 2;

/// Places for the lengths of the tiles' sequences. A place is written again when its tile is done with, not when its slot has been
/// read: that is two tiles later at the latest.
pub const TMA_LENGTHS: u32 = 2 * TMA_SLOTS;

/// How flash3's forward kernel works on a tile of queries.
///
/// | schedule | consumers × queries | keys of a block | stages of Q, and of K and V | O leaves through | blocks per SM |
/// |---|---|---|---|---|---|
/// | head_dim 64 | 2 × 64 | 128 | 2, 3 | its place | 1 |
/// | 96, 128 | 2 × 64 | 128 | 2, 2 | its place | 1 |
/// | 160, 192 | 2 × 64 | 80 | 1, 2 | its place | 1 |
/// | 256 | 2 × 64 | 80 | 1, 2 | none: from the registers | 1 |
/// | 512 | 2, the same 64 | 32 | 1, 2 | none | 1 |
/// | 192, values of 128 | 2 × 64 | 128 | 1, 2 | none | 1 |
/// | 64, values of 256 | 2 × 64 | 96 | 2, 2 | its place | 1 |
/// | 64, values of 512 | 2, the same 64 | 64 | 2, 2 | none | 1 |
/// | 64, wide | 3 × 64 | 128 | 2, 3 | its place | 1 |
/// | 128, wide | 3 × 64 | 80 | 2, 2 | its place | 1 |
/// | 64, grouped | 2 × 64 | 128 | 2, 3 | its place | 1 |
/// | 128, grouped | 2 × 64 | 128 | 2, 2 | its place | 1 |
/// | 64, compact | 1 × 64 | 128 | 2, 2 | its place | 2 |
/// | 96, 128, compact | 1 × 64 | 64 | 2, 2 | its place | 2 |
/// | 192, compact | 1 × 64 | 112 | 1, 2 | its place | 1 |
/// | 256, compact | 1 × 64 | 80 | 1, 2 | its place | 1 |
/// | 576, values among the keys | 2, the same 64 | 64 | 1, 2 | none | 1 |
/// | 64, 96, 128, in 8 bits | 2 × 64 | 128 | 2, 3 | its place | 1 |
/// | 192, in 8 bits | 2 × 64 | 128 | 1, 2 | its place | 1 |
/// | 256, in 8 bits | 2 × 64 | 128 | 1, 2 | none | 1 |
/// | 64, in 8 bits, wide | 3 × 64 | 192 | 2, 3 | its place | 1 |
/// | 96, 128, in 8 bits, wide | 3 × 64 | 128 | 2, 3 | its place | 1 |
/// | 128, in 8 bits, one level | 2 × 64 | 192 | 2, 2 | its place | 1 |
/// | 192, in 8 bits, one level | 2 × 64 | 128 | 1, 2 | its place | 1 |
/// | 256, in 8 bits, one level | 2 × 64 | 96 | 1, 2 | none | 1 |
///
/// The wide shape has three consumers: their softmax then hides more of the others' products, which pays where a tile is long and head_dim small, and in 8 bits up
/// to 128, where products are short. With sums of one level two consumers have registers for more keys in a block, which is as good: each step of the softmax waits for more
/// than it computes. The grouped
/// shape is the default one, for tiles that several heads share. The compact shape has one consumer; up to head_dim 128 two of its blocks share an SM, so that
/// one's products hide the other's softmax: each has half of the registers and at most 113 KB of shared memory, which at head_dim 128 two stages of 64 keys fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TmaForward {
    /// Warpgroups that multiply.
    pub consumers: u32,
    /// Whether these have the same rows: each multiplies S of them, and half of the columns of O. Above 256 columns of values none has registers for 64 rows of O.
    pub shares_rows: bool,
    /// Keys of a block: the most that shared memory has room for, and registers for their scores.
    pub block_k: u32,
    /// Stages of Q: with two, the next tile's arrives while this one's is in use. Above head_dim 128 there is room for one.
    pub q_stages: u32,
    /// Warps that transpose V for the consumers: in 8 bits. 0 where they take it as it is.
    pub transposers: u32,
    /// Stages of V as it comes, where it is transposed.
    pub raw_v_stages: u32,
    /// Stages of K, and of V. In 8 bits up to head_dim 128 there is room for three, which is 2 to 7 % faster than two (H200). At head_dim 64 there is room for three, which is 2 to 9 % faster than two with sequences of up to 1024 (H200); not where values
    /// have more columns, nor where two blocks share an SM.
    pub kv_stages: u32,
    /// Whether O goes to memory through shared memory and the TMA, which is faster; for 128 rows of head_dim 256 there is no room, nor beside 128 keys of 192
    /// columns and their values of 128. Where consumers have the same rows, each stores its columns itself.
    pub stores: bool,
    /// Blocks that share an SM.
    pub blocks_per_sm: u32,
    /// Registers of a thread of the producer warpgroup, and of a consumer: together not more than the launch gives all of them, the 64 Ki of an SM, in units of
    /// 8. With 40 the producer needs no local memory for the lengths of a sequence, nor for splits. 0 where consumers need none of the producer's: where an SM
    /// has 256 threads at most, each begins with as many as it can have.
    pub registers: [u32; 2],
    /// Whether consumers look up their place in the block of threads each time they need it. Kernels that have no register to keep it in: that of
    /// head_dim 256 with lengths and splits, and those of more columns of values than of keys beside an expression.
    pub forgets_place: bool,
    /// Whether the softmax is speculative: exponentials before the maxima are known. Where values have more than 128 columns, the softmax hides behind the
    /// products anyway, and K is kept longer for it: with short causal sequences that costs 3 % (H200).
    pub speculates: bool,
    /// Whether ping-pong barriers order the products of the consumers. Where values have more than 128 columns, products take so much longer than the
    /// softmax that it makes no difference.
    pub ping_pong: bool,
    /// In how many pieces of its columns a block's P V is summed apart from O, and added to it in f32: sums of two levels, for products whose own have too few bits
    /// to grow over all keys. 0: the products add to O.
    pub value_pieces: u32,
    /// Bytes of spills and stack that ptxas may report.
    pub spill_bytes: u32,
}

impl TmaForward {
    const HEAD_DIM_64: TmaForward = TmaForward {
        consumers: 2,
        shares_rows: false,
        block_k: 128,
        q_stages: 2,
        transposers: 0,
        raw_v_stages: 0,
        kv_stages: 3,
        stores: true,
        blocks_per_sm: 1,
        registers: [24, 240],
        forgets_place: false,
        speculates: true,
        ping_pong: true,
        value_pieces: 0,
        spill_bytes: 0,
    };

    const HEAD_DIM_128: TmaForward = TmaForward {
        kv_stages: 2,
        ..TmaForward::HEAD_DIM_64
    };

    const HEAD_DIM_192: TmaForward = TmaForward {
        block_k: 80,
        q_stages: 1,
        speculates: false,
        ping_pong: false,
        ..TmaForward::HEAD_DIM_128
    };

    const HEAD_DIM_256: TmaForward = TmaForward {
        stores: false,
        registers: [40, 232],
        ..TmaForward::HEAD_DIM_192
    };

    const HEAD_DIM_512: TmaForward = TmaForward {
        shares_rows: true,
        block_k: 32,
        ..TmaForward::HEAD_DIM_256
    };

    const HEAD_DIM_192_VALUES_128: TmaForward = TmaForward {
        q_stages: 1,
        stores: false,
        ..TmaForward::HEAD_DIM_128
    };

    const HEAD_DIM_64_VALUES_256: TmaForward = TmaForward {
        block_k: 96,
        forgets_place: true,
        speculates: false,
        ping_pong: false,
        ..TmaForward::HEAD_DIM_128
    };

    const HEAD_DIM_64_VALUES_512: TmaForward = TmaForward {
        shares_rows: true,
        block_k: 64,
        stores: false,
        registers: [40, 232],
        // With sinks ptxas keeps two words of a thread's place in local memory: stored once, loaded twice a block.
        spill_bytes: 56,
        ..TmaForward::HEAD_DIM_64_VALUES_256
    };

    const HEAD_DIM_64_WIDE: TmaForward = TmaForward {
        consumers: 3,
        registers: [24, 160],
        ..TmaForward::HEAD_DIM_64
    };

    const HEAD_DIM_128_WIDE: TmaForward = TmaForward {
        block_k: 80,
        kv_stages: 2,
        ..TmaForward::HEAD_DIM_64_WIDE
    };

    const HEAD_DIM_64_GROUPED: TmaForward = TmaForward {
        registers: [40, 232],
        ..TmaForward::HEAD_DIM_64
    };

    const HEAD_DIM_128_GROUPED: TmaForward = TmaForward {
        kv_stages: 2,
        ..TmaForward::HEAD_DIM_64_GROUPED
    };

    const HEAD_DIM_64_COMPACT: TmaForward = TmaForward {
        consumers: 1,
        blocks_per_sm: 2,
        registers: [40, 216],
        ping_pong: false,
        ..TmaForward::HEAD_DIM_128
    };

    const HEAD_DIM_128_COMPACT: TmaForward = TmaForward {
        block_k: 64,
        ..TmaForward::HEAD_DIM_64_COMPACT
    };

    const HEAD_DIM_192_COMPACT: TmaForward = TmaForward {
        block_k: 112,
        q_stages: 1,
        blocks_per_sm: 1,
        registers: [0, 0],
        speculates: false,
        ping_pong: false,
        ..TmaForward::HEAD_DIM_64_COMPACT
    };

    const HEAD_DIM_256_COMPACT: TmaForward = TmaForward {
        block_k: 80,
        forgets_place: true,
        ..TmaForward::HEAD_DIM_192_COMPACT
    };

    /// For values that are the first columns of the keys (MLA).
    pub const MLA: TmaForward = TmaForward {
        block_k: 64,
        // While O and S fill the registers, a consumer keeps what it wants at the end of a tile in local memory, where it is read and written
        // once a tile: nothing of it in the loop over blocks.
        spill_bytes: 480,
        ..TmaForward::HEAD_DIM_512
    };

    /// Consumers take no turns: products are short, and the softmax is the bottleneck.
    const E4M3_128: TmaForward = TmaForward {
        kv_stages: 3,
        transposers: 2,
        raw_v_stages: 2,
        registers: [56, 224],
        speculates: false,
        ping_pong: false,
        value_pieces: 1,
        ..TmaForward::HEAD_DIM_64
    };

    const E4M3_192: TmaForward = TmaForward {
        kv_stages: 2,
        q_stages: 1,
        raw_v_stages: 1,
        value_pieces: 2,
        ..TmaForward::E4M3_128
    };

    /// O leaves from the registers, so that a third warp can transpose: a block has twice as many values as at 128.
    const E4M3_256: TmaForward = TmaForward {
        stores: false,
        transposers: 3,
        registers: [40, 232],
        forgets_place: true,
        // Addresses of the transposers, read once a block of V.
        spill_bytes: 64,
        ..TmaForward::E4M3_192
    };

    /// Of three consumers two compute the softmax while the third one's products run.
    const E4M3_128_WIDE: TmaForward = TmaForward {
        consumers: 3,
        raw_v_stages: 1,
        registers: [56, 152],
        value_pieces: 2,
        // Where o is f32, a word of its place lies in local memory.
        spill_bytes: 16,
        ..TmaForward::E4M3_128
    };

    const E4M3_96_WIDE: TmaForward = TmaForward {
        raw_v_stages: 2,
        value_pieces: 1,
        spill_bytes: 0,
        ..TmaForward::E4M3_128_WIDE
    };

    const E4M3_64_WIDE: TmaForward = TmaForward {
        raw_v_stages: 1,
        block_k: 192,
        // Where a tile of O goes lies in local memory, read once a tile, and five words of P once a block. With 128 keys there are no spills, and it takes 3 to 8 %
        // longer (H200).
        spill_bytes: 192,
        ..TmaForward::E4M3_96_WIDE
    };

    const E4M3_128_ONE_LEVEL: TmaForward = TmaForward {
        kv_stages: 2,
        block_k: 192,
        speculates: true,
        value_pieces: 0,
        ..TmaForward::E4M3_128
    };

    const E4M3_192_ONE_LEVEL: TmaForward = TmaForward {
        value_pieces: 0,
        ..TmaForward::E4M3_192
    };

    const E4M3_256_ONE_LEVEL: TmaForward = TmaForward {
        block_k: 96,
        raw_v_stages: 2,
        registers: [56, 224],
        value_pieces: 0,
        ..TmaForward::E4M3_256
    };

    /// The schedule for tiles of this many columns of elements of so many bytes; a shape that does not exist fails to compile.
    pub const fn of(bytes: u32, head_dim: u32, value_dim: u32, tiles: TileShape) -> TmaForward {
        match bytes {
            BYTE_BYTES => TmaForward::of_e4m3(head_dim, value_dim, tiles),
            _ => TmaForward::of_16_bits(head_dim, value_dim, tiles),
        }
    }

    const fn of_e4m3(head_dim: u32, value_dim: u32, tiles: TileShape) -> TmaForward {
        match (tiles, head_dim, value_dim) {
            (TileShape::Default, 64, 64)
            | (TileShape::Default, 96, 96)
            | (TileShape::Default, 128, 128) => TmaForward::E4M3_128,
            (TileShape::Default, 192, 192) => TmaForward::E4M3_192,
            (TileShape::Default, 256, 256) => TmaForward::E4M3_256,
            (TileShape::Wide, 64, 64) => TmaForward::E4M3_64_WIDE,
            (TileShape::Wide, 96, 96) => TmaForward::E4M3_96_WIDE,
            (TileShape::Wide, 128, 128) => TmaForward::E4M3_128_WIDE,
            (TileShape::OneLevel, 128, 128) => TmaForward::E4M3_128_ONE_LEVEL,
            (TileShape::OneLevel, 192, 192) => TmaForward::E4M3_192_ONE_LEVEL,
            (TileShape::OneLevel, 256, 256) => TmaForward::E4M3_256_ONE_LEVEL,
            _ => panic!("this kernel has no such tiles"),
        }
    }

    const fn of_16_bits(head_dim: u32, value_dim: u32, tiles: TileShape) -> TmaForward {
        match (tiles, head_dim, value_dim) {
            (TileShape::Default, 64, 64) => TmaForward::HEAD_DIM_64,
            (TileShape::Default, 96, 96) | (TileShape::Default, 128, 128) => {
                TmaForward::HEAD_DIM_128
            }
            (TileShape::Default, 160, 160) | (TileShape::Default, 192, 192) => {
                TmaForward::HEAD_DIM_192
            }
            (TileShape::Default, 256, 256) => TmaForward::HEAD_DIM_256,
            (TileShape::Default, 512, 512) => TmaForward::HEAD_DIM_512,
            (TileShape::Default, 192, 128) => TmaForward::HEAD_DIM_192_VALUES_128,
            (TileShape::Default, 64, 256) => TmaForward::HEAD_DIM_64_VALUES_256,
            (TileShape::Default, 64, 512) => TmaForward::HEAD_DIM_64_VALUES_512,
            (TileShape::Wide, 64, 64) => TmaForward::HEAD_DIM_64_WIDE,
            (TileShape::Wide, 128, 128) => TmaForward::HEAD_DIM_128_WIDE,
            (TileShape::Grouped, 64, 64) => TmaForward::HEAD_DIM_64_GROUPED,
            (TileShape::Grouped, 128, 128) => TmaForward::HEAD_DIM_128_GROUPED,
            (TileShape::Compact, 64, 64) => TmaForward::HEAD_DIM_64_COMPACT,
            (TileShape::Compact, 96, 96) | (TileShape::Compact, 128, 128) => {
                TmaForward::HEAD_DIM_128_COMPACT
            }
            (TileShape::Compact, 192, 192) => TmaForward::HEAD_DIM_192_COMPACT,
            (TileShape::Compact, 256, 256) => TmaForward::HEAD_DIM_256_COMPACT,
            (TileShape::Compact, 576, 576) => TmaForward::MLA,
            _ => panic!("this kernel has no such tiles"),
        }
    }

    /// The resources of a block with this much shared memory for rows and for exchange between consumers, and this many further pairs of barriers.
    const fn config(self, row_bytes: u32, barriers: u32) -> TileConfig {
        let stages = self.q_stages + 2 * self.kv_stages + self.raw_v_stages;
        let barriers = stages + TMA_SLOTS + self.consumers + barriers;
        let threads = 128 * (self.consumers + 1);
        TileConfig {
            threads,
            shared_bytes: row_bytes + TMA_SLOTS * 16 + TMA_LENGTHS * 32 + 2 * barriers * 8,
            blocks_per_sm: self.blocks_per_sm,
            cluster: 1,
            block_q: self.block_q(),
            block_k: self.block_k,
            launch_registers: match self.registers {
                [0, 0] => 0,
                _ => launch_registers(threads, self.blocks_per_sm),
            },
            spill_bytes: self.spill_bytes,
        }
    }

    /// Whether warps transpose V.
    pub const fn transposes(self) -> bool {
        self.transposers > 0
    }

    /// Queries of a tile: 64 of each consumer.
    const fn block_q(self) -> u32 {
        if self.shares_rows {
            64
        } else {
            64 * self.consumers
        }
    }
}

/// Forward on Hopper. In a warpgroup apart from the consumers single threads are the producer and the store warps; in 8 bits two or three of its warps transpose V. Shared
/// memory: Q, K and V, O on its way out, the slots, and two barriers for each of these.
pub const fn tma_forward(
    bytes: u32,
    head_dim: u32,
    value_dim: u32,
    tiles: TileShape,
) -> TileConfig {
    let schedule = TmaForward::of(bytes, head_dim, value_dim, tiles);
    let o_rows = if schedule.stores {
        schedule.block_q()
    } else {
        0
    };
    let block_k = schedule.block_k;
    let k_and_q = schedule.q_stages * schedule.block_q() + schedule.kv_stages * block_k;
    let raw_v = block_k * padded_bytes(value_dim * bytes);
    let v = if schedule.transposes() {
        schedule.raw_v_stages * raw_v
            + schedule.kv_stages * value_dim * padded_bytes(block_k * bytes)
    } else {
        schedule.kv_stages * raw_v
    };
    let o = o_rows * padded_bytes(value_dim * HALF_BYTES);
    schedule.config(k_and_q * padded_bytes(head_dim * bytes) + v + o, 0)
}

/// Columns of O that each of the two consumers has where values are the first columns of the keys.
pub const MLA_COLUMNS: u32 = 256;

/// Bytes of P of 64 rows and keys, by which the consumers of such a kernel meet; of their m, and of both l.
pub const MLA_EXCHANGE: [u32; 3] = [64 * 64 * HALF_BYTES, 64 * 4, 2 * 64 * 4];

/// Forward on Hopper where values are the first columns of the keys (MLA): compact tiles of 64 rows. O has up to 512 columns, as many as two
/// warpgroups have registers for. Shared memory: Q, two blocks of 64 keys, what the consumers tell each other, the slots, and two
/// barriers for each of Q, the slots, P and, of each block of keys, the three pieces in which it comes and goes.
pub const fn tma_forward_mla(head_dim: u32) -> TileConfig {
    let schedule = TmaForward::MLA;
    let rows = schedule.block_q() + schedule.kv_stages * schedule.block_k;
    let [p, m, l] = MLA_EXCHANGE;
    let bytes = rows * padded_columns(head_dim) * HALF_BYTES + p + m + l;
    schedule.config(bytes, 2 * schedule.kv_stages)
}

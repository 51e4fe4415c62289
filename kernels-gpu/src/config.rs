//! Tile shapes, threads and shared memory of every kernel, each number once, with its reason.

mod beside;
mod flash1;
mod flash2;
mod flash3_backward;
mod mla;
mod standard;

use crate::params::BLOCK_MULTIPLE;
use crate::variants::{Dtype, Kind, TileShape};

pub use beside::*;
pub use flash1::flash1_forward;
pub use flash2::*;
pub use flash3_backward::{TMA_BACKWARD_STAGES, TMA_BACKWARD_SUM_WARPS, TmaBackward, tma_backward};
pub use mla::{MLA_COLUMNS, MLA_EXCHANGE, tma_forward_mla};
pub use standard::{PRODUCT_DEPTH, PRODUCT_STAGES, product, weight_rows};

/// What one block of a kernel takes, and which part of the problem it covers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TileConfig {
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// Blocks that an SM should hold at once; `.minnctapersm` of the PTX.
    pub blocks_per_sm: u32,
    /// Rows of q that a block covers at a time.
    pub block_q: u32,
    /// Rows of k and v that a block covers at a time.
    pub block_k: u32,
    /// Registers that every thread has at launch, where warpgroups then share them out (`setmaxnreg`): with fewer, they would wait
    /// for each other without end. 0 where they do not.
    pub launch_registers: u32,
    /// Bytes of spills and stack that ptxas may report: 0 unless a comment in this file says why.
    pub spill_bytes: u32,
}

impl TileConfig {
    /// Whether every tile and every block of the kernel lies in one block of a block mask.
    pub const fn divides_blocks(&self) -> bool {
        BLOCK_MULTIPLE.is_multiple_of(self.block_q) && BLOCK_MULTIPLE.is_multiple_of(self.block_k)
    }
}

/// Bytes of an element of 16 bits.
pub const HALF_BYTES: u32 = 2;

/// Bytes of an element of f32.
pub const F32_BYTES: u32 = 4;

/// Stages of K, and of V, in the flash3 forward kernel. At head_dim 64 there is room for three, which is 2 to 9 % faster
/// than two with sequences of up to 1024 (H200); not where values have more columns, nor where two blocks share an SM.
pub const fn tma_kv_stages(head_dim: u32, value_dim: u32, tiles: TileShape) -> u32 {
    let is_narrow = head_dim <= 64 && value_dim <= 64;
    match tiles {
        TileShape::Default | TileShape::Wide | TileShape::Grouped if is_narrow => 3,
        _ => 2,
    }
}

/// Whether the warpgroups that multiply in the flash3 forward kernel have the same rows. Each multiplies S of them, and half of the columns of O.
pub const fn tma_shares_rows(value_dim: u32) -> bool {
    value_dim > 256
}

/// Slots by which the flash3 forward kernel's producer says which tile comes next.
pub const TMA_SLOTS: u32 = 2;

/// Places for the lengths of the tiles' sequences. A place is written again when its tile is done with, not when its slot has been
/// read: that is two tiles later at the latest.
pub const TMA_LENGTHS: u32 = 2 * TMA_SLOTS;

/// Stages of Q: with two, the next tile's arrives while this one's is in use. Above head_dim 128 there is room for one.
pub const fn tma_q_stages(head_dim: u32) -> u32 {
    if head_dim > 128 { 1 } else { 2 }
}

/// Whether O goes to memory through shared memory and the TMA, which is faster; for 128 rows of head_dim 256 there is no
/// room, nor beside 128 keys of 192 columns and their values of 128. Where consumers have the same rows, each stores its columns itself.
pub const fn tma_stores(head_dim: u32, value_dim: u32, tiles: TileShape) -> bool {
    match tiles {
        TileShape::Compact | TileShape::Grouped => true,
        TileShape::Default | TileShape::Wide => {
            !tma_shares_rows(value_dim)
                && (head_dim <= 64 || head_dim <= 192 && head_dim == value_dim)
        }
    }
}

/// Forward on Hopper: one block per SM. Two warpgroups multiply, 64 query rows each, in the wide shape three: their softmax
/// then hides more of the others' products, which pays where a tile is long and head_dim small. In a further warpgroup single
/// threads are the producer and the store warps. Shared memory: Q, K and V, O on its way out, the slots, and two barriers for
/// each of these.
///
/// The grouped shape is the default one, for tiles that several heads share: shared memory has room for three blocks of keys at head_dim 64.
///
/// The compact shape has one warpgroup that multiplies. Up to head_dim 128 two of its blocks share an SM, so that one's
/// products hide the other's softmax: each has half of the registers and at most 113 KB of shared memory, which at
/// head_dim 128 two stages of 64 keys fill.
///
/// Values may have fewer columns than keys, `value_dim`: 192 and 128, as DeepSeek-V3's. Then there is room for 128 keys. Or more: of 256
/// columns beside keys of 64 registers hold O and the scores of 96 keys, of 512 shared memory holds 64.
///
/// Above `value_dim` 256 no warpgroup has registers for 64 rows of O: both have the same rows, and half of O's columns each ([`tma_shares_rows`]).
pub const fn tma_forward(head_dim: u32, value_dim: u32, tiles: TileShape) -> TileConfig {
    let consumers = match tiles {
        TileShape::Compact => 1,
        TileShape::Default | TileShape::Grouped => 2,
        TileShape::Wide => 3,
    };
    let row_groups = if tma_shares_rows(value_dim) {
        1
    } else {
        consumers
    };
    // The most keys that shared memory has room for, and registers for their scores.
    let block_k = match (head_dim, tiles) {
        (..=64, _) if value_dim > 256 => 64,
        (..=64, _) if value_dim > 128 => 96,
        (..=64, _) | (..=128, TileShape::Default | TileShape::Grouped) => 128,
        (..=128, TileShape::Compact) => 64,
        (..=192, TileShape::Compact) => 112,
        (129..=192, _) if value_dim <= 128 => 128,
        (..=256, _) => 80,
        _ => 32,
    };
    let block_q = 64 * row_groups;
    let kv_stages = tma_kv_stages(head_dim, value_dim, tiles);
    let (columns, value_columns) = (padded_columns(head_dim), padded_columns(value_dim));
    let q_stages = tma_q_stages(head_dim);
    let o_stages = if tma_stores(head_dim, value_dim, tiles) {
        1
    } else {
        0
    };
    let rows = q_stages * block_q + kv_stages * block_k;
    let value_rows = o_stages * block_q + kv_stages * block_k;
    let barriers = 2 * (q_stages + 2 * kv_stages + TMA_SLOTS + consumers);
    let blocks_per_sm = match tiles {
        TileShape::Compact if head_dim <= 128 => 2,
        _ => 1,
    };
    TileConfig {
        threads: 128 * (consumers + 1),
        shared_bytes: (rows * columns + value_rows * value_columns) * HALF_BYTES
            + TMA_SLOTS * 16
            + TMA_LENGTHS * 32
            + barriers * 8,
        blocks_per_sm,
        block_q,
        block_k,
        launch_registers: if shares_registers(128 * (consumers + 1), blocks_per_sm) {
            launch_registers(128 * (consumers + 1), blocks_per_sm)
        } else {
            0
        },
        // With sinks ptxas keeps two words of a thread's place in local memory beside values of 512 columns: stored once, loaded twice a block.
        spill_bytes: if head_dim < value_dim && tma_shares_rows(value_dim) {
            56
        } else {
            0
        },
    }
}

/// Registers of a thread at launch, where blocks fill an SM: its 64 Ki, in units of 8.
const fn launch_registers(threads: u32, blocks_per_sm: u32) -> u32 {
    65536 / (threads * blocks_per_sm) / 8 * 8
}

/// Whether consumers need registers of the producer warpgroup. Where an SM has 256 threads at most, each begins with as many as it
/// can have.
const fn shares_registers(threads: u32, blocks_per_sm: u32) -> bool {
    256 < threads * blocks_per_sm
}

/// Threads of the kernel before the backward pass proper; the one after it has the main kernel's, whose registers it
/// takes over.
pub const PREPROCESS_THREADS: u32 = 256;

/// Before and after the backward pass proper: a block of threads takes one query block of one head, and holds it in
/// shared memory if it changes its shape.
const fn rows(main: TileConfig, threads: u32, row_bytes: u32) -> TileConfig {
    TileConfig {
        threads,
        shared_bytes: main.block_q * row_bytes,
        blocks_per_sm: 1,
        launch_registers: 0,
        spill_bytes: 0,
        ..main
    }
}

/// Columns of head_dim `head_dim` in whole pieces of 64, as boxes and the accumulator of dQ have them.
pub const fn padded_columns(head_dim: u32) -> u32 {
    head_dim.next_multiple_of(64)
}

/// The tile config of one variant; one in a shape that its kernel does not have fails to compile.
pub const fn tile_config(
    kind: Kind,
    dtype: Option<Dtype>,
    head_dim: Option<u32>,
    head_dim_v: Option<u32>,
    tiles: TileShape,
) -> TileConfig {
    let head_dim = match head_dim {
        Some(head_dim) => head_dim,
        None => 0,
    };
    let value_dim = match head_dim_v {
        Some(head_dim_v) => head_dim_v,
        None => head_dim,
    };
    let bytes = match dtype {
        Some(dtype) => dtype.bytes(),
        None => HALF_BYTES,
    };
    match (kind, tiles) {
        (Kind::BackwardPreprocess, _) => {
            rows(backward(bytes, head_dim, tiles), PREPROCESS_THREADS, 0)
        }
        (Kind::Backward | Kind::Flash1Backward, _) => backward(bytes, head_dim, tiles),
        (Kind::BackwardPostprocess, _) => {
            let main = backward(bytes, head_dim, tiles);
            rows(main, main.threads, head_dim * bytes)
        }
        (Kind::Clear, TileShape::Default) => clear(),
        (Kind::TileList | Kind::TmaTileList, TileShape::Default) => tile_list(),
        (Kind::BlockList, TileShape::Default) => block_list(),
        (Kind::MaskMap, TileShape::Default) => mask_map(),
        (Kind::Combine, TileShape::Default) => combine(),
        (Kind::Merge, TileShape::Default) => merge(),
        (Kind::Append, TileShape::Default) => append(),
        (Kind::SinkGradient, TileShape::Default) => sink_gradient(),
        (Kind::TensorGradient, TileShape::Default) => tensor_gradient(),
        (Kind::Flash1Forward, TileShape::Default) => flash1_forward(head_dim),
        (Kind::Forward, TileShape::Default) => forward(bytes, head_dim),
        (Kind::Forward, TileShape::Compact) => forward_decode(head_dim),
        (Kind::ForwardE4m3, TileShape::Compact) => forward_decode_e4m3(head_dim),
        (Kind::TmaForward, _) => tma_forward(head_dim, value_dim, tiles),
        (Kind::TmaForwardMla, TileShape::Compact) => tma_forward_mla(head_dim),
        (Kind::TmaBackwardPreprocess, _) => rows(
            tma_backward(head_dim, value_dim, tiles),
            PREPROCESS_THREADS,
            0,
        ),
        (Kind::TmaBackward, _) => tma_backward(head_dim, value_dim, tiles),
        (
            Kind::StandardSoftmax | Kind::StandardDelta | Kind::StandardDScores,
            TileShape::Default,
        ) => weight_rows(),
        (
            Kind::StandardScores
            | Kind::StandardOutput
            | Kind::StandardDv
            | Kind::StandardDWeights
            | Kind::StandardDq
            | Kind::StandardDk,
            TileShape::Default,
        ) => product(),
        (Kind::ForwardE4m3 | Kind::TmaForwardMla, _)
        | (_, TileShape::Compact | TileShape::Wide | TileShape::Grouped) => {
            panic!("this kernel has no such tiles")
        }
    }
}

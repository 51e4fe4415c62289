//! Tile shapes, threads and shared memory of every kernel, each number once, with its reason.

mod beside;
mod flash1;
mod flash2;
mod flash3_backward;
mod flash3_forward;
mod standard;

use crate::params::{BLOCK_MULTIPLE, BOX_BYTES};
use crate::variants::{Dtype, Kind, TileShape};

pub use beside::*;
pub use flash1::flash1_forward;
pub use flash2::*;
pub use flash3_backward::{
    Division, TMA_BACKWARD_STAGES, TMA_BACKWARD_SUM_WARPS, TmaBackward, tma_backward,
};
pub use flash3_forward::*;
pub use standard::{PRODUCT_DEPTH, PRODUCT_STAGES, product, weight_rows};

/// The resources of one block of a kernel, and the part of the problem that it covers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TileConfig {
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// Blocks that an SM should hold at once; `.minnctapersm` of the PTX.
    pub blocks_per_sm: u32,
    /// Blocks of a cluster; above 1, `.reqnctapercluster` of the PTX. The grid is a multiple of it.
    pub cluster: u32,
    /// Rows of q that a block covers at a time.
    pub block_q: u32,
    /// Rows of k and v that a block covers at a time.
    pub block_k: u32,
    /// Registers of every thread at launch, if warpgroups then reallocate them (`setmaxnreg`): with fewer, they would deadlock. 0 if they do not.
    pub launch_registers: u32,
    /// Bytes of spills and stack that ptxas may report: 0 unless a comment in this file says why.
    pub spill_bytes: u32,
}

impl TileConfig {
    /// A config with this many threads and blocks per SM, without shared memory, tiles and spills.
    const fn new(threads: u32, blocks_per_sm: u32) -> TileConfig {
        TileConfig {
            threads,
            shared_bytes: 0,
            blocks_per_sm,
            cluster: 1,
            block_q: 0,
            block_k: 0,
            launch_registers: 0,
            spill_bytes: 0,
        }
    }

    /// Whether every tile and every block of the kernel is within one block of a block mask.
    pub const fn divides_blocks(&self) -> bool {
        divide_blocks(self.block_q, self.block_k)
    }
}

const fn divide_blocks(block_q: u32, block_k: u32) -> bool {
    BLOCK_MULTIPLE.is_multiple_of(block_q) && BLOCK_MULTIPLE.is_multiple_of(block_k)
}

/// Blocks of a cluster of probes.
pub const PROBE_CLUSTER: u32 = 2;

/// Bytes of an element of 8 bits.
pub const BYTE_BYTES: u32 = 1;

/// Bytes of an element of 16 bits.
pub const HALF_BYTES: u32 = 2;

/// Bytes of an element of f32.
pub const F32_BYTES: u32 = 4;

/// Registers of a thread at launch, if blocks fill an SM: its 64 Ki, in units of 8.
const fn launch_registers(threads: u32, blocks_per_sm: u32) -> u32 {
    65536 / (threads * blocks_per_sm) / 8 * 8
}

/// Threads of the preprocess kernel of the backward pass; the postprocess kernel has the main kernel's, whose registers it reads.
pub const PREPROCESS_THREADS: u32 = 256;

/// Preprocess and postprocess of the backward pass: a block of threads takes one query block of one head, and holds it in shared memory if it changes its shape.
const fn rows(main: TileConfig, threads: u32, row_bytes: u32) -> TileConfig {
    TileConfig {
        threads,
        shared_bytes: main.block_q * row_bytes,
        blocks_per_sm: 1,
        cluster: 1,
        launch_registers: 0,
        spill_bytes: 0,
        ..main
    }
}

/// Bytes of a row of boxes that has these bytes.
pub const fn padded_bytes(row_bytes: u32) -> u32 {
    row_bytes.next_multiple_of(BOX_BYTES)
}

/// Columns of head_dim `head_dim` rounded up to pieces of 64, as in boxes and the accumulator of dQ.
pub const fn padded_columns(head_dim: u32) -> u32 {
    head_dim.next_multiple_of(64)
}

/// The tile config of one variant; a shape that its kernel does not have fails to compile.
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
        (Kind::Append | Kind::AppendE4m3, TileShape::Default) => append(),
        (Kind::Dequantize, TileShape::Default) => dequantize(),
        (Kind::Amax | Kind::Quantize, TileShape::Default) => quantize(),
        (Kind::SinkGradient, TileShape::Default) => sink_gradient(),
        (Kind::TensorGradient, TileShape::Default) => tensor_gradient(),
        (Kind::Flash1Forward, TileShape::Default) => flash1_forward(head_dim),
        (Kind::Forward, TileShape::Default) => forward(bytes, head_dim),
        (Kind::Forward, TileShape::Compact) => forward_decode(head_dim),
        (Kind::ForwardE4m3, TileShape::Compact) => forward_decode_e4m3(head_dim),
        (Kind::TmaForward, _) => tma_forward(bytes, head_dim, value_dim, tiles),
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
        | (
            _,
            TileShape::Compact
            | TileShape::Wide
            | TileShape::Grouped
            | TileShape::OneLevel
            | TileShape::Paired,
        ) => {
            panic!("this kernel has no such tiles")
        }
    }
}

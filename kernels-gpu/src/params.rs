//! Kernel parameters: one `#[repr(C)]` struct per pass, passed by value, the same on both sides.
//!
//! Addresses are plain 64-bit integers: a plan is made without a device and filled in at launch.

mod any;
mod append;
mod argument;
mod block_list;
mod block_mask;
mod clear;
mod combine;
mod dequantize;
mod descale;
mod divisors;
mod dropout;
mod flash1;
mod lengths;
mod mask_map;
mod merge;
mod pages;
mod quantize;
mod schedule;
mod score;
mod sinks;
mod stamps;
mod standard;
mod tensor_gradient;
mod tensor_map;
mod window;

pub use any::Params;
pub use append::{AppendParams, HALVES, INTERLEAVED, KvCache, NewRows, RotaryParams};
use argument::parameters;
pub use argument::{
    Argument, Effect, Extent, KernelParams, OptionalInput, Slot, VectorType, bind, in_workspace,
};
pub use block_list::{BlockListParams, BlockListPhase, BlockLists};
pub use block_mask::{BLOCK_MULTIPLE, BlockMap, FULL_BLOCK, HIDDEN_BLOCK, PARTIAL_BLOCK};
pub use clear::ClearParams;
pub use combine::{CombineParams, SplitKv};
pub use dequantize::DequantizeParams;
pub use descale::{Descales, SCALE_ROWS, ScaleStrides};
pub use divisors::Divisors;
pub use dropout::DropoutParams;
pub use flash1::Flash1ForwardParams;
pub use lengths::{Lengths, TileList, TileListParams};
pub use mask_map::{MAP_THREADS, MaskMapParams, MaskMapPhase};
pub use merge::MergeParams;
pub use pages::Pages;
pub use quantize::QuantizeParams;
pub use schedule::{FASTEST, ORDERED, SHIFTED, Schedule};
pub use score::ScoreParams;
pub use sinks::SinkGradientParams;
pub use stamps::{Moment, Stamp};
pub use standard::StandardParams;
pub use tensor_gradient::{GRADIENT_BF16, GRADIENT_F16, GRADIENT_F32, TensorGradientParams};
pub use tensor_map::{
    BACKWARD_MAPS, BOX_BYTES, BOX_COLUMNS, BackwardMap, FORWARD_MAPS, ForwardMap, TensorMap,
};
pub use window::Window;

/// Address and strides of a tensor `[batch, seqlen, heads, head_dim]`. Strides count elements; the last dimension is contiguous.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TensorView {
    /// Address of element `[0, 0, 0, 0]`; 16-byte aligned.
    pub base: u64,
    /// Stride of batch entries.
    pub batch_stride: i64,
    /// Stride of rows (positions in the sequence).
    pub row_stride: i64,
    /// Stride of heads.
    pub head_stride: i64,
}

/// The sizes of one attention problem.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shape {
    /// Number of batch entries.
    pub batch: u32,
    /// Number of query heads; a multiple of `heads_k`.
    pub heads_q: u32,
    /// Number of key and value heads.
    pub heads_k: u32,
    /// Query heads that share one key and value head: `heads_q / heads_k`.
    pub group_size: u32,
    /// Rows of q and o.
    pub seqlen_q: u32,
    /// Rows of k and v.
    pub seqlen_k: u32,
    /// Columns of q and k.
    pub head_dim: u32,
    /// Columns of v and o.
    pub head_dim_v: u32,
}

/// The scale of the scores.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scale {
    /// `S = q·kᵀ · scale`; finite and greater than 0.
    pub scale: f32,
    /// `scale · log₂ e`: exponentials are computed to base 2. With an expression that edits scores, [`ScoreParams::unit`] times log₂ e.
    pub scale_log2: f32,
}

parameters! {
    /// Parameters of the forward kernels.
    pub struct ForwardParams {
        /// Queries.
        pub q: TensorView = Tensor(Q),
        /// Keys.
        pub k: TensorView = Tensor(K),
        /// Values.
        pub v: TensorView = Tensor(V),
        /// Output.
        pub o: TensorView = Tensor(O),
        /// `f32 [batch, heads_q, seqlen_q]`: natural logarithm of the row's sum of exponentials.
        pub lse: u64 = Vector(Lse),
        /// Sizes.
        pub shape: Shape,
        /// Window.
        pub window: Window,
        /// Scale.
        pub scale: Scale,
        /// Order of the tiles.
        pub schedule: Schedule,
        /// For sequences of different lengths: their tiles. Then `schedule` counts the heads of one sequence, its tiles are the most possible, and
        /// `window` is that of a sequence without rows.
        pub list: TileList = Within,
        /// Under a block mask: the visible blocks of each tile.
        pub blocks: BlockLists = Within,
        /// The pages of keys and values, if they are in pages.
        pub pages: Pages = Within,
        /// As in [`TmaForwardParams`], for decode kernels. These have no list of tiles, but the lengths.
        pub split: SplitKv = Within,
        /// See `split`.
        pub lengths: Lengths = Within,
        /// For kernels for keys and values in 8 bits: their scales. Where pages have their own, `strides_k` is that of the heads of a page.
        pub descales: Descales = Within,
        /// From one page's scales of k, and of v, to the next's, in scales. 0: pages have none of their own.
        pub page_scales: u32,
        /// 0.
        pub reserved: u32,
        /// For decode kernels, with sequences of different lengths.
        pub divisors: Divisors,
        /// The inputs of an expression that edits the scores.
        pub score: ScoreParams = Within,
        /// `f32 [heads_q]`: the logarithms of the additional terms of each head's softmax (sinks), if there are any.
        pub sinks: u64 = Vector(Sinks),
        /// `f32 [heads_q]`: the factor of each head's scores, if a call gives it.
        pub head_scale: u64 = Vector(HeadScale),
        /// Dropout.
        pub dropout: DropoutParams = Within,
        /// Workspace, only of a profiled kernel: `[heads, tiles]` of [`Stamp`], its records.
        pub stamps: u64 = Workspace,
    }
}

/// The most rows of a sequence, heads of a batch, and keys of a window: sums of three of them fit 31 bits. A box of zeros is copied from this row,
/// which is beyond every tensor's end.
pub const MAX_ROWS: u32 = ferroflash_expression::MAX_INDEX;

parameters! {
    /// Parameters of the flash3 forward kernels.
    pub struct TmaForwardParams {
        /// Queries; boxes of the 64 rows of a warpgroup, of one head or, packed, of several.
        pub q: TensorMap = Map(Q),
        /// Keys; boxes of the rows of a KV block.
        pub k: TensorMap = Map(K),
        /// Values; boxes of the rows of a KV block.
        pub v: TensorMap = Map(V),
        /// Output; boxes as those of the queries.
        pub o: TensorMap = Map(O),
        /// Output, for kernels that write it without the TMA.
        pub o_rows: TensorView = Tensor(O),
        /// `f32 [batch, heads_q, seqlen_q]`: natural logarithm of the row's sum of exponentials.
        pub lse: u64 = Vector(Lse),
        /// Workspace, `u32`: the tile counter, from which blocks claim tiles. 0 before a launch, and again after it.
        pub tile_counter: u64 = Workspace,
        /// Sizes.
        pub shape: Shape,
        /// Window.
        pub window: Window,
        /// Scale.
        pub scale: Scale,
        /// Order of the tiles. If heads are packed, the packs count as its heads.
        pub schedule: Schedule,
        /// log₂ of the adjacent heads of a group whose queries share a tile. 0 except in compact tiles.
        pub pack_gqa_log2: u32,
        /// As in [`ForwardParams`].
        pub list: TileList = Within,
        /// As in [`ForwardParams`].
        pub blocks: BlockLists = Within,
        /// If keys are divided among tiles: the splits, and the place of their results, in place of o and lse. `schedule` then counts every split of a tile.
        pub split: SplitKv = Within,
        /// The lengths, if keys are divided and sequences have different lengths.
        pub lengths: Lengths = Within,
        /// As in [`ForwardParams`]. Then `k` and `v` describe the pool, and the tensor maps of a sequence end after its last row.
        pub pages: Pages = Within,
        /// As in [`ForwardParams`].
        pub score: ScoreParams = Within,
        /// As in [`ForwardParams`].
        pub sinks: u64 = Vector(Sinks),
        /// As in [`ForwardParams`].
        pub dropout: DropoutParams = Within,
        /// As in [`ForwardParams`].
        pub stamps: u64 = Workspace,
        /// For kernels for q, k and v in 8 bits: their scales.
        pub descales: Descales = Within,
    }
}

parameters! {
    /// Parameters of the backward kernels: `delta`, the main kernel and, in flash2, `dq`, in this order on one stream.
    pub struct BackwardParams {
        /// Queries.
        pub q: TensorView = Tensor(Q),
        /// Keys.
        pub k: TensorView = Tensor(K),
        /// Values.
        pub v: TensorView = Tensor(V),
        /// Output of the forward pass.
        pub o: TensorView = Tensor(O),
        /// Gradient of the output.
        pub d_o: TensorView = Tensor(DO),
        /// Gradient of the queries.
        pub d_q: TensorView = Tensor(DQ),
        /// Gradient of the keys.
        pub d_k: TensorView = Tensor(DK),
        /// Gradient of the values.
        pub d_v: TensorView = Tensor(DV),
        /// `f32 [batch, heads_q, seqlen_q]`: the forward pass's lse.
        pub lse: u64 = Vector(Lse),
        /// `f32 [batch, heads_q, seqlen_q]`: gradient of lse; the address is 0 if there is none.
        pub d_lse: u64 = Vector(DLse),
        /// Workspace, `f32 [batch, heads_q, padded_q]`: lse · log₂ e, +∞ where lse is −∞ and in the padding. In flash3, each 16 rows are in the
        /// order in which fragments read them, here and in `delta`: see [`crate::kernels::backward`].
        pub lse_log2: u64 = Workspace,
        /// Workspace, `f32 [batch, heads_q, padded_q]`: Δ = rowsum(dO ∘ O) − dL, 0 in the padding.
        pub delta: u64 = Workspace,
        /// Workspace, `f32 [batch, heads_q, padded_q, head_dim]`: dQ / scale, in the order of the registers that hold it. In
        /// flash3, whose kernels pad head_dim, rounded up to whole pieces of 64 columns.
        pub d_q_accum: u64 = Workspace,
        /// Workspace, `u32 [batch, heads_q, q_blocks]`: how many key tiles have added to this block of dQ.
        pub dq_semaphore: u64 = Workspace,
        /// Workspace, `u32 [2]`: the next tile to work on; in flash3, the next rows of dQ to round.
        pub tile_counters: u64 = Workspace,
        /// Workspace, `f32 [KV heads, tiles, 2, block_k, head_dim]`, with several head splits: the sums of dV and of dK / scale, in the order
        /// of the registers that hold them; `head_dim` is the kernel's.
        pub dkv_accum: u64 = Workspace,
        /// Workspace, `u32 [KV heads, tiles, 2 · 8]`, with several head splits: how many threads of each consumer warp have added to dV, and
        /// to dK.
        pub dkv_semaphore: u64 = Workspace,
        /// `seqlen_q` rounded up to a multiple of the query block.
        pub padded_q: u64,
        /// Sizes.
        pub shape: Shape,
        /// Window.
        pub window: Window,
        /// Scale.
        pub scale: Scale,
        /// Order of the tiles.
        pub schedule: Schedule,
        /// As in [`ForwardParams`]. The workspace then has its entries per query block or row for the blocks or rows of all sequences, one after the
        /// other, each padded to whole blocks, for `heads_q` heads.
        pub list: TileList = Within,
        /// flash3: the number of head splits into which the query heads of a KV head are divided; more than 1 with [`crate::spec::Constant::HeadSplits`]. Each
        /// counts as a KV head in `shape` and `schedule`, with its own tiles of the same keys, and neighbours have the same keys.
        pub n_head_splits: u32,
        /// How many of the first head splits of a KV head have one query head more than the others, which have `shape.group_size`.
        pub n_larger_head_splits: u32,
        /// As in [`ForwardParams`].
        pub blocks: BlockLists = Within,
        /// As in [`ForwardParams`].
        pub score: ScoreParams = Within,
        /// As in [`ForwardParams`].
        pub dropout: DropoutParams = Within,
        /// As in [`ForwardParams`].
        pub stamps: u64 = Workspace,
    }
}

parameters! {
    /// Parameters of the main flash3 backward kernel, which follows `delta`.
    pub struct TmaBackwardParams {
        /// Queries; boxes of the rows of a query block.
        pub q: TensorMap = Map(Q),
        /// Keys; boxes of the rows of a key tile.
        pub k: TensorMap = Map(K),
        /// Values; boxes of the rows of a key tile.
        pub v: TensorMap = Map(V),
        /// Gradient of the output; boxes of the rows of a query block.
        pub d_o: TensorMap = Map(DO),
        /// Gradient of the keys; boxes of the 64 rows of a warpgroup.
        pub d_k: TensorMap = Map(DK),
        /// Gradient of the values; boxes of the 64 rows of a warpgroup.
        pub d_v: TensorMap = Map(DV),
        /// The parameters of both kernels of the pass.
        pub pass: BackwardParams = Within,
    }
}

const _: () = assert!(size_of::<TensorView>() == 32 && size_of::<Shape>() == 32);
const _: () = assert!(
    size_of::<ForwardParams>()
        == 4 * 32 + 8 + 32 + 12 + 8 + 20 + 40 + 40 + 24 + 56 + 48 + 48 + 8 + 40 + 304 + 16 + 40 + 8
);
const _: () = assert!(
    size_of::<TmaForwardParams>()
        == (4 * 128
            + 32
            + 2 * 8
            + 32
            + 12
            + 8
            + 20
            + 8
            + 40
            + 40
            + 56
            + 48
            + 24
            + 304
            + 8
            + 40
            + 8
            + 48usize)
            .next_multiple_of(align_of::<TensorMap>())
);
const _: () = assert!(
    size_of::<BackwardParams>() == 8 * 32 + 10 * 8 + 32 + 12 + 8 + 20 + 40 + 8 + 40 + 304 + 40 + 8
);
const _: () = assert!(
    size_of::<TmaBackwardParams>()
        == (6 * 128 + 8 * 32 + 10 * 8 + 32 + 12 + 8 + 20 + 40 + 8 + 40 + 304 + 40 + 8usize)
            .next_multiple_of(align_of::<TensorMap>())
);

//! Parameters of the kernels that round a tensor to 8 bits.

use super::{TensorView, parameters};

parameters! {
    /// Parameters of the kernels that round a tensor to e4m3: the one that finds the greatest magnitude of each tile, and the one that rounds.
    pub struct QuantizeParams {
        /// The numbers.
        pub x: TensorView = Tensor(X),
        /// Output: the numbers divided by their scales, in e4m3.
        pub rounded: TensorView = Tensor(Rounded),
        /// The scales, f32: one, `[batch, heads_k]` or `[batch, heads_k, tiles]`, if they are given; 0: they follow from amax.
        pub descale: u64 = Vector(Descale),
        /// Output of the same size: the scales, if they follow from amax.
        pub descale_out: u64 = Vector(DescaleOut),
        /// Output of the same size: the greatest magnitudes; 0 if not wanted.
        pub amax: u64 = Vector(Amax),
        /// `i32 [batch + 1]`: the first row of each sequence, and the end of the last. 0: x is padded.
        pub cu_seqlens: u64 = Vector(CuSeqlens),
        /// Workspace, `f32 [batch, heads_k, tiles]`: the greatest magnitude of each tile; 0 if nothing needs them, or if amax has them as they are.
        pub of_tiles: u64 = Workspace,
        /// A bit for each column, the first in the lowest: whether its sign is turned before the Hadamard transform.
        pub signs: [u64; 4],
        /// Columns of a Hadamard transform, a power of 2; 0: there is none.
        pub hadamard: u32,
        /// 1 / √hadamard.
        pub unit: f32,
        /// Rows of a batch entry, or of all sequences together.
        pub rows: u32,
        /// The most rows that a sequence has.
        pub seqlen: u32,
        /// Sequences.
        pub batch: u32,
        /// Heads of keys, each with a scale.
        pub heads_k: u32,
        /// Heads of x that share one of keys, and its scale.
        pub group_size: u32,
        /// Columns; a multiple of 16.
        pub head_dim: u32,
        /// Consecutive tiles that share a scale: all, those of a sequence and head of keys, or one.
        pub tiles_per_scale: u32,
        /// 1 if scales of amax are powers of 2.
        pub power_of_2: u32,
    }
}

const _: () = assert!(size_of::<QuantizeParams>() == 2 * 32 + 5 * 8 + 32 + 10 * 4);

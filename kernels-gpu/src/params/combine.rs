//! Parameters of kernels if keys are divided among tiles: see [`crate::attention::split_kv`].

use super::{Lengths, Shape, TensorView, TileList, parameters};

parameters! {
    /// The splits, and their results. Rows are those of lse, of all batch entries and heads.
    pub struct SplitKv {
        /// Workspace, `f32 [splits, rows, head_dim_v]`: each split's O.
        pub o: u64 = Workspace,
        /// Workspace, `f32 [splits, rows]`: each split's L.
        pub lse: u64 = Workspace,
        /// Workspace, `u32 [rows]`, if tiles merge: how many splits of a tile have been written, at the index of its first row. 0 before
        /// a launch, and again after it.
        pub arrivals: u64 = Workspace,
        /// Rows.
        pub rows: u64,
        /// Keys of a split: a multiple of the rows of a KV block; the minimum, if the device chooses.
        pub keys: u32,
        /// How many splits the longest sequence has.
        pub n: u32,
        /// 1: the block that writes the last split of a tile merges them all; 0: another kernel does.
        pub tiles_merge: u32,
        /// For sequences of different lengths: the number of equal parts into which the device divides the work of all; a split has the keys of a
        /// part. 0: splits have `keys`.
        pub parts: u32,
        /// 1: tiles with one split write o and lse themselves, and if the device chooses, the splits of the longest sequence are equally long.
        pub whole_tiles: u32,
        /// 0.
        pub reserved: u32,
    }
}

parameters! {
    /// Parameters of the kernel that merges the results of splits.
    pub struct CombineParams {
        /// Output.
        pub o: TensorView = Tensor(O),
        /// `f32 [batch, heads_q, rows]`, packed `f32 [heads_q, rows]`: natural logarithm of the row's sum of exponentials.
        pub lse: u64 = Vector(Lse),
        /// The splits.
        pub split: SplitKv = Within,
        /// Sizes; lengths are the longest that there may be.
        pub shape: Shape,
        /// Rows of q: of a batch entry, or of all sequences together.
        pub rows_q: u32,
        /// The lengths, if sequences have different ones.
        pub lengths: Lengths = Within,
        /// Their tiles: without any in the list, nothing has been computed.
        pub list: TileList = Within,
        /// As in [`super::ForwardParams`].
        pub sinks: u64 = Vector(Sinks),
    }
}

const _: () = assert!(size_of::<SplitKv>() == 4 * 8 + 6 * 4);
const _: () = assert!(size_of::<CombineParams>() == 32 + 8 + 56 + 32 + 8 + 48 + 40 + 8);

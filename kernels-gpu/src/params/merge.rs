//! Parameters of the kernel that merges attention over two parts of the keys.

use super::{TensorView, parameters};

parameters! {
    /// Parameters of the kernel that merges o and lse of two parts of the keys.
    pub struct MergeParams {
        /// O of the first part.
        pub o_1: TensorView = Tensor(O1),
        /// O of the second part.
        pub o_2: TensorView = Tensor(O2),
        /// Output: O over the keys of both.
        pub o: TensorView = Tensor(O),
        /// `f32 [batch, heads, seqlen]`: L of the first part.
        pub lse_1: u64 = Vector(Lse1),
        /// `f32 [batch, heads, seqlen]`: L of the second part.
        pub lse_2: u64 = Vector(Lse2),
        /// Output, `f32 [batch, heads, seqlen]`: L over the keys of both; 0 if not wanted.
        pub lse: u64 = Vector(Lse),
        /// Rows of all heads and batch entries: `batch · heads · seqlen`.
        pub n_rows: u32,
        /// Rows of a head.
        pub seqlen: u32,
        /// Heads of a batch entry.
        pub heads: u32,
        /// Columns; a multiple of 8.
        pub head_dim: u32,
    }
}

const _: () = assert!(size_of::<MergeParams>() == 3 * 32 + 3 * 8 + 4 * 4);

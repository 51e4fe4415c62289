//! Parameters of the kernel that takes q, k and v out of 8 bits.

use super::{Descales, TensorView, parameters};

parameters! {
    /// Parameters of the kernel that takes q, k and v out of 8 bits: what each element stands for, rounded to the element type.
    pub struct DequantizeParams {
        /// Queries in e4m3.
        pub q: TensorView = Tensor(Q),
        /// Keys in e4m3.
        pub k: TensorView = Tensor(K),
        /// Values in e4m3.
        pub v: TensorView = Tensor(V),
        /// Workspace, `[batch, seqlen_q, heads_q, head_dim]`, or `[rows_q, heads_q, head_dim]` if packed: what q stands for.
        pub q_values: u64 = Workspace,
        /// The same of k.
        pub k_values: u64 = Workspace,
        /// The same of v, of `head_dim_v` columns.
        pub v_values: u64 = Workspace,
        /// Their scales.
        pub descales: Descales = Within,
        /// `i32 [batch + 1]`: the first row of q of each sequence, and the end of the last. 0: q is padded.
        pub cu_seqlens_q: u64 = Vector(CuSeqlensQ),
        /// The same of k and v.
        pub cu_seqlens_k: u64 = Vector(CuSeqlensK),
        /// `i32 [batch]`: rows of k and v before the first one of each sequence, from which blocks of scales are counted. 0: none.
        pub leftpad_k: u64 = Vector(LeftpadK),
        /// Rows of q: of a batch entry, or of all sequences together.
        pub rows_q: u32,
        /// The same of k and v.
        pub rows_k: u32,
        /// The most rows of q that a sequence has.
        pub seqlen_q: u32,
        /// The same of k and v.
        pub seqlen_k: u32,
        /// Sequences.
        pub batch: u32,
        /// Heads of q.
        pub heads_q: u32,
        /// Heads of k and v.
        pub heads_k: u32,
        /// Heads of q that share one of k and v, and its scales.
        pub group_size: u32,
        /// Columns of q and k; a multiple of 16.
        pub head_dim: u32,
        /// Columns of v; a multiple of 16.
        pub head_dim_v: u32,
    }
}

const _: () = assert!(size_of::<DequantizeParams>() == 3 * 32 + 3 * 8 + 48 + 3 * 8 + 10 * 4);

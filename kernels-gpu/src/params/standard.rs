//! What the kernels of `standard` attention are given.

use super::{
    BlockMap, DropoutParams, Lengths, Scale, ScoreParams, Shape, TensorView, Window, parameters,
};

parameters! {
    /// Parameters of the `standard` kernels, which keep the scores in global memory.
    pub struct StandardParams {
        /// Queries.
        pub q: TensorView = Tensor(Q),
        /// Keys.
        pub k: TensorView = Tensor(K),
        /// Values.
        pub v: TensorView = Tensor(V),
        /// Output.
        pub o: TensorView = Tensor(O),
        /// Gradient of the output.
        pub d_o: TensorView = Tensor(DO),
        /// Gradient of the queries.
        pub d_q: TensorView = Tensor(DQ),
        /// Gradient of the keys.
        pub d_k: TensorView = Tensor(DK),
        /// Gradient of the values.
        pub d_v: TensorView = Tensor(DV),
        /// `f32 [batch, heads_q, seqlen_q]`.
        pub lse: u64 = Vector(Lse),
        /// `f32 [batch, heads_q, seqlen_q]`: gradient of lse, in the backward pass; the address is 0 where there is none.
        pub d_lse: u64 = Vector(DLse),
        /// Workspace, `f32 [batch, heads_q, seqlen_q, padded_k]`: S, and dP in the backward pass.
        pub scores: u64 = Workspace,
        /// `element [batch, heads_q, seqlen_q, padded_k]`: P, and in place of it dS in the backward pass.
        pub weights: u64 = Vector(Weights),
        /// Workspace, `f32 [batch, heads_q, seqlen_q]`: Δ.
        pub delta: u64 = Workspace,
        /// `seqlen_k` rounded up to a multiple of 8, so that rows of the weights are 16-byte aligned.
        pub padded_k: u64,
        /// Sizes.
        pub shape: Shape,
        /// Window.
        pub window: Window,
        /// Scale.
        pub scale: Scale,
        /// Where sequences have lengths of their own: these. Then `shape` has the longest that there may be, `window` is that of a sequence
        /// without rows, and the arrays above that have `batch` entries have them for sequences, but for `lse` and `d_lse`, which have
        /// the rows of q.
        pub lengths: Lengths = Within,
        /// Block mask.
        pub blocks: BlockMap = Within,
        /// As in [`super::ForwardParams`].
        pub score: ScoreParams = Within,
        /// As in [`super::ForwardParams`].
        pub sinks: u64 = Vector(Sinks),
        /// Workspace, `f32 [batch, heads_q, seqlen_q]`, for the gradients of sinks: lse · log₂ e, +∞ in rows of no sequence.
        pub lse_log2: u64 = Workspace,
        /// As in [`super::ForwardParams`].
        pub dropout: DropoutParams = Within,
        /// Not 0 in the backward pass: P has all weights, and those that are dropped a minus; else P has 0 there, and the others are divided by the
        /// share that is kept.
        pub marks_dropped: u32,
        /// No gap at the end.
        pub padding: u32,
    }
}

const _: () = assert!(
    size_of::<StandardParams>()
        == 8 * 32 + 6 * 8 + 32 + 12 + 12 + 48 + 32 + 304 + 2 * 8 + 40 + 2 * 4
);

//! Parameters of flash1's forward kernel. Its backward kernel takes [`super::BackwardParams`].

use super::{Scale, Shape, TensorView, Window, parameters};

parameters! {
    /// Parameters of flash1's forward kernel. Rows in the workspace are padded to whole blocks of queries.
    pub struct Flash1ForwardParams {
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
        /// Workspace, `f32 [batch, heads_q, padded_q, head_dim]`: O over the keys so far, of each warp's rows in the order of the registers
        /// that hold them; `head_dim` is the kernel's.
        pub o_accum: u64 = Workspace,
        /// Workspace, `f32 [batch, heads_q, padded_q]`: l, the sums of exponentials over the keys so far.
        pub l: u64 = Workspace,
        /// Workspace, `f32 [batch, heads_q, padded_q]`: m, the scores that these exponentials are taken from.
        pub m: u64 = Workspace,
        /// As in [`super::ForwardParams`].
        pub sinks: u64 = Vector(Sinks),
        /// Sizes.
        pub shape: Shape,
        /// Window.
        pub window: Window,
        /// Scale.
        pub scale: Scale,
        /// Always 0.
        pub reserved: u32,
    }
}

const _: () = assert!(size_of::<Flash1ForwardParams>() == 4 * 32 + 5 * 8 + 32 + 12 + 8 + 4);

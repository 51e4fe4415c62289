//! Parameters of the kernel that computes the gradients of sinks.

use super::parameters;

parameters! {
    /// Parameters of the kernel that computes the gradients of sinks. Rows are those of the workspace: `padded_q` contiguous rows for each of
    /// `heads` heads, which are counted through the batch.
    pub struct SinkGradientParams {
        /// `f32 [heads_q]`: sinks.
        pub sinks: u64 = Vector(Sinks),
        /// `f32 [heads_q]`: their gradients.
        pub d_sinks: u64 = Vector(DSinks),
        /// Workspace, `f32 [heads, padded_q]`: lse · log₂ e, +∞ in rows outside every sequence.
        pub lse_log2: u64 = Workspace,
        /// Workspace, `f32 [heads, padded_q]`: Δ, 0 in rows outside every sequence.
        pub delta: u64 = Workspace,
        /// Workspace: the list of query blocks, if `block_q` is not 0.
        pub q_blocks: u64 = Workspace,
        /// Rows of a head.
        pub padded_q: u64,
        /// Query heads.
        pub heads_q: u32,
        /// Heads that have the same sink: batch entries; 1 if a head has the rows of all sequences.
        pub batch: u32,
        /// If a list has the number of existing blocks of a head: the rows of such a block. Else 0, and all rows exist.
        pub block_q: u32,
        /// 0.
        pub reserved: u32,
    }
}

const _: () = assert!(size_of::<SinkGradientParams>() == 6 * 8 + 4 * 4);

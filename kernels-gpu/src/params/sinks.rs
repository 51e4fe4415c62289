//! What the kernel that gives the gradients of sinks is given.

use super::parameters;

parameters! {
    /// Parameters of the kernel that gives the gradients of sinks. Rows are those of the workspace: of each of `heads` heads, which are
    /// counted through the batch, `padded_q` in a row.
    pub struct SinkGradientParams {
        /// `f32 [heads_q]`: sinks.
        pub sinks: u64 = Vector(Sinks),
        /// `f32 [heads_q]`: their gradients.
        pub d_sinks: u64 = Vector(DSinks),
        /// Workspace, `f32 [heads, padded_q]`: lse · log₂ e, +∞ in rows of no sequence.
        pub lse_log2: u64 = Workspace,
        /// Workspace, `f32 [heads, padded_q]`: Δ, 0 in rows of no sequence.
        pub delta: u64 = Workspace,
        /// Workspace: the list of query blocks, if `block_q` is not 0.
        pub q_blocks: u64 = Workspace,
        /// Rows of a head.
        pub padded_q: u64,
        /// Query heads.
        pub heads_q: u32,
        /// Heads that have the same sink: batch entries; 1 where a head has the rows of all sequences.
        pub batch: u32,
        /// Where a list says how many blocks of a head are there: the rows of such a block. Else 0, and all rows are there.
        pub block_q: u32,
        /// 0.
        pub reserved: u32,
    }
}

const _: () = assert!(size_of::<SinkGradientParams>() == 6 * 8 + 4 * 4);

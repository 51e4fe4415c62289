//! Parameters of the kernel that maps what a mask expression hides: see [`crate::kernels::block_sparse::mask_map`].

use core::mem::offset_of;

use ferroflash_expression::MaskProgram;

use super::{BlockMap, ScoreParams, Shape, Window, parameters};

/// Threads for each block of the map in [`MaskMapPhase::Pairs`].
pub const MAP_THREADS: u32 = 8;

/// The output of one launch of the kernel that maps a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaskMapPhase {
    /// Bounds of values that depend only on rows or only on columns: a block of threads for each block of queries and of keys whose bounds are kept.
    Bounds = 0,
    /// The map, by intervals: a thread for each of its blocks.
    Map = 1,
    /// The open blocks of the map, or all of it without a program, by the mask at pairs: [`MAP_THREADS`] for each block.
    Pairs = 2,
}

parameters! {
    /// Parameters of the kernel that maps a mask.
    pub struct MaskMapParams {
        /// The mask.
        pub program: MaskProgram,
        /// Workspace, `[maps, q_blocks, row_bounds]` of 16 bytes each: bounds of values of rows.
        pub row_bounds: u64 = Workspace,
        /// Workspace, `[maps, k_blocks, column_bounds]` of 16 bytes each: bounds of values of columns.
        pub column_bounds: u64 = Workspace,
        /// The map, in the workspace.
        pub map: BlockMap = Within,
        /// Sizes.
        pub shape: Shape,
        /// Window: a block is full only if the window hides nothing of it, either.
        pub window: Window,
        /// Maps of a batch entry.
        pub maps_per_batch: u32,
        /// Maps.
        pub n_maps: u32,
        /// A [`MaskMapPhase`].
        pub phase: u32,
        /// The inputs of the mask.
        pub score: ScoreParams = Within,
        /// Padding.
        pub padding: [u32; 2],
    }
}

const _: () = assert!(
    size_of::<MaskMapParams>() == size_of::<MaskProgram>() + 2 * 8 + 32 + 32 + 12 + 3 * 4 + 304 + 8
);
/// The entry's parameter begins with the instructions.
const _: () =
    assert!(offset_of!(MaskMapParams, program) == 0 && offset_of!(MaskProgram, instructions) == 0);

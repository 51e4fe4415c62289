//! Launches of flash3: grids, tensor maps and parameters.

pub mod backward;
pub mod forward;

/// Rows of a warpgroup: of a box that one warpgroup loads or stores, for all of its heads together.
const WARPGROUP_ROWS: u32 = 64;

//! Launches of flash3: grids, tensor maps and parameters.

pub mod backward;
pub mod forward;

/// Rows of a warpgroup: of a box of what one warpgroup alone loads or stores, of all of its heads together.
const WARPGROUP_ROWS: u32 = 64;

//! Launches of flash3: grids, tensor maps and parameters.

pub mod backward;
pub mod forward;

/// Rows of a warpgroup: of a box of what one warpgroup alone loads or stores, of all of its heads together.
const WARPGROUP_ROWS: u32 = 64;

/// Where a map says that a tensor of `seqlen` rows lies: without rows at another tensor's place, since a map must have one.
/// No element of it is copied.
fn place(seqlen: u32, address: u64, other: u64) -> u64 {
    if seqlen == 0 { other } else { address }
}

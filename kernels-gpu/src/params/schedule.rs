//! The order of tiles.

/// Which tile a block works on: see [`crate::attention::schedule`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Schedule {
    /// Number of tiles along the sequence (query tiles in the forward pass, key tiles in the backward pass).
    pub tiles: u32,
    /// Number of (batch, head) pairs whose tiles are interleaved.
    pub heads_per_group: u32,
    /// Number of (batch, head) pairs.
    pub heads: u32,
    /// Backward pass: [`ORDERED`], [`FASTEST`] or [`SHIFTED`].
    pub order: u32,
    /// How many shifted orders the tiles of a head have, with [`SHIFTED`]; else 1. Of two, every second tile is in the first, and
    /// neighbours in an order keep twice the distance: see [`crate::attention::block_order`].
    pub stride: u32,
}

/// [`Schedule::order`]: contributions to dQ are added in one fixed order; bit-equal from run to run.
pub const ORDERED: u32 = 0;
/// [`Schedule::order`]: contributions to dQ are added in any order, to an accumulator that is cleared before. In flash1 one block of threads adds
/// all of them, one after the other.
pub const FASTEST: u32 = 1;
/// [`Schedule::order`]: as [`ORDERED`], and the tiles of a head begin at equal distances and visit the query blocks cyclically (shift
/// schedule): see [`crate::attention::block_order`]. All tiles of a shifted order run at once: `tiles · heads_per_group` blocks, or
/// half of that with two orders, are resident together, and each takes tiles at a stride of their number. Further blocks take none.
pub const SHIFTED: u32 = 2;

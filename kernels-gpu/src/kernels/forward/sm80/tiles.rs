//! The tiles of flash2's forward pass: which part of S and of O a warp has.

use crate::config;
use crate::tile::register::{Accumulator, RegisterTile};

/// The tiles of one head_dim; sizes as [`config::forward`] says.
pub trait Tiles {
    /// Columns of every tile; tensors may have fewer: see [`GlobalMatrix::has_chunk`](crate::tile::global::GlobalMatrix::has_chunk).
    const HEAD_DIM: u32;
    /// A warp's rows of S.
    type Scores: Accumulator;
    /// A warp's rows of O, and its columns.
    type Output: Accumulator;
    /// How many rows.
    const WARP_ROWS: u32 = Self::Output::M as u32 * 16;
    /// How many columns: of O, and as many of Q, K and V.
    const WARP_COLUMNS: u32 = Self::Output::N as u32 * 8;
    /// Warps that have the same rows, each other columns.
    const WARPS_ACROSS: u32 = Self::HEAD_DIM / Self::WARP_COLUMNS;
    /// Fails to compile where the register tiles are not those of the footprint.
    const CONSISTENT: () = {
        let footprint = config::forward(Self::HEAD_DIM);
        let warps_down = footprint.threads / 32 / Self::WARPS_ACROSS;
        assert!(warps_down * Self::WARP_ROWS == footprint.block_q);
        assert!(Self::WARPS_ACROSS * Self::WARP_COLUMNS == Self::HEAD_DIM);
        assert!(Self::WARPS_ACROSS == config::forward_warps_across(Self::HEAD_DIM));
        assert!(Self::Scores::M == Self::Output::M);
        assert!(Self::Scores::N as u32 * 8 == footprint.block_k);
    };
}

/// The tiles of head_dim `D`.
pub struct DefaultTiles<const D: u32>;

impl Tiles for DefaultTiles<32> {
    const HEAD_DIM: u32 = 32;
    type Scores = RegisterTile<2, { n8(config::forward(32).block_k) }>;
    type Output = RegisterTile<2, { n8(32) }>;
}

impl Tiles for DefaultTiles<64> {
    const HEAD_DIM: u32 = 64;
    type Scores = RegisterTile<2, { n8(config::forward(64).block_k) }>;
    type Output = RegisterTile<2, { n8(64) }>;
}

impl Tiles for DefaultTiles<128> {
    const HEAD_DIM: u32 = 128;
    type Scores = RegisterTile<2, { n8(config::forward(128).block_k) }>;
    type Output = RegisterTile<2, { n8(128) }>;
}

impl Tiles for DefaultTiles<256> {
    const HEAD_DIM: u32 = 256;
    type Scores = RegisterTile<1, { n8(config::forward(256).block_k) }>;
    type Output = RegisterTile<1, { n8(256) }>;
}

impl Tiles for DefaultTiles<512> {
    const HEAD_DIM: u32 = 512;
    type Scores = RegisterTile<2, { n8(config::forward(512).block_k) }>;
    type Output = RegisterTile<2, { n8(512 / config::forward_warps_across(512)) }>;
}

/// Fragments across `columns` columns.
pub(super) const fn n8(columns: u32) -> usize {
    columns as usize / 8
}

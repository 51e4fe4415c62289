//! The tiles of flash2's forward pass: which part of S and of O a warp has.

use core::marker::PhantomData;

use crate::config::{self, F32_BYTES, Footprint, HALF_BYTES};
use crate::kernels::stamps::Stamped;
use crate::tile::element::{Element, F32};
use crate::tile::products::Products;
use crate::tile::register::{Accumulator, RegisterTile};

/// The tiles of one head_dim.
pub trait Tiles {
    /// Columns of every tile; tensors may have fewer: see [`GlobalMatrix::has_chunk`](crate::tile::global::GlobalMatrix::has_chunk).
    const HEAD_DIM: u32;
    /// A warp's rows of S.
    type Scores: Accumulator;
    /// A warp's rows of O, and its columns.
    type Output: Accumulator;
}

/// How a block of threads shares such tiles out.
pub trait Blocks: Tiles {
    /// What it takes.
    const FOOTPRINT: Footprint;
    /// Bytes of a row of Q, K and V.
    const ROW_BYTES: u32;
    /// Whether the kernel records its tiles: see [`Stamped`].
    const STAMPS: bool = false;
    /// Stages of K, and of V.
    const STAGES: u32 = config::forward_stages(Self::HEAD_DIM);
    /// Rows of a warp.
    const WARP_ROWS: u32 = Self::Output::M as u32 * 16;
    /// Its columns: of O, and as many of Q, K and V.
    const WARP_COLUMNS: u32 = Self::Output::N as u32 * 8;
    /// Warps that have the same rows, each other columns.
    const WARPS_ACROSS: u32 = Self::HEAD_DIM / Self::WARP_COLUMNS;
    /// Fails to compile where the register tiles are not those of the footprint.
    const CONSISTENT: () = {
        let footprint = Self::FOOTPRINT;
        let warps_down = footprint.threads / 32 / Self::WARPS_ACROSS;
        assert!(warps_down * Self::WARP_ROWS == footprint.block_q);
        assert!(Self::WARPS_ACROSS * Self::WARP_COLUMNS == Self::HEAD_DIM);
        assert!(Self::WARPS_ACROSS == config::forward_warps_across(Self::HEAD_DIM));
        assert!(Self::Scores::M == Self::Output::M);
        assert!(Self::Scores::N as u32 * 8 == footprint.block_k);
    };
}

/// The tiles of head_dim `D` and elements `E`.
pub struct DefaultTiles<E, const D: u32>(PhantomData<E>);

impl<E: Products, const D: u32> Blocks for DefaultTiles<E, D>
where
    DefaultTiles<E, D>: Tiles,
{
    const FOOTPRINT: Footprint = config::forward(E::BYTES, D);
    const ROW_BYTES: u32 = D * E::BYTES;
}

impl<T: Tiles> Tiles for Stamped<T> {
    const HEAD_DIM: u32 = T::HEAD_DIM;
    type Scores = T::Scores;
    type Output = T::Output;
}

impl<T: Blocks> Blocks for Stamped<T> {
    const FOOTPRINT: Footprint = T::FOOTPRINT;
    const ROW_BYTES: u32 = T::ROW_BYTES;
    const STAMPS: bool = true;
}

/// Register tiles of so many fragments down, of elements of so many bytes.
macro_rules! tiles {
    ($($head_dim:literal: $m:literal;)* of $bytes:ident, $elements:tt) => {$(
        tiles!(@ $head_dim, $m, $bytes, $elements);
    )*};
    (@ $head_dim:literal, $m:literal, $bytes:ident, [$element:ty $(, $e:ident: $bound:ident)?]) => {
        impl$(<$e: $bound>)? Tiles for DefaultTiles<$element, $head_dim> {
            const HEAD_DIM: u32 = $head_dim;
            type Scores = RegisterTile<$m, { n8(config::forward($bytes, $head_dim).block_k) }>;
            type Output = RegisterTile<$m, { n8($head_dim / config::forward_warps_across($head_dim)) }>;
        }
    };
}

tiles! { 32: 2; 64: 2; 128: 2; 256: 1; 512: 2; of HALF_BYTES, [E, E: Element] }
tiles! { 32: 2; 64: 2; 128: 2; of F32_BYTES, [F32] }

/// Fragments across `columns` columns.
pub(super) const fn n8(columns: u32) -> usize {
    columns as usize / 8
}

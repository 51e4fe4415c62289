//! A warpgroup's operands in shared memory, and the descriptors by which `wgmma` finds their parts.

use crate::params::BOX_COLUMNS;
use crate::ptx::wgmma::Descriptor;
use crate::tile::shared::SharedTile;

/// Bytes of a row of a box.
const ROW_BYTES: u32 = BOX_COLUMNS * 2;
/// Rows after which the swizzle repeats.
const SWIZZLE_ROWS: u32 = 8;
/// The upper half of every descriptor: the distance of groups of eight rows, and the 128-byte swizzle.
const HIGH: u32 = (SWIZZLE_ROWS * ROW_BYTES) >> 4 | 1 << 30;

/// A tile of 16-bit elements as TMA boxes fill it: parts of 64 columns one after the other, each `rows` rows of 128 bytes,
/// swizzled.
#[derive(Clone, Copy)]
pub struct BoxedTile {
    /// Its address in shared memory; a multiple of 1024.
    pub base: u32,
    /// Rows of each part; a multiple of 8.
    pub rows: u32,
}

impl BoxedTile {
    /// Bytes of a tile.
    pub const fn n_bytes(rows: u32, columns: u32) -> u32 {
        rows * columns.div_ceil(BOX_COLUMNS) * ROW_BYTES
    }

    /// Columns `64 · idx ..`.
    #[inline(always)]
    pub const fn part(self, idx: u32) -> SharedTile {
        SharedTile {
            base: self.base + idx * self.rows * ROW_BYTES,
            row_bytes: ROW_BYTES,
        }
    }

    /// The tile from row `first` on, a multiple of 8.
    #[inline(always)]
    pub const fn from_row(self, first: u32) -> BoxedTile {
        BoxedTile {
            base: self.base + first * ROW_BYTES,
            rows: self.rows,
        }
    }

    /// The tile from its columns `64 · idx ..` on.
    #[inline(always)]
    pub const fn from_part(self, idx: u32) -> BoxedTile {
        BoxedTile {
            base: self.part(idx).base,
            rows: self.rows,
        }
    }

    /// The operand whose inner dimension is the tile's columns: its columns `16 · k ..`.
    #[inline(always)]
    pub(super) const fn along_columns(self, k: u32) -> Descriptor {
        let offset = k / 4 * self.rows * ROW_BYTES + k % 4 * 32;
        // The leading dimension's offset has no meaning here.
        Descriptor {
            low: (self.base >> 4) + (1 << 16 | offset >> 4),
            high: HIGH,
        }
    }
}

/// An operand whose inner dimension is its rows: tiles of equally many rows and of the same columns, below each other.
#[derive(Clone, Copy)]
pub struct Stacked {
    /// The first.
    pub tile: BoxedTile,
    /// Bytes from one to the next.
    pub next: u32,
}

impl From<BoxedTile> for Stacked {
    /// One tile, with none behind it.
    #[inline(always)]
    fn from(tile: BoxedTile) -> Stacked {
        Stacked { tile, next: 0 }
    }
}

impl Stacked {
    /// The operand from its columns `64 · idx ..` on.
    #[inline(always)]
    pub const fn from_part(self, idx: u32) -> Stacked {
        Stacked {
            tile: self.tile.from_part(idx),
            next: self.next,
        }
    }

    /// Its rows `16 · k ..`.
    #[inline(always)]
    pub(super) const fn along_rows(self, k: u32) -> Descriptor {
        let BoxedTile { base, rows } = self.tile;
        let row = k * 16;
        let offset = row / rows * self.next + row % rows * ROW_BYTES;
        Descriptor {
            low: (base >> 4) + (((rows * ROW_BYTES) >> 4) << 16 | offset >> 4),
            high: HIGH,
        }
    }
}

/// A product's left operand in shared memory.
#[derive(Clone, Copy)]
pub enum Left {
    /// Stored by rows: the inner dimension is the tile's columns.
    Rows(BoxedTile),
    /// Stored by columns, 64 in a row of the tiles: the inner dimension is their rows.
    Columns(Stacked),
}

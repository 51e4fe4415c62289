//! A warpgroup's operands in shared memory, and the descriptors by which `wgmma` finds their parts.

use crate::params::BOX_BYTES;
use crate::ptx::wgmma::Descriptor;
use crate::tile::shared::SharedTile;

/// Bytes of a row of a box.
const ROW_BYTES: u32 = BOX_BYTES;
/// Rows after which the swizzle repeats.
const SWIZZLE_ROWS: u32 = 8;
/// The upper half of every descriptor: the distance of groups of eight rows, and the 128-byte swizzle.
const HIGH: u32 = (SWIZZLE_ROWS * ROW_BYTES) >> 4 | 1 << 30;

/// A tile as TMA boxes fill it: parts of 128 bytes of its rows one after the other, each `rows` rows, swizzled. Where nothing else is said,
/// elements have 16 bits, and a part 64 columns; of 8 bits it has 128.
#[derive(Clone, Copy)]
pub struct BoxedTile {
    /// Its address in shared memory; a multiple of 1024.
    pub base: u32,
    /// Rows of each part; a multiple of 8.
    pub rows: u32,
}

impl BoxedTile {
    /// Bytes of a tile of rows of so many bytes.
    pub const fn n_bytes(rows: u32, row_bytes: u32) -> u32 {
        rows * row_bytes.next_multiple_of(ROW_BYTES)
    }

    /// Columns `64 · idx ..`.
    #[inline(always)]
    pub const fn part(self, idx: u32) -> SharedTile {
        SharedTile {
            base: self.base + idx * self.rows * ROW_BYTES,
            row_bytes: ROW_BYTES,
        }
    }

    /// The tile from row `first` on: a multiple of 8 where products read it, any where the TMA fills it.
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

    /// The tile from its columns `64 · idx + 32 · half ..` on, of which products read 32, where its rows are the inner dimension.
    #[inline(always)]
    pub const fn from_half_of_part(self, idx: u32, half: u32) -> BoxedTile {
        BoxedTile {
            base: self.part(idx).base + half * (ROW_BYTES / 2),
            rows: self.rows,
        }
    }

    /// Its transpose, as an operand.
    #[inline(always)]
    pub const fn t(self) -> Transposed {
        Transposed(self)
    }

    /// The operand whose inner dimension is the tile's columns: its columns `16 · k ..`, in 8 bits `32 · k ..`.
    #[inline(always)]
    pub(super) const fn along_columns(self, k: u32) -> Descriptor {
        let offset = k / 4 * self.rows * ROW_BYTES + k % 4 * 32;
        // The leading dimension's offset has no meaning here.
        Descriptor {
            low: (self.base >> 4) + (1 << 16 | offset >> 4),
            high: HIGH,
        }
    }

    /// The operand whose inner dimension is the tile's rows: its rows `16 · k ..`.
    #[inline(always)]
    pub(super) const fn along_rows(self, k: u32) -> Descriptor {
        let offset = k * 16 * ROW_BYTES;
        Descriptor {
            low: (self.base >> 4) + (((self.rows * ROW_BYTES) >> 4) << 16 | offset >> 4),
            high: HIGH,
        }
    }
}

/// A tile's transpose.
#[derive(Clone, Copy)]
pub struct Transposed(pub BoxedTile);

/// An operand of a product in shared memory: a tile, or its transpose.
pub trait BoxedOperand: Copy {
    /// Which of them.
    const IS_TRANSPOSED: bool;

    /// As A, its columns `16 · k ..`.
    fn as_left(self, k: u32) -> Descriptor;

    /// As B, its rows `16 · k ..`.
    fn as_right(self, k: u32) -> Descriptor;
}

impl BoxedOperand for BoxedTile {
    const IS_TRANSPOSED: bool = false;

    #[inline(always)]
    fn as_left(self, k: u32) -> Descriptor {
        self.along_columns(k)
    }

    #[inline(always)]
    fn as_right(self, k: u32) -> Descriptor {
        self.along_rows(k)
    }
}

impl BoxedOperand for Transposed {
    const IS_TRANSPOSED: bool = true;

    #[inline(always)]
    fn as_left(self, k: u32) -> Descriptor {
        self.0.along_rows(k)
    }

    #[inline(always)]
    fn as_right(self, k: u32) -> Descriptor {
        self.0.along_columns(k)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TILE: BoxedTile = BoxedTile {
        base: 4096,
        rows: 128,
    };

    /// Where a descriptor begins, in bytes; its leading offset, in bytes.
    fn parts(descriptor: Descriptor) -> (u32, u32) {
        assert_eq!(descriptor.high, (1 << 30) | (1024 / 16));
        ((descriptor.low & 0xffff) * 16, (descriptor.low >> 16) * 16)
    }

    /// 16 columns are 32 bytes of a row of 128, and the next 64 columns are another part.
    #[test]
    fn steps_along_columns_go_through_the_parts() {
        for k in 0..16 {
            let (begin, leading) = parts(TILE.along_columns(k));
            let part = TILE.part(k / 4);
            assert_eq!(part.base, 4096 + k / 4 * 128 * 128);
            assert_eq!(begin, part.base + k % 4 * 32);
            assert_eq!(leading, 16);
            assert_eq!(TILE.from_part(k / 4).base, part.base);
        }
    }

    /// 16 rows are 2048 bytes; the next part is all the tile's rows away.
    #[test]
    fn steps_along_rows_stay_in_their_part() {
        for k in 0..8 {
            let (begin, leading) = parts(TILE.along_rows(k));
            assert_eq!(begin, TILE.from_row(16 * k).base);
            assert_eq!(begin, 4096 + k * 2048);
            assert_eq!(leading, 128 * 128);
        }
    }

    #[test]
    fn a_tile_has_whole_parts() {
        for (columns, parts) in [(64, 1), (72, 2), (128, 2), (192, 3), (256, 4)] {
            assert_eq!(BoxedTile::n_bytes(80, 2 * columns), 80 * 128 * parts);
        }
    }
}

//! Tiles in shared memory: rows of 16-byte chunks, swizzled so that neither `cp.async`'s rows nor `ldmatrix`'s
//! columns of chunks meet in a bank.

/// A tile of 16-bit elements in shared memory, `row_bytes` (64, or a multiple of 128) a row.
///
/// Chunk `c` of row `r` lies at chunk `c ^ r % 8` of the row; in rows of 64 bytes, of which two share the 128 bytes
/// that the 32 banks serve at once, at `c ^ r / 2 % 4`.
#[derive(Clone, Copy, Debug)]
pub struct SharedTile {
    /// Address of the tile in shared memory; a multiple of 128.
    pub base: u32,
    /// Bytes of a row.
    pub row_bytes: u32,
}

impl SharedTile {
    /// The address of a 16-byte chunk.
    #[inline(always)]
    pub const fn chunk(self, row: u32, chunk: u32) -> u32 {
        self.base + row * self.row_bytes + ((chunk ^ self.swizzle(row)) << 4)
    }

    /// The address of the two elements at columns `col` and `col + 1`; `col` is even.
    #[inline(always)]
    pub const fn pair(self, row: u32, col: u32) -> u32 {
        self.chunk(row, col / 8) + col % 8 * 2
    }

    /// What the row does to the number of a chunk.
    #[inline(always)]
    const fn swizzle(self, row: u32) -> u32 {
        if self.row_bytes == 64 {
            row / 2 % 4
        } else {
            row % 8
        }
    }
}

/// One lane's view of a tile for reading 16 × 16 pieces: the swizzle is worked out once, for the lane's row.
#[derive(Clone, Copy)]
pub struct LaneRows {
    row_address: u32,
    /// The swizzled chunk of column 0, as an offset in bytes.
    chunk_offset: u32,
    row_bytes: u32,
}

impl LaneRows {
    /// The lane points at row `row`, and at chunk `chunk` (0 or 1) of each 16 columns.
    #[inline(always)]
    pub const fn new(tile: SharedTile, row: u32, chunk: u32) -> Self {
        LaneRows {
            row_address: tile.base + row * tile.row_bytes,
            chunk_offset: (chunk ^ tile.swizzle(row)) << 4,
            row_bytes: tile.row_bytes,
        }
    }

    /// The lane's address for the piece `row16 · 16` rows down and `col16 · 16` columns to the right.
    #[inline(always)]
    pub const fn address(self, row16: u32, col16: u32) -> u32 {
        let bytes = col16 * 32;
        self.row_address
            + row16 * 16 * self.row_bytes
            + (self.chunk_offset ^ (bytes & 127))
            + (bytes & !127)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const WIDTHS: [u32; 5] = [64, 128, 256, 512, 1024];

    #[test]
    fn chunks_do_not_overlap() {
        for row_bytes in WIDTHS {
            let tile = SharedTile {
                base: 1024,
                row_bytes,
            };
            let chunks: HashSet<_> = (0..32)
                .flat_map(|r| (0..row_bytes / 16).map(move |c| tile.chunk(r, c)))
                .collect();
            assert_eq!(chunks.len() as u32, 32 * row_bytes / 16);
            assert!(
                chunks
                    .iter()
                    .all(|&a| (1024..1024 + 32 * row_bytes).contains(&a))
            );
        }
    }

    /// `ldmatrix` reads eight rows at one chunk; each of the eight must lie in its own 16-byte column of banks.
    #[test]
    fn columns_of_chunks_meet_in_no_bank() {
        for row_bytes in WIDTHS {
            let tile = SharedTile { base: 0, row_bytes };
            for chunk in 0..row_bytes / 16 {
                for first in (0..32).step_by(8) {
                    let banks: HashSet<_> = (first..first + 8)
                        .map(|r| tile.chunk(r, chunk) / 16 % 8)
                        .collect();
                    assert_eq!(banks.len(), 8, "row_bytes {row_bytes} chunk {chunk}");
                }
            }
        }
    }

    #[test]
    fn a_lane_finds_the_same_chunks() {
        for row_bytes in WIDTHS {
            let tile = SharedTile {
                base: 2048,
                row_bytes,
            };
            for (row, chunk) in (0..16).flat_map(|r| [(r, 0), (r, 1)]) {
                let lane = LaneRows::new(tile, row, chunk);
                for (row16, col16) in (0..4).flat_map(|r| (0..row_bytes / 32).map(move |c| (r, c)))
                {
                    assert_eq!(
                        lane.address(row16, col16),
                        tile.chunk(row + row16 * 16, col16 * 2 + chunk)
                    );
                }
            }
        }
    }

    #[test]
    fn a_pair_lies_in_its_chunk() {
        for row_bytes in WIDTHS {
            let tile = SharedTile {
                base: 1024,
                row_bytes,
            };
            for (row, col) in
                (0..16).flat_map(|r| (0..row_bytes / 2).step_by(2).map(move |c| (r, c)))
            {
                let offset = tile.pair(row, col) - tile.chunk(row, col / 8);
                assert_eq!(offset, col % 8 * 2);
            }
        }
    }
}

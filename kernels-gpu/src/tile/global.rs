//! Tiles in global memory: the rows of one head of one batch entry.

use crate::params::TensorView;
use crate::ptx::spec;

/// Rows of one (batch, head) of a tensor `[batch, seqlen, heads, head_dim]`.
#[derive(Clone, Copy)]
pub struct GlobalRows {
    /// Address of row 0.
    pub base: u64,
    /// Bytes from one row to the next.
    pub row_bytes: u64,
    /// How many rows the sequence has; rows beyond are never touched.
    pub len: u32,
}

impl GlobalRows {
    /// The rows of head `head_idx` of batch entry `batch_idx`, of 16-bit elements.
    #[inline(always)]
    pub fn new(tensor: &TensorView, batch_idx: u32, head_idx: u32, len: u32) -> Self {
        GlobalRows::of_elements(tensor, batch_idx, head_idx, len, 2)
    }

    /// The same of elements of this many bytes.
    #[inline(always)]
    pub fn of_elements(
        tensor: &TensorView,
        batch_idx: u32,
        head_idx: u32,
        len: u32,
        element_bytes: u32,
    ) -> Self {
        let elements =
            i64::from(batch_idx) * tensor.batch_stride + i64::from(head_idx) * tensor.head_stride;
        let bytes = |elements: i64| (elements * i64::from(element_bytes)) as u64;
        GlobalRows {
            base: tensor.base.wrapping_add(bytes(elements)),
            row_bytes: bytes(tensor.row_stride),
            len,
        }
    }

    /// The rows of a sequence that begins at row `first`, and has `len`.
    #[inline(always)]
    pub fn from_row(self, first: u32, len: u32) -> Self {
        GlobalRows {
            base: self.chunk(first, 0),
            len,
            ..self
        }
    }

    /// The rows with this many columns of 16-bit elements, a multiple of 8.
    #[inline(always)]
    pub fn with_columns(self, columns: u32) -> GlobalMatrix {
        self.with_chunks(columns / 8)
    }

    /// The rows with this many chunks of 16 bytes.
    #[inline(always)]
    pub fn with_chunks(self, chunks: u32) -> GlobalMatrix {
        GlobalMatrix { rows: self, chunks }
    }

    /// The address of a 16-byte chunk.
    #[inline(always)]
    pub fn chunk(self, row: u32, chunk: u32) -> u64 {
        self.base
            .wrapping_add(u64::from(row).wrapping_mul(self.row_bytes))
            .wrapping_add(u64::from(chunk) * 16)
    }
}

/// A matrix whose width, whole chunks, need not be a tile's.
#[derive(Clone, Copy)]
pub struct GlobalMatrix {
    /// Its rows.
    pub rows: GlobalRows,
    /// Chunks of 16 bytes in a row; bytes beyond are never touched.
    pub chunks: u32,
}

impl GlobalMatrix {
    /// The columns from this chunk on.
    #[inline(always)]
    pub fn from_chunk(self, chunk: u32) -> Self {
        let rows = GlobalRows {
            base: self.rows.base.wrapping_add(u64::from(chunk) * 16),
            ..self.rows
        };
        GlobalMatrix {
            rows,
            chunks: self.chunks.saturating_sub(chunk),
        }
    }

    /// Whether its rows have this chunk of a tile's. A kernel that was not compiled with [`PadColumns`](crate::spec::Constant::PadColumns) has
    /// tiles of as many columns, and does not ask.
    #[inline(always)]
    pub fn has_chunk(self, chunk: u32) -> bool {
        !spec::pad_columns() || chunk < self.chunks
    }

    /// Whether the matrix has this row and this chunk.
    #[inline(always)]
    pub fn contains(self, row: u32, chunk: u32) -> bool {
        row < self.rows.len && chunk < self.chunks
    }
}

/// The place of row `row` of head `head` (`batch_idx · heads_q + head_idx`) in an array `[batch, heads_q, rows]` of f32.
#[inline(always)]
pub fn row_of_head(base: u64, head: u32, rows: u64, row: u32) -> u64 {
    base + (u64::from(head) * rows + u64::from(row)) * 4
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers whose products 32 bits do not hold, at sizes that no test has the memory for.
    #[test]
    fn offsets_have_64_bits() {
        let tensor = TensorView {
            base: 1 << 40,
            batch_stride: (1 << 34) + 8,
            row_stride: (1 << 33) + 16,
            head_stride: (1 << 32) + 24,
        };
        let rows = GlobalRows::new(&tensor, 3, 5, 100);
        let base = (1 << 40) + 2 * (3 * ((1 << 34) + 8) + 5 * ((1 << 32) + 24));
        assert_eq!(rows.base, base);
        assert_eq!(rows.row_bytes, 2 * ((1 << 33) + 16));
        assert_eq!(rows.chunk(7, 2), base + 14 * ((1 << 33) + 16) + 32);
        // Strides that fit, and a row whose offset does not.
        let dense = GlobalRows {
            base: 4096,
            row_bytes: 1 << 12,
            len: 1 << 29,
        };
        let last = (1 << 29) - 1;
        assert_eq!(dense.chunk(last, 1), 4096 + (u64::from(last) << 12) + 16);
        let chunk = u32::MAX;
        let matrix = GlobalMatrix {
            rows: dense,
            chunks: chunk,
        };
        let from = matrix.from_chunk(chunk).rows.base;
        assert_eq!(from, 4096 + u64::from(chunk) * 16);
    }

    #[test]
    fn the_row_of_a_head_has_64_bits() {
        // 2^20 heads of 2^20 rows: the element's number does not fit, nor do its bytes.
        let (base, head, rows, row) = (1 << 33, (1 << 20) - 1, 1 << 20, (1 << 20) - 3);
        let elements = ((1u64 << 20) - 1) * (1 << 20) + (1 << 20) - 3;
        assert_eq!(row_of_head(base, head, rows, row), base + 4 * elements);
        // Here the number fits, and its bytes do not.
        assert_eq!(row_of_head(0, 3, 1 << 29, 5), 4 * (3 * (1 << 29) + 5));
    }

    #[test]
    fn rows_and_chunks_behind_the_last_are_not_there() {
        let rows = GlobalRows {
            base: 4096,
            row_bytes: 256,
            len: 9,
        };
        let matrix = GlobalMatrix { rows, chunks: 5 };
        for (row, chunk) in (0..12).flat_map(|row| (0..8).map(move |chunk| (row, chunk))) {
            assert_eq!(matrix.contains(row, chunk), row < 9 && chunk < 5);
        }
        let sequence = rows.from_row(4, 3);
        assert_eq!((sequence.base, sequence.len), (4096 + 4 * 256, 3));
        assert_eq!(sequence.row_bytes, 256);
    }
}

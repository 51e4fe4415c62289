//! Block masks: which blocks of keys a block of queries visits, by a map of bytes (block-sparse attention: Dao et al. 2022, section
//! 3.3; FlexAttention's `BlockMask`: Dong et al. 2024).
//!
//! A map has a byte for each block of the caller's, `[rows, columns]`: rows of queries, columns of keys. Its blocks are whole multiples of the
//! kernels' tiles and blocks, so each of these is within one block of the map.

use super::mask::{Band, Blocks};
use crate::params::{HIDDEN_BLOCK, PARTIAL_BLOCK};

/// Whether a block of keys is listed for a block of queries, given the map's byte and the band's blocks.
#[inline(always)]
pub fn is_listed(state: u8, band: Blocks, block: u32) -> bool {
    match state {
        HIDDEN_BLOCK => false,
        PARTIAL_BLOCK => band.first <= block && block < band.end,
        _ => true,
    }
}

/// How many blocks of a column of the map are listed of those before `limit`; a column has `per_column` of them.
#[inline(always)]
pub fn listed_of_column(state: u8, band: Blocks, column: u32, per_column: u32, limit: u32) -> u32 {
    if state == HIDDEN_BLOCK {
        return 0;
    }
    let (mut begin, mut end) = (column * per_column, (column + 1) * per_column);
    if end > limit {
        end = limit;
    }
    if state == PARTIAL_BLOCK {
        if begin < band.first {
            begin = band.first;
        }
        if end > band.end {
            end = band.end;
        }
    }
    end.saturating_sub(begin)
}

/// A block of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SparseBlock {
    /// Its index: of keys in the forward pass, of queries in the backward pass.
    pub block: u32,
    /// Whether all pairs are visible, also those that the band hides.
    pub is_full: bool,
    /// In the backward pass: how many tiles of keys add to this block of dQ before the list's own tile.
    pub rank: u32,
}

impl SparseBlock {
    /// Whether a pair of the block is visible; false also for keys beyond the sequence's end.
    #[inline(always)]
    pub fn keep(self, band: &Band, q_idx: u32, k_idx: u32) -> bool {
        if self.is_full {
            k_idx < band.seqlen_k()
        } else {
            band.keep(q_idx, k_idx)
        }
    }

    /// Bytes of a list's entry.
    pub const N_BYTES: u32 = 8;

    /// As a list's entry.
    #[inline(always)]
    pub const fn words(self) -> [u32; 2] {
        [self.block << 1 | self.is_full as u32, self.rank]
    }

    /// From a list's entry.
    #[inline(always)]
    pub const fn from_words([block, rank]: [u32; 2]) -> SparseBlock {
        SparseBlock {
            block: block >> 1,
            is_full: block & 1 == 1,
            rank,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BAND: Blocks = Blocks {
        first: 2,
        full_first: 3,
        full_end: 4,
        end: 7,
    };

    #[test]
    fn columns_count_their_listed_blocks() {
        for per_column in 1..4 {
            for state in 0..4 {
                for limit in 0..12 {
                    for column in 0..4 {
                        let blocks = column * per_column..(column + 1) * per_column;
                        let expected = blocks
                            .filter(|&block| block < limit && is_listed(state, BAND, block))
                            .count();
                        let n = listed_of_column(state, BAND, column, per_column, limit);
                        assert_eq!(
                            n as usize, expected,
                            "{per_column} {state} {limit} {column}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_block_is_read_as_it_was_written() {
        for is_full in [false, true] {
            let listed = SparseBlock {
                block: 77,
                is_full,
                rank: 5,
            };
            assert_eq!(SparseBlock::from_words(listed.words()), listed);
        }
    }

    /// A full block shows what the band hides, and nothing beyond the last key.
    #[test]
    fn only_full_blocks_show_what_the_band_hides() {
        use crate::attention::mask::Bounds;
        use crate::params::Window;
        let causal = Bounds {
            left: false,
            right: true,
            prefix: false,
        };
        let band = Band::new(8, 8, Window::new(8, 8, 0, 0), causal);
        let listed = |is_full| SparseBlock {
            is_full,
            ..SparseBlock::default()
        };
        for (query, key) in (0..8).flat_map(|query| (0..12).map(move |key| (query, key))) {
            assert_eq!(listed(true).keep(&band, query, key), key < 8);
            assert_eq!(listed(false).keep(&band, query, key), key <= query);
        }
    }
}

//! Which query of which head a row of a tile is.
//!
//! Mostly a tile's rows are queries of one head. Packed, they are queries of several heads that share K and V, one head's
//! behind the other's: of 2ⁿ heads 64 / 2ⁿ queries each. Then K and V are read once for all of these heads, and a tile of
//! few queries is fuller. The heads of such a pack are neighbours; a pack counts as one head of the schedule. In grouped tiles the second
//! consumer has the next queries of the same heads.

use super::Tiles;
use crate::attention::{batch_and_head, divide};
use crate::params::TmaForwardParams;
use crate::tile::warpgroup::WARPGROUP_ROWS;

/// How many heads share a tile.
#[derive(Clone, Copy)]
pub(super) struct PackGqa {
    heads_log2: u32,
}

/// The heads of a pack.
#[derive(Clone, Copy)]
pub(super) struct Pack {
    pub(super) batch_idx: u32,
    /// The first of them.
    pub(super) head_idx: u32,
    /// The head of K and V that they share.
    pub(super) kv_head_idx: u32,
}

impl PackGqa {
    /// As the parameters say, where tiles are of a shape that packs.
    #[inline(always)]
    pub(super) fn new<T: Tiles>(p: &TmaForwardParams) -> PackGqa {
        const {
            assert!(
                !T::PACKS_GQA || T::STORES || T::LATENT,
                "a consumer's rows of a pack are a box; O leaves in boxes, or row by row"
            );
        }
        PackGqa {
            heads_log2: if T::PACKS_GQA { p.pack_gqa_log2 } else { 0 },
        }
    }

    /// The heads of the `idx`-th pack of all batch entries.
    #[inline(always)]
    pub(super) fn pack(self, p: &TmaForwardParams, idx: u32) -> Pack {
        let (batch_idx, pack_idx) = batch_and_head(idx, p.shape.heads_q >> self.heads_log2);
        let head_idx = pack_idx << self.heads_log2;
        Pack {
            batch_idx,
            head_idx,
            kv_head_idx: divide(head_idx, p.shape.group_size),
        }
    }

    /// The head and the query of the first row of the tile that has this row.
    #[inline(always)]
    pub(super) const fn first_row<T: Tiles>(self, head: u32, query: u32) -> (u32, u32) {
        let first_head = head >> self.heads_log2 << self.heads_log2;
        let first_query = query & !(self.queries(T::FOOTPRINT.block_q) - 1);
        (first_head, first_query)
    }

    /// How many rows of a tile from this query on are a sequence's.
    #[inline(always)]
    pub(super) fn rows_of_tile<T: Tiles>(self, first_query: u32, seqlen_q: u32) -> u32 {
        let queries = self.queries(T::FOOTPRINT.block_q);
        let left = seqlen_q - first_query;
        let queries = if left < queries { left } else { queries };
        queries << self.heads_log2
    }

    /// Of so many rows of a tile, how many are of one head.
    #[inline(always)]
    pub(super) const fn queries(self, rows: u32) -> u32 {
        rows >> self.heads_log2
    }

    /// The query that a row is, rows counted from the first tile's first one on.
    #[inline(always)]
    pub(super) fn query<T: Tiles>(self, row: u32) -> u32 {
        if T::PACKS_GQA {
            let queries = self.queries(WARPGROUP_ROWS);
            row / WARPGROUP_ROWS * queries + (row & (queries - 1))
        } else {
            row
        }
    }

    /// The head that a row is of, heads counted as the pack `idx` is.
    #[inline(always)]
    pub(super) fn head<T: Tiles>(self, idx: u32, row: u32) -> u32 {
        if T::PACKS_GQA {
            let within = row % WARPGROUP_ROWS;
            (idx << self.heads_log2) + (within << self.heads_log2) / WARPGROUP_ROWS
        } else {
            idx
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CompactTiles, DefaultTiles, GroupedTiles};
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn rows_of_a_pack_are_every_query_of_each_of_its_heads() {
        for heads_log2 in 0..=6 {
            let packing = PackGqa { heads_log2 };
            let heads = 1 << heads_log2;
            let all: HashSet<_> = (0..3 * 64)
                .map(|row| {
                    let (head, query) = (
                        packing.head::<CompactTiles<64>>(5, row),
                        packing.query::<CompactTiles<64>>(row),
                    );
                    let first = row / 64 * 64;
                    let first = (
                        packing.head::<CompactTiles<64>>(5, first),
                        packing.query::<CompactTiles<64>>(first),
                    );
                    assert_eq!(packing.first_row::<CompactTiles<64>>(head, query), first);
                    (head, query)
                })
                .collect();
            assert_eq!(packing.rows_of_tile::<CompactTiles<64>>(0, 10_000), 64);
            assert_eq!(packing.rows_of_tile::<GroupedTiles<64>>(0, 10_000), 128);
            assert_eq!(packing.rows_of_tile::<CompactTiles<64>>(0, 1), heads);
            let expected = (5 * heads..6 * heads)
                .flat_map(|head| (0..3 * 64 / heads).map(move |query| (head, query)));
            assert_eq!(all, expected.collect());
        }
    }

    #[test]
    fn rows_of_one_head_are_its_queries() {
        for row in [0, 63, 64, 200] {
            let packing = PackGqa { heads_log2: 0 };
            assert_eq!(packing.query::<CompactTiles<128>>(row), row);
            assert_eq!(packing.head::<CompactTiles<128>>(7, row), 7);
            assert_eq!(packing.query::<DefaultTiles<128>>(row), row);
            assert_eq!(packing.head::<DefaultTiles<128>>(7, row), 7);
        }
    }
}

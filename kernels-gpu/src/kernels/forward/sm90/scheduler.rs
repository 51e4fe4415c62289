//! How a block of threads comes by its tiles: by a counter, which the last to ask leaves at 0, as it was found.

use super::Tiles;
use super::layout::{Layout, WorkTile, place};
use crate::attention::lengths::ListedTile;
use crate::attention::schedule::ForwardTile;
use crate::attention::split_kv::tile_and_split;
use crate::attention::{batch_and_head, divide};
use crate::kernels::block_sparse::list::List;
use crate::kernels::common::sequence::Sequence;
use crate::params::TmaForwardParams;
use crate::ptx::{atomic, mbarrier, spec, special};
use crate::tile::ring::Ring;
use crate::tile::warpgroup::WARPGROUP_ROWS;

/// The counter.
#[derive(Clone, Copy)]
pub struct Claims {
    counter: u64,
    /// How many tiles there are.
    tiles: u32,
    /// Whether the first tile is claimed, too.
    all: bool,
}

impl Claims {
    /// Of so many tiles.
    #[inline(always)]
    pub fn new<T: Tiles>(p: &TmaForwardParams, tiles: u32) -> Claims {
        Claims {
            counter: p.tile_counter,
            tiles,
            // Blocks that wait for splits must not wait for one that is not running yet.
            all: T::SPLITS_KV && spec::split_kv(),
        }
    }

    /// Whether blocks claim their first tile, too.
    #[inline(always)]
    pub const fn claims_first(self) -> bool {
        self.all
    }

    /// Whether blocks claim a tile when the one before it ends, and not when that begins: splits are few and long.
    #[inline(always)]
    pub const fn claims_late(self) -> bool {
        self.all
    }

    /// The first tile.
    ///
    /// # Safety
    /// The counter is there; one thread of each block claims, until it gets a tile that is not there.
    #[inline(always)]
    pub unsafe fn first(self) -> u32 {
        if self.all {
            // SAFETY: the caller's contract.
            unsafe { self.next() }
        } else {
            special::block_idx_x()
        }
    }

    /// One more.
    ///
    /// # Safety
    /// As [`Claims::first`].
    #[inline(always)]
    pub unsafe fn next(self) -> u32 {
        let blocks = special::grid_dim_x();
        // SAFETY: the caller's contract.
        unsafe {
            if self.all {
                atomic::atom_inc_u32(self.counter, self.tiles + blocks - 1)
            } else {
                blocks + atomic::atom_inc_u32(self.counter, self.tiles - 1)
            }
        }
    }
}

// Which query of which head a row of a tile is.
//
// Mostly a tile's rows are queries of one head. Packed, they are queries of several heads that share K and V, one head's
// behind the other's: of 2ⁿ heads 64 / 2ⁿ queries each. Then K and V are read once for all of these heads, and a tile of
// few queries is fuller. The heads of such a pack are neighbours; a pack counts as one head of the schedule. In grouped tiles the second
// consumer has the next queries of the same heads.

/// How many heads share a tile.
#[derive(Clone, Copy)]
pub struct PackGqa {
    heads_log2: u32,
}

/// The heads of a pack.
#[derive(Clone, Copy)]
pub struct Pack {
    pub batch_idx: u32,
    /// The first of them.
    pub head_idx: u32,
    /// The head of K and V that they share.
    pub kv_head_idx: u32,
}

impl PackGqa {
    /// As the parameters say, where tiles are of a shape that packs.
    #[inline(always)]
    pub fn new<T: Tiles>(p: &TmaForwardParams) -> PackGqa {
        const {
            assert!(
                !T::PACKS_GQA || T::STORES || T::SHARES_ROWS,
                "a consumer's rows of a pack are a box; O leaves in boxes, or row by row"
            );
        }
        PackGqa {
            heads_log2: if T::PACKS_GQA { p.pack_gqa_log2 } else { 0 },
        }
    }

    /// The heads of the `idx`-th pack of all batch entries.
    #[inline(always)]
    pub fn pack(self, p: &TmaForwardParams, idx: u32) -> Pack {
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
    pub const fn first_row<T: Tiles>(self, head: u32, query: u32) -> (u32, u32) {
        let first_head = head >> self.heads_log2 << self.heads_log2;
        let first_query = query & !(self.queries(T::CONFIG.block_q) - 1);
        (first_head, first_query)
    }

    /// How many rows of a tile from this query on are a sequence's.
    #[inline(always)]
    pub fn rows_of_tile<T: Tiles>(self, first_query: u32, seqlen_q: u32) -> u32 {
        let queries = self.queries(T::CONFIG.block_q);
        let left = seqlen_q - first_query;
        let queries = if left < queries { left } else { queries };
        queries << self.heads_log2
    }

    /// How many of this many rows of a tile belong to one head.
    #[inline(always)]
    pub const fn queries(self, rows: u32) -> u32 {
        rows >> self.heads_log2
    }

    /// The query that a row is, rows counted from the first tile's first one on.
    #[inline(always)]
    pub fn query<T: Tiles>(self, row: u32) -> u32 {
        if T::PACKS_GQA {
            let queries = self.queries(WARPGROUP_ROWS);
            row / WARPGROUP_ROWS * queries + (row & (queries - 1))
        } else {
            row
        }
    }

    /// The head that a row is of, heads counted as the pack `idx` is.
    #[inline(always)]
    pub fn head<T: Tiles>(self, idx: u32, row: u32) -> u32 {
        if T::PACKS_GQA {
            let within = row % WARPGROUP_ROWS;
            (idx << self.heads_log2) + (within << self.heads_log2) / WARPGROUP_ROWS
        } else {
            idx
        }
    }
}

// Which tile the producer works on, and how the others hear of it.

/// The sequence of a tile of this head, of which `listed` reads the list's entry.
#[inline(always)]
pub fn sequence_of<L: Fn() -> ListedTile>(
    p: &TmaForwardParams,
    head: u32,
    listed: L,
) -> Sequence<'_, L> {
    Sequence {
        shape: &p.shape,
        list: &p.list,
        window: p.window,
        batch_idx: divide(head, p.shape.heads_q),
        listed,
    }
}

/// Where keys are divided among tiles: the tile of queries, and which split of its keys.
#[inline(always)]
pub fn split_of<T: Tiles>(
    p: &TmaForwardParams,
    split_keys: u32,
    tile: ForwardTile,
    sequence: &Sequence<'_, impl Fn() -> ListedTile>,
) -> (ForwardTile, u32) {
    if !(T::SPLITS_KV && spec::split_kv()) {
        return (tile, 0);
    }
    let n = sequence.n_splits(&p.split, split_keys);
    let (q_block, split) = tile_and_split(tile.q_block, n);
    (ForwardTile { q_block, ..tile }, split)
}

/// The blocks of keys that a block mask leaves the tile.
#[inline(always)]
pub fn list_of(p: &TmaForwardParams, tile: ForwardTile) -> List {
    let (batch_idx, head_idx) = batch_and_head(tile.head, p.shape.heads_q);
    p.blocks.list(batch_idx, head_idx, tile.q_block)
}

/// Announces a tile to the others and, if sequences have different lengths, its list entry.
#[inline(always)]
pub unsafe fn announce(layout: Layout, slot: Ring, work: WorkTile, listed: ListedTile) {
    // SAFETY: the slot is empty when it is written, and the place is then free.
    unsafe {
        layout.work_ring.await_empty(slot);
        layout.write_work(slot.stage, work);
        if spec::lengths() {
            layout.write_listed(place(slot, 0), listed);
        }
        mbarrier::mbarrier_arrive_if(layout.work_ring.full(slot.stage), 1);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tiles;
    use super::*;
    use std::collections::HashSet;

    type Compact = tiles!(64, 64, Compact);
    type Default = tiles!(128, 128, Default);
    type Grouped = tiles!(64, 64, Grouped);

    #[test]
    fn rows_of_a_pack_are_every_query_of_each_of_its_heads() {
        for heads_log2 in 0..=6 {
            let packing = PackGqa { heads_log2 };
            let heads = 1 << heads_log2;
            let all: HashSet<_> = (0..3 * 64)
                .map(|row| {
                    let (head, query) = (
                        packing.head::<Compact>(5, row),
                        packing.query::<Compact>(row),
                    );
                    let first = row / 64 * 64;
                    let first = (
                        packing.head::<Compact>(5, first),
                        packing.query::<Compact>(first),
                    );
                    assert_eq!(packing.first_row::<Compact>(head, query), first);
                    (head, query)
                })
                .collect();
            assert_eq!(packing.rows_of_tile::<Compact>(0, 10_000), 64);
            assert_eq!(packing.rows_of_tile::<Grouped>(0, 10_000), 128);
            assert_eq!(packing.rows_of_tile::<Compact>(0, 1), heads);
            let expected = (5 * heads..6 * heads)
                .flat_map(|head| (0..3 * 64 / heads).map(move |query| (head, query)));
            assert_eq!(all, expected.collect());
        }
    }

    #[test]
    fn rows_of_one_head_are_its_queries() {
        for row in [0, 63, 64, 200] {
            let packing = PackGqa { heads_log2: 0 };
            assert_eq!(packing.query::<Compact>(row), row);
            assert_eq!(packing.head::<Compact>(7, row), 7);
            assert_eq!(packing.query::<Default>(row), row);
            assert_eq!(packing.head::<Default>(7, row), 7);
        }
    }
}

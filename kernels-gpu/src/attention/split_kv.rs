//! Keys divided among blocks of threads, so that few queries over many keys keep a GPU busy (Flash-Decoding, Dao et al. 2023).
//!
//! The keys of a sequence are cut into splits of equal length, the last one shorter. Each is a tile's own work; what they find is
//! merged in the order of the splits. Where a sequence is cut depends on nothing but its own length, so its results have the same
//! bits in whatever batch it is.

use super::divide;
use super::mask::Blocks;

/// How many splits a sequence has: at least one, as somebody writes the rows that see no key.
#[inline(always)]
pub fn n_splits(seqlen_k: u32, split_keys: u32) -> u32 {
    let n = divide(seqlen_k, split_keys);
    let n = if n * split_keys < seqlen_k { n + 1 } else { n };
    if n == 0 { 1 } else { n }
}

/// Which tile of queries, and which split of its keys, the `idx`-th of a head is.
#[inline(always)]
pub fn tile_and_split(idx: u32, n_splits: u32) -> (u32, u32) {
    let tile = divide(idx, n_splits);
    (tile, idx - tile * n_splits)
}

/// The blocks of keys of a split, of `split_blocks`, that its tile sees: the first one, and how many. Where it sees none, the first one is
/// the split's first.
#[inline(always)]
pub fn blocks_of_split(seen: &Blocks, split: u32, split_blocks: u32) -> (u32, u32) {
    let (begin, end) = (split * split_blocks, (split + 1) * split_blocks);
    let first = if seen.first > begin {
        seen.first
    } else {
        begin
    };
    let end = if seen.end < end { seen.end } else { end };
    if first < end {
        (first, end - first)
    } else {
        (begin, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_cover_the_keys() {
        for seqlen_k in [0, 1, 63, 64, 65, 128, 1000, 1 << 29] {
            for split_keys in [64, 128, 4096] {
                let n = n_splits(seqlen_k, split_keys);
                assert!(n >= 1 && u64::from(n) * u64::from(split_keys) >= seqlen_k.into());
                assert!(n == 1 || (n - 1) * split_keys < seqlen_k);
            }
        }
        assert_eq!(n_splits(5, 0), 1);
    }

    #[test]
    fn every_tile_has_every_split_once() {
        let all: Vec<_> = (0..6).map(|idx| tile_and_split(idx, 3)).collect();
        assert_eq!(all, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]);
    }

    #[test]
    fn splits_divide_the_blocks_that_a_tile_sees() {
        for (first, end) in [(0, 0), (0, 1), (0, 12), (3, 11), (7, 8)] {
            let seen = Blocks {
                first,
                full_first: first,
                full_end: end,
                end,
            };
            let parts = (0..4).map(|split| (split, blocks_of_split(&seen, split, 3)));
            let all: Vec<u32> = parts
                .flat_map(|(split, (begin, n))| {
                    assert_eq!(divide(begin, 3), split);
                    begin..begin + n
                })
                .collect();
            assert_eq!(all, (first..end).collect::<Vec<_>>());
        }
    }
}

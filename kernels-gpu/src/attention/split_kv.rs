//! Keys divided among blocks of threads, so that few queries over many keys keep a GPU busy (Flash-Decoding, Dao et al. 2023).
//!
//! The keys of a sequence are cut into splits of equal length, the last one shorter. Each split is a separate tile; their results are merged in the
//! order of the splits. The cuts of a sequence depend only on its own length, so its results have the same bits in any batch.

use super::divide;
use super::divisor::Divisor;
use super::mask::Blocks;

/// How many splits a sequence has: at least one, which writes the rows that see no key.
#[inline(always)]
pub fn n_splits(seqlen_k: u32, split_keys: u32) -> u32 {
    let n = divide(seqlen_k, split_keys);
    let n = if n * split_keys < seqlen_k { n + 1 } else { n };
    if n == 0 { 1 } else { n }
}

/// Blocks of keys of a split, if the work of all sequences, this many blocks of `heads` heads each, is divided into equal parts: at least `least`, and one.
#[inline(always)]
pub fn blocks_of_part(blocks: u32, heads: u32, parts: u32, least: u32) -> u32 {
    let each = divide(
        blocks.saturating_mul(heads).saturating_add(parts - 1),
        parts,
    );
    at_least(each, least)
}

/// The same, if the host knows the parts.
#[inline(always)]
pub fn blocks_of_known_part(blocks: u32, heads: u32, parts: Divisor, least: u32) -> u32 {
    let (each, rest) = parts.divide(blocks.saturating_mul(heads));
    at_least(each + (rest > 0) as u32, least)
}

#[inline(always)]
fn at_least(each: u32, least: u32) -> u32 {
    let each = if each > least { each } else { least };
    if each > 1 { each } else { 1 }
}

/// Blocks of keys of a split of the longest sequence, all of whose splits are to be equally long, if a part of the work has `each`. A split
/// may be longer than a part by a third: a short rest would cost more than it saves.
#[inline(always)]
pub fn even_blocks(longest: u32, each: u32) -> u32 {
    let rounded = longest.saturating_add(each - 1).saturating_sub(each / 4);
    let n = divide(rounded, each);
    let n = if n > 1 { n } else { 1 };
    let even = divide(longest.saturating_add(n - 1), n);
    if even > 1 { even } else { 1 }
}

/// The tile of queries, and the split of its keys, of a head's `idx`-th work.
#[inline(always)]
pub fn tile_and_split(idx: u32, n_splits: u32) -> (u32, u32) {
    let tile = divide(idx, n_splits);
    (tile, idx - tile * n_splits)
}

/// The blocks of keys of a split, of `split_blocks`, that its tile sees: the first one, and their number. If it sees none, the first one is the split's first.
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
    fn a_part_is_an_equal_share_of_the_work() {
        // One sequence of 128k keys among 63 of 1k, 8 heads, 132 SMs: 11 splits of the longest, one of each of the others.
        let part = |blocks, heads, parts, least| {
            let each = blocks_of_part(blocks, heads, parts, least);
            let known = blocks_of_known_part(blocks, heads, Divisor::new(parts), least);
            assert_eq!(known, each);
            each
        };
        let each = part(2048 + 63 * 16, 8, 132, 1);
        assert_eq!(each, 186);
        assert_eq!(
            (n_splits(2048 * 64, each * 64), n_splits(1024, each * 64)),
            (12, 1)
        );
        assert_eq!(part(16, 8, 132, 1), 1);
        assert_eq!(part(16, 8, 132, 4), 4);
        assert_eq!(part(0, 8, 132, 0), 1);
        assert_eq!(part(u32::MAX, 8, 1, 0), u32::MAX);
    }

    #[test]
    fn splits_of_the_longest_sequence_are_equally_long() {
        for (longest, each, even) in [
            (128, 125, 128),
            (64, 125, 64),
            (128, 63, 64),
            (128, 16, 16),
            (130, 16, 17),
            (133, 100, 67),
            (124, 100, 124),
            (0, 1, 1),
            (7, 1, 1),
            (u32::MAX, 1, 1),
        ] {
            assert_eq!(even_blocks(longest, each), even, "{longest} {each}");
        }
        for (longest, each) in
            (1..300).flat_map(|longest| (1..300).map(move |each| (longest, each)))
        {
            let even = even_blocks(longest, each);
            let n = longest.div_ceil(even);
            assert!(n <= longest.div_ceil(each), "no more splits than before");
            assert!(even <= each + each.div_ceil(3), "{longest} {each}: {even}");
            assert!(n * even < longest + n, "equally long but for a block");
        }
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

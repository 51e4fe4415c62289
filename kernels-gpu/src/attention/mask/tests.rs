//! Bands against their definition: every pair of small sequences, under every window.

use super::*;

/// A mask as users write it: how far it reaches to the left and to the right, `None` has no end, and the prefix.
type Sides = (Option<u32>, Option<u32>, u32);

const SIDES: [Sides; 16] = [
    (None, None, 0),
    (None, Some(0), 0),
    (None, Some(2), 0),
    (Some(0), None, 0),
    (Some(3), None, 0),
    (Some(0), Some(0), 0),
    (Some(3), Some(0), 0),
    (Some(1), Some(4), 0),
    (Some(7), Some(1), 0),
    (Some(20), Some(0), 0),
    (Some(2), Some(20), 0),
    (None, Some(0), 1),
    (None, Some(0), 4),
    (None, Some(0), 7),
    (None, Some(0), 20),
    (None, Some(3), 5),
];

fn band(seqlen_q: u32, seqlen_k: u32, (left, right, prefix): Sides) -> Band {
    let (n_left, n_right) = (left.unwrap_or(0), right.unwrap_or(0));
    let window = Window::new(seqlen_q, seqlen_k, n_left, n_right).with_prefix(prefix);
    let bounds = Bounds {
        left: left.is_some(),
        right: right.is_some(),
        prefix: prefix > 0,
    };
    Band::new(seqlen_q, seqlen_k, window, bounds)
}

/// The definition, in signed arithmetic.
fn visible(band: &Band, (left, right, prefix): Sides, i: u32, j: u32) -> bool {
    let place = i64::from(i) + i64::from(band.seqlen_k) - i64::from(band.seqlen_q);
    let distance = i64::from(j) - place;
    i < band.seqlen_q
        && j < band.seqlen_k
        && (j < prefix
            || left.is_none_or(|left| -distance <= left.into())
                && right.is_none_or(|right| distance <= right.into()))
}

/// Blocks of about as many queries as keys, and of fewer, as compact tiles have them.
const BLOCKS: [(u32, u32); 3] = [(4, 3), (3, 4), (1, 6)];

fn each_band(mut f: impl FnMut(Band, &dyn Fn(u32, u32) -> bool)) {
    for seqlen_q in 0..14 {
        for seqlen_k in 0..14 {
            for sides in SIDES {
                let band = band(seqlen_q, seqlen_k, sides);
                f(band, &|i, j| visible(&band, sides, i, j));
            }
        }
    }
}

/// What a range of blocks promises of the pairs of each block.
fn check(blocks: Blocks, block: u32, mut visible: impl Iterator<Item = bool>, what: &str) {
    let Blocks {
        first,
        full_first,
        full_end,
        end,
    } = blocks;
    assert!(first <= full_first && full_first <= full_end && full_end <= end);
    if (full_first..full_end).contains(&block) {
        assert!(visible.all(|x| x), "full block with a masked pair: {what}");
    } else if !(first..end).contains(&block) {
        assert!(
            !visible.any(|x| x),
            "unvisited block with a visible pair: {what}"
        );
    }
}

#[test]
fn key_blocks_agree_with_the_definition() {
    each_band(|band, visible| {
        for (block_q, block_k) in BLOCKS {
            for first in (0..band.seqlen_q).step_by(block_q as usize) {
                let queries = Rows::of_sequence(first, block_q, band.seqlen_q);
                let blocks = band.kv_blocks(queries, block_k);
                for block in 0..band.seqlen_k.div_ceil(block_k) + 1 {
                    let rows = first..first + queries.len;
                    let pairs = rows.flat_map(|i| {
                        (block * block_k..(block + 1) * block_k).map(move |j| (i, j))
                    });
                    let pairs = pairs.map(|(i, j)| visible(i, j));
                    check(
                        blocks,
                        block,
                        pairs,
                        &format!("{band:?} {queries:?} {block}"),
                    );
                }
            }
        }
    });
}

#[test]
fn query_blocks_agree_with_the_definition() {
    each_band(|band, visible| {
        for (block_q, block_k) in BLOCKS {
            for first in (0..band.seqlen_k).step_by(block_k as usize) {
                let keys = Rows {
                    first,
                    len: block_k,
                };
                let blocks = band.q_blocks(keys, block_q);
                for block in 0..band.seqlen_q.div_ceil(block_q) {
                    // Rows behind the last query do not count.
                    let rows =
                        (block * block_q..(block + 1) * block_q).filter(|&i| i < band.seqlen_q);
                    let pairs = rows
                        .flat_map(|i| (first..first + block_k).map(move |j| (i, j)))
                        .map(|(i, j)| visible(i, j));
                    check(blocks, block, pairs, &format!("{band:?} {keys:?} {block}"));
                }
            }
        }
    });
}

#[test]
fn rows_agree_with_the_definition() {
    each_band(|band, visible| {
        for i in 0..band.seqlen_q {
            for j in 0..band.seqlen_k + 2 {
                assert_eq!(band.keep(i, j), visible(i, j), "{band:?} {i} {j}");
                let of_key = band.first_query(j) <= i && i < band.end_query(j);
                assert!(
                    j >= band.seqlen_k || of_key == visible(i, j),
                    "{band:?} {i} {j}"
                );
            }
        }
    });
}

/// A tile adds to a block of dQ where either side says that they meet: kernels count on that.
#[test]
fn both_sides_visit_the_same_blocks() {
    each_band(|band, _| {
        for (block_q, block_k) in BLOCKS {
            for q_block in 0..band.seqlen_q.div_ceil(block_q) {
                let queries = Rows::of_sequence(q_block * block_q, block_q, band.seqlen_q);
                let keys = band.kv_blocks(queries, block_k);
                for k_block in 0..band.seqlen_k.div_ceil(block_k) {
                    let rows = Rows {
                        first: k_block * block_k,
                        len: block_k,
                    };
                    let queries = band.q_blocks(rows, block_q);
                    assert_eq!(
                        (keys.first..keys.end).contains(&k_block),
                        (queries.first..queries.end).contains(&q_block),
                        "{band:?} {q_block} {k_block}"
                    );
                }
            }
        }
    });
}

/// The largest lengths and distances that are allowed overflow nowhere.
#[test]
fn the_largest_sizes_are_counted() {
    const MOST: u32 = crate::params::MAX_ROWS;
    for (left, right) in [(MOST, MOST), (MOST, 0), (0, MOST), (0, 0)] {
        let band = band(MOST, MOST, (Some(left), Some(right), 0));
        let last = MOST - 1;
        assert!(band.keep(last, last));
        assert_eq!(band.keep(last, 0), left == MOST);
        assert_eq!(band.keep(0, last), right == MOST);
        let tile = Rows {
            first: MOST - 128,
            len: 128,
        };
        assert_eq!(band.q_blocks(tile, 64).end, MOST / 64);
        assert_eq!(band.kv_blocks(tile, 128).end, MOST / 128);
    }
    let band = band(MOST, MOST, (None, Some(0), MOST));
    assert!(band.keep(0, MOST - 1));
}

/// What kernels ask at an edge is what the definition says there.
#[test]
fn a_side_hides_what_the_definition_hides_there() {
    for sides in SIDES {
        let band = band(9, 11, sides);
        assert_eq!((band.seqlen_q(), band.seqlen_k()), (9, 11));
        assert_eq!(band.prefix, sides.2);
        for (query, key) in (0..9).flat_map(|query| (0..11).map(move |key| (query, key))) {
            let distance = key - (query + 2);
            let after = sides.1.is_some_and(|right| distance > right as i32);
            let before = sides.0.is_some_and(|left| -distance > left as i32);
            let hidden = (band.hides_right(query, key), band.hides_left(query, key));
            assert_eq!(hidden, (after, before), "{sides:?} {query} {key}");
        }
    }
}

/// Tiles of queries see more keys one after the other where the band ends to the right, and fewer where to the left alone.
#[test]
fn work_follows_the_sides() {
    for ((left, right), work) in [
        ((false, false), Work::Even),
        ((false, true), Work::Growing),
        ((true, true), Work::Growing),
        ((true, false), Work::Shrinking),
    ] {
        let bounds = Bounds {
            left,
            right,
            prefix: right && !left,
        };
        assert_eq!(bounds.work(), work);
    }
}

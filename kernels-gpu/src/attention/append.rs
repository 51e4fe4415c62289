//! Rows that are appended to a cache or rotated by their positions: the place of each, and the part of it that a thread takes.
//!
//! Row i of a sequence goes to row `first + i` of the cache, which is its position. `first` is the sequence's length so far. It is in device memory
//! and unchecked, so each row of the cache or of a table is tested for existence.

/// The row `first + i` of `n_rows`, if it is one of them.
#[inline(always)]
pub fn row_at(first: i32, i: u32, n_rows: u32) -> Option<u32> {
    let at = i64::from(first) + i64::from(i);
    if at >= 0 && at < i64::from(n_rows) {
        Some(at as u32)
    } else {
        None
    }
}

/// How many rows a sequence has in the cache after `n_new` rows have been appended to its `first`; at most `room`.
#[inline(always)]
pub fn len_after(first: i32, n_new: u32, room: u32) -> u32 {
    let len = i64::from(first) + i64::from(n_new);
    if len < 0 {
        0
    } else if len > i64::from(room) {
        room
    } else {
        len as u32
    }
}

/// How many threads a row of this many chunks of 16 bytes takes: two chunks each.
#[inline(always)]
pub const fn n_pieces(chunks: u32) -> u32 {
    chunks.div_ceil(2)
}

/// The chunks of a row that a thread takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Two chunks whose elements form pairs with each other.
    Pair(u32, u32),
    /// Two independent chunks.
    Two(u32, u32),
    /// A single chunk.
    One(u32),
}

/// A thread's chunks, if the elements of the first `paired` chunks form pairs with those of the next `paired` chunks.
#[inline(always)]
pub fn piece(idx: u32, chunks: u32, paired: u32) -> Piece {
    if idx < paired {
        return Piece::Pair(idx, idx + paired);
    }
    let (idx, rest) = (idx - paired, chunks - 2 * paired);
    let half = n_pieces(rest);
    let first = 2 * paired + idx;
    if idx + half < rest {
        Piece::Two(first, first + half)
    } else {
        Piece::One(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_there_or_it_is_none() {
        assert_eq!(row_at(0, 0, 1), Some(0));
        assert_eq!(row_at(5, 2, 8), Some(7));
        assert_eq!(row_at(5, 3, 8), None);
        assert_eq!(row_at(-2, 2, 8), Some(0));
        assert_eq!(row_at(-2, 1, 8), None);
        assert_eq!(row_at(0, 0, 0), None);
        assert_eq!(row_at(i32::MIN, u32::MAX, u32::MAX), Some((1 << 31) - 1));
        assert_eq!(row_at(i32::MIN, 1, u32::MAX), None);
        assert_eq!(row_at(i32::MAX, u32::MAX, u32::MAX), None);
    }

    #[test]
    fn a_length_is_that_of_the_rows_which_are_there() {
        for (first, n_new, room) in [
            (0, 0, 4),
            (0, 3, 4),
            (3, 3, 4),
            (-2, 1, 4),
            (-2, 3, 4),
            (9, 0, 4),
        ] {
            let rows = (0..n_new).filter_map(|i| row_at(first, i, room));
            // A length that is there already counts as far as there is room.
            let before = u32::try_from(first).unwrap_or(0).min(room);
            let expected = rows.map(|row| row + 1).max().unwrap_or(before);
            assert_eq!(len_after(first, n_new, room), expected);
        }
        assert_eq!(len_after(i32::MAX, u32::MAX, 1 << 20), 1 << 20);
        assert_eq!(len_after(i32::MIN, 7, 1 << 20), 0);
    }

    /// Every chunk belongs to exactly one thread, for any part of the row that forms pairs.
    #[test]
    fn pieces_are_all_of_a_row() {
        for chunks in 1..=32u32 {
            for paired in 0..=chunks / 2 {
                let mut taken = vec![0; chunks as usize];
                for idx in 0..n_pieces(chunks) {
                    let own = match piece(idx, chunks, paired) {
                        Piece::Pair(first, second) => {
                            assert!(first < paired && second == first + paired);
                            vec![first, second]
                        }
                        Piece::Two(first, second) => vec![first, second],
                        Piece::One(first) => vec![first],
                    };
                    own.iter().for_each(|&chunk| taken[chunk as usize] += 1);
                }
                assert!(taken.iter().all(|&n| n == 1), "{chunks}, {paired}");
            }
        }
    }
}

//! Sequences of different lengths: the rows of q, and of k and v, of each sequence, and their tiles.
//!
//! A tensor is *padded*, `[batch, rows, heads, head_dim]` with a sequence in each batch entry, or *packed*,
//! `[rows, heads, head_dim]` with one sequence after the other. The place of a sequence is in device memory: `cu_seqlens` for packed rows, `seqused`
//! and `leftpad` for either. These numbers are unchecked. So they are clamped to the tensor before an address is computed from them.

use super::mask::Rows;

/// The numbers in device memory for a sequence's rows on one side, q or k.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Given {
    /// The first row; 0 in a padded tensor.
    pub begin: i32,
    /// One past the last row.
    pub end: i32,
    /// How many of these rows are used, counted from the first; their number or more means all of them.
    pub used: i32,
    /// How many of the used rows come before the sequence's own first one.
    pub leftpad: i32,
}

/// A sequence's rows, counted from the beginning of the batch entry or of the packed tensor, which has `rows`. At most `max` are
/// used.
#[inline(always)]
pub fn rows_of_sequence(given: Given, rows: u32, max: u32) -> Rows {
    let begin = clamp(given.begin, 0, rows);
    let end = clamp(given.end, begin, rows);
    let room = if end - begin < max { end - begin } else { max };
    let used = clamp(given.used, 0, room);
    let leftpad = clamp(given.leftpad, 0, used);
    Rows {
        first: begin + leftpad,
        len: used - leftpad,
    }
}

#[inline(always)]
fn clamp(x: i32, least: u32, most: u32) -> u32 {
    if x < 0 || (x as u32) < least {
        least
    } else if x as u32 > most {
        most
    } else {
        x as u32
    }
}

/// One entry of a list of tiles: the tile, and its sequence. Kernels read it instead of computing it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListedTile {
    /// The block of the sequence's rows.
    pub block: u32,
    /// The sequence.
    pub sequence: u32,
    /// Rows of q of the sequence.
    pub seqlen_q: u32,
    /// Rows of k and v of the sequence.
    pub seqlen_k: u32,
    /// The sequence's first row of q, in the batch entry or the packed tensor.
    pub q_first: u32,
    /// The sequence's first row of k.
    pub k_first: u32,
    /// In the backward pass: how many query blocks the sequences before this one have.
    pub q_blocks_before: u32,
    /// In shared memory, in the backward pass: 1 if the block of threads had no tile of this sequence just before, so that its tensor maps have to
    /// be acquired; in the forward pass: 1 if no query of the tile sees a key. 0 in a list.
    pub new_maps: u32,
}

impl ListedTile {
    /// Bytes of an entry; a list begins with a header of the same size: the number of entries, and the keys of a split if keys are divided, four bytes each.
    pub const N_BYTES: u32 = 32;

    /// Rows of q, and of k, of the sequence.
    #[inline(always)]
    pub fn lengths(self) -> [u32; 2] {
        [self.seqlen_q, self.seqlen_k]
    }

    /// As words in memory.
    #[inline(always)]
    pub fn words(self) -> [[u32; 4]; 2] {
        [
            [self.block, self.sequence, self.seqlen_q, self.seqlen_k],
            [
                self.q_first,
                self.k_first,
                self.q_blocks_before,
                self.new_maps,
            ],
        ]
    }

    /// From words in memory.
    #[inline(always)]
    pub fn from_words([a, b]: [[u32; 4]; 2]) -> ListedTile {
        let [block, sequence, seqlen_q, seqlen_k] = a;
        let [q_first, k_first, q_blocks_before, new_maps] = b;
        ListedTile {
            block,
            sequence,
            seqlen_q,
            seqlen_k,
            q_first,
            k_first,
            q_blocks_before,
            new_maps,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(begin: i32, end: i32, used: i32, leftpad: i32) -> (u32, u32) {
        let given = Given {
            begin,
            end,
            used,
            leftpad,
        };
        let Rows { first, len } = rows_of_sequence(given, 100, 40);
        (first, len)
    }

    #[test]
    fn a_sequence_has_the_rows_that_are_said() {
        const ALL: i32 = i32::MAX;
        assert_eq!(rows(10, 30, ALL, 0), (10, 20));
        assert_eq!(rows(10, 10, ALL, 0), (10, 0));
        assert_eq!(rows(10, 30, 5, 0), (10, 5));
        assert_eq!(rows(10, 30, 0, 0), (10, 0));
        assert_eq!(rows(10, 30, ALL, 3), (13, 17));
        assert_eq!(rows(10, 30, 5, 3), (13, 2));
        assert_eq!(rows(100, 100, ALL, 0), (100, 0));
    }

    #[test]
    fn numbers_below_0_count_as_0() {
        const ALL: i32 = i32::MAX;
        assert_eq!(rows(-5, 30, ALL, 0), (0, 30));
        assert_eq!(rows(10, -5, ALL, 0), (10, 0));
        assert_eq!(rows(10, 30, -5, 0), (10, 0));
        assert_eq!(rows(10, 30, ALL, -5), (10, 20));
    }

    #[test]
    fn numbers_that_make_no_sense_stay_inside_the_tensor() {
        let wild = [i32::MIN, -1, 0, 7, 39, 40, 41, 99, 100, 101, i32::MAX];
        for begin in wild {
            for end in wild {
                for used in wild {
                    for leftpad in wild {
                        let (first, len) = rows(begin, end, used, leftpad);
                        assert!(first + len <= 100, "{begin} {end} {used} {leftpad}");
                        assert!(len <= 40, "{begin} {end} {used} {leftpad}");
                    }
                }
            }
        }
    }

    #[test]
    fn an_entry_is_read_as_it_was_written() {
        let tile = ListedTile {
            block: 1,
            sequence: 2,
            seqlen_q: 3,
            seqlen_k: 4,
            q_first: 5,
            k_first: 6,
            q_blocks_before: 7,
            new_maps: 8,
        };
        assert_eq!(ListedTile::from_words(tile.words()), tile);
        assert_eq!(size_of_val(&tile.words()), ListedTile::N_BYTES as usize);
    }
}

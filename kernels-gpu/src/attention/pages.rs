//! Keys and values in pages (PagedAttention, Kwon et al. 2023): a pool `[n_pages, page_size, heads_k, head_dim]`, and a table with the pages of each
//! sequence in the pool. So sequences grow without moving, and can share pages.
//!
//! Row `r` of a sequence is row `r mod page_size` of its page `r / page_size`; left padding counts as rows. The table is unchecked: pages that the
//! pool does not have are read as rows of zeros.

use super::divide;

/// A place in the pages of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRow {
    /// The page of the sequence: its entry in the table.
    pub slot: u32,
    /// The row of the page.
    pub row: u32,
}

impl PageRow {
    /// The place of a row of the sequence.
    #[inline(always)]
    pub fn of_row(row: u32, page_size: u32) -> PageRow {
        let slot = divide(row, page_size);
        PageRow {
            slot,
            row: row - slot * page_size,
        }
    }

    /// The place this many rows further.
    #[inline(always)]
    pub fn advance(&mut self, rows: u32, page_size: u32) {
        self.row += rows;
        while self.row >= page_size {
            self.row -= page_size;
            self.slot += 1;
        }
    }
}

/// How many pages a sequence has.
#[inline(always)]
pub fn n_slots(seqlen: u32, page_size: u32) -> u32 {
    divide(seqlen + page_size - 1, page_size)
}

/// How many rows the last page of a sequence has; 0 for one without rows.
#[inline(always)]
pub fn rows_of_last(seqlen: u32, page_size: u32) -> u32 {
    match n_slots(seqlen, page_size) {
        0 => 0,
        n => seqlen - (n - 1) * page_size,
    }
}

/// Rows of a TMA box: the most that divide both a page and a KV block, so that no box is in two pages. A sequence of a single page does not need this.
pub fn box_rows(page_size: u32, slots: u32, block_k: u32) -> u32 {
    let (mut a, mut b) = (page_size, block_k);
    while b > 0 {
        (a, b) = (b, a % b);
    }
    if slots <= 1 { block_k } else { a }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_follow_the_rows() {
        for page_size in [1, 3, 16, 48, 256] {
            for step in [1, 8, 16] {
                let mut place = PageRow::of_row(5, page_size);
                for row in (5..600).step_by(step as usize) {
                    assert_eq!(place, PageRow::of_row(row, page_size));
                    assert_eq!(place.slot * page_size + place.row, row);
                    assert!(place.row < page_size);
                    place.advance(step, page_size);
                }
            }
        }
    }

    #[test]
    fn the_last_page_has_what_is_left() {
        for page_size in [1, 3, 16] {
            assert_eq!((n_slots(0, page_size), rows_of_last(0, page_size)), (0, 0));
            for seqlen in 1..70 {
                let (n, last) = (n_slots(seqlen, page_size), rows_of_last(seqlen, page_size));
                assert_eq!((n - 1) * page_size + last, seqlen);
                assert!((1..=page_size).contains(&last));
            }
        }
    }

    #[test]
    fn no_box_lies_in_two_pages() {
        for block_k in [64, 80, 112, 128] {
            for page_size in 1..300 {
                let rows = box_rows(page_size, 2, block_k);
                assert!(page_size % rows == 0 && block_k % rows == 0);
            }
        }
        assert_eq!(box_rows(16, 9, 128), 16);
        assert_eq!(box_rows(256, 9, 112), 16);
        assert_eq!(box_rows(797, 1, 128), 128);
    }
}

//! Keys and values in pages: decode, chunks of queries, prefill, and batches of all of them, in pages of many sizes.

use ferroflash::Mask;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use super::{Case, HALVES, window};
use crate::buffer::ALIGNED;
use crate::lengths::{Lengths, Rows};

/// A case whose keys and values are put into pages.
#[derive(Clone, Copy, Debug)]
pub struct PagedCase {
    /// The case with its keys and values padded.
    pub case: Case,
    /// Rows of a page.
    pub page_size: usize,
    /// Columns that the table has more than the longest sequence has pages.
    pub more_columns: usize,
}

/// Rows of a page: those of engines, and some that no block of keys divides. The last one holds any sequence.
const PAGE_SIZES: [usize; 8] = [16, 64, 256, 1, 128, 32, 48, 3];

const LENGTHS: [Lengths; 5] = [
    // Decode: full pages, one row, none, and some of a page.
    Lengths {
        n: 5,
        q: Rows::padded(1),
        k: Rows::padded(300).used(&[300, 1, 0, 129, 64]),
    },
    // Chunks of queries.
    Lengths {
        n: 3,
        q: Rows::padded(70).used(&[70, 3, 64]),
        k: Rows::padded(260).used(&[200, 260, 70]),
    },
    // Prefill of some beside decode of others.
    Lengths {
        n: 5,
        q: Rows::packed(&[1, 40, 1, 0, 130]),
        k: Rows::padded(400).used(&[257, 40, 399, 5, 130]),
    },
    // All of one length, which nobody says.
    Lengths {
        n: 2,
        q: Rows::padded(9),
        k: Rows::padded(257),
    },
    // No key at all.
    Lengths {
        n: 2,
        q: Rows::padded(3),
        k: Rows::padded(20).used(&[0, 0]),
    },
];

/// Sequences that do not begin with their page's first row; one is empty.
const LEFT_PADDED: Lengths = Lengths {
    n: 4,
    q: Rows::padded(9),
    k: Rows::padded(300)
        .used(&[300, 70, 40, 299])
        .leftpad(&[100, 69, 40, 1]),
};

const MASKS: [Mask; 4] = [
    Mask::Causal,
    Mask::Full,
    window(Some(50), Some(0)),
    Mask::PrefixLm { prefix: 70 },
];

/// `(heads_q, heads_k)`.
const HEADS: [(usize, usize); 4] = [(4, 2), (2, 2), (8, 1), (3, 1)];

const HEAD_DIMS: [usize; 6] = [128, 64, 96, 128, 256, 192];

/// All lengths in pages of all sizes; the rest goes round.
pub fn all() -> Vec<PagedCase> {
    let mut cases = Vec::new();
    for (at, lengths) in LENGTHS.into_iter().enumerate() {
        for (of_size, page_size) in PAGE_SIZES.into_iter().enumerate() {
            let round = 3 * at + of_size;
            // Where no row is used, one size is enough.
            if at == 4 && of_size > 0 {
                continue;
            }
            cases.push(nth(round, lengths, page_size, None));
        }
        // One page as long as the cache, of any length.
        let longest = lengths.k.longest();
        cases.push(nth(at + 1, lengths, longest, None));
    }
    // The same behind padding: entries of a cache, chosen.
    cases.extend((0..4).map(|at| nth(at, LEFT_PADDED, 300 + at, None)));
    cases
}

/// Few queries whose keys are divided into splits.
pub fn splits() -> Vec<PagedCase> {
    let sizes = [16, 64, 256, 1, 48];
    let cases = sizes.into_iter().enumerate().map(|(at, page_size)| {
        let lengths = LENGTHS[[0, 2][at % 2]];
        nth(at, lengths, page_size, Some([64, 128][at % 2]))
    });
    let padded = nth(1, LEFT_PADDED, 300, Some(64));
    cases.chain([padded]).collect()
}

fn nth(round: usize, lengths: Lengths, page_size: usize, split_kv: Option<usize>) -> PagedCase {
    let (heads_q, heads_k) = HEADS[round % HEADS.len()];
    let (dtype, head_dim) = (HALVES[round % 2], HEAD_DIMS[round % HEAD_DIMS.len()]);
    let case = Case::new(dtype, MASKS[round % MASKS.len()], head_dim, 0, 0);
    let case = case.heads(1, heads_q, heads_k).of_rows(lengths);
    PagedCase {
        case: Case {
            arrangement: ALIGNED[round / 2 % ALIGNED.len()],
            split_kv,
            seed: round as u64,
            ..case
        },
        page_size,
        more_columns: round % 3,
    }
}

impl PagedCase {
    /// Columns of the table.
    pub fn columns(&self) -> usize {
        self.case.sizes.seqlen_k.div_ceil(self.page_size) + self.more_columns
    }

    /// Pages of the pool: a few are nobody's.
    pub fn n_pages(&self) -> usize {
        3 + self.n_slots().iter().sum::<usize>()
    }

    /// How many pages each sequence has.
    fn n_slots(&self) -> Vec<usize> {
        let Some(Lengths { n, k, .. }) = self.case.lengths else {
            return Vec::new();
        };
        let room = |sequence: usize| sequence * self.case.sizes.seqlen_k;
        let spans = k.spans(n).into_iter().enumerate();
        let used = spans.map(|(sequence, span)| span.first + span.len - room(sequence));
        used.map(|rows| rows.div_ceil(self.page_size)).collect()
    }

    /// The table, pages in no order. Behind a sequence's last page it says what no page is.
    pub fn table(&self) -> Vec<i32> {
        let mut rng = StdRng::seed_from_u64(self.case.seed.wrapping_mul(31));
        let mut free: Vec<i32> = (0..self.n_pages() as i32).collect();
        free.shuffle(&mut rng);
        let mut table = Vec::new();
        for n in self.n_slots() {
            let used = free.split_off(free.len() - n);
            let wrong = [i32::MIN, -1, self.n_pages() as i32, i32::MAX];
            let behind = (n..self.columns()).map(|_| wrong[rng.random_range(0..wrong.len())]);
            table.extend(used.into_iter().chain(behind));
        }
        table
    }
}

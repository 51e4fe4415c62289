//! Keys and values in pages: decode, chunks of queries, prefill, and batches of all of them, in pages of many sizes, of which sequences share
//! some.

mod padded;

use std::ops::Range;

use ferroflash::error::ProblemError;
use ferroflash::{Dtype, Mask, Pages, Problem};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use super::{Case, HALVES, window};
use crate::buffer::{ALIGNED, Arrangement};
use crate::inputs::Values;
use crate::lengths::{Lengths, Rows, Span};
pub use padded::{padded, random};

/// A case whose keys and values are put into pages.
#[derive(Clone, Copy, Debug)]
pub struct PagedCase {
    /// The case with its keys and values padded.
    pub case: Case,
    /// Rows of a page.
    pub page_size: usize,
    /// Columns that the table has more than the longest sequence has pages.
    pub more_columns: usize,
    /// First rows that all sequences have in common, those that have so many: they share the pages that hold no others of theirs.
    pub prefix: usize,
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

/// Sequences with a common prefix, and the rows of that prefix.
const SHARED: [(Lengths, usize); 5] = [
    // Decode behind a prompt that all have: one sequence is shorter than the prompt, one ends with it, one goes on by a row.
    (
        Lengths {
            n: 5,
            q: Rows::padded(1),
            k: Rows::padded(300).used(&[300, 70, 128, 129, 0]),
        },
        128,
    ),
    // Questions about one document.
    (
        Lengths {
            n: 3,
            q: Rows::packed(&[17, 70, 3]),
            k: Rows::padded(330).used(&[217, 330, 203]),
        },
        200,
    ),
    // The same sequence more than once: all pages are shared, the last one too.
    (
        Lengths {
            n: 3,
            q: Rows::padded(2),
            k: Rows::padded(150).used(&[150, 150, 150]),
        },
        150,
    ),
    // Sequences that end in the middle of the same page, each a row earlier.
    (
        Lengths {
            n: 4,
            q: Rows::padded(4),
            k: Rows::padded(70).used(&[70, 69, 68, 67]),
        },
        70,
    ),
    // A prefix of one row.
    (
        Lengths {
            n: 2,
            q: Rows::packed(&[40, 40]),
            k: Rows::padded(40),
        },
        1,
    ),
];

/// Continuous batching: prompts of some hundred queries, chunks of others, and sequences that go on by one, in one call, with rows of nobody on both
/// sides.
const MIXED: Lengths = Lengths {
    n: 7,
    q: Rows::packed_between(2, &[1, 300, 1, 200, 0, 1, 1], 3),
    k: Rows::padded(520).used(&[257, 300, 520, 450, 64, 17, 1]),
};

const MASKS: [Mask; 4] = [
    Mask::Causal,
    Mask::Full,
    window(Some(50), Some(0)),
    Mask::PrefixLm { prefix: 70 },
];

/// `(heads_q, heads_k)`.
const HEADS: [(usize, usize); 4] = [(4, 2), (2, 2), (8, 1), (3, 1)];

const HEAD_DIMS: [usize; 7] = [128, 64, 96, 128, 256, 192, 160];

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
        cases.push(nth(at + 1, lengths, lengths.k.longest(), None));
    }
    // Here blocks of keys are shorter: above head_dim 256, and where values have more columns than keys.
    let columns = [(512, 512), (512, 512), (512, 512), (64, 256), (64, 512)];
    for (at, (head_dim, head_dim_v)) in columns.into_iter().enumerate() {
        let paged = nth(at, LENGTHS[at.min(2)], [16, 48, 64][at % 3], None);
        let case = paged.case.columns(head_dim, head_dim_v);
        cases.push(PagedCase { case, ..paged });
    }
    cases
}

/// Few queries whose keys are divided into splits.
pub fn splits() -> Vec<PagedCase> {
    let sizes = [16, 64, 256, 1, 48];
    let cases = sizes.into_iter().enumerate().map(|(at, page_size)| {
        let lengths = LENGTHS[[0, 2][at % 2]];
        nth(at, lengths, page_size, Some([64, 128][at % 2]))
    });
    cases.collect()
}

/// Pages that several sequences have.
pub fn shared() -> Vec<PagedCase> {
    let sizes = [16, 64, 3, 48, 256, 1];
    let mut cases = Vec::new();
    for (at, (lengths, prefix)) in SHARED.into_iter().enumerate() {
        for of_size in 0..3 {
            let page_size = sizes[(at + of_size) % sizes.len()];
            // Splits of few queries, too.
            let split_kv = (at == 0 && of_size == 2).then_some(64);
            let case = nth(at + of_size, lengths, page_size, split_kv);
            cases.push(PagedCase { prefix, ..case });
        }
    }
    cases
}

/// Prompts, chunks and sequences that go on by one query in one call, with a prefix in common or none.
pub fn mixed() -> Vec<PagedCase> {
    let sizes = [(16, 0), (64, 100), (3, 17), (256, 0), (48, 64)];
    let cases = sizes.into_iter().enumerate();
    let cases = cases.map(|(at, (page_size, prefix))| PagedCase {
        prefix,
        ..nth(at, MIXED, page_size, None)
    });
    cases.collect()
}

/// Decode and chunks of queries, for tables with entries that name no page.
pub fn beyond() -> Vec<PagedCase> {
    let sizes = [16, 3, 64].into_iter().enumerate();
    sizes
        .map(|(at, page_size)| nth(3 * at, LENGTHS[at % 2], page_size, None))
        .map(|paged| PagedCase {
            case: Case {
                dtype: Dtype::Bf16,
                arrangement: Arrangement::Bshd,
                ..paged.case
            },
            ..paged
        })
        .collect()
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
        prefix: 0,
    }
}

impl PagedCase {
    /// Columns of the table.
    pub fn columns(&self) -> usize {
        self.case.sizes.seqlen_k.div_ceil(self.page_size) + self.more_columns
    }

    /// Pages of the pool: a few are nobody's.
    pub fn n_pages(&self) -> usize {
        let own = |n_rows: usize| self.slots(n_rows).len() - self.n_shared_slots(n_rows);
        let own: usize = self.lens().into_iter().map(own).sum();
        3 + self.n_prefix_pages() + own
    }

    /// The problem, in pages.
    pub fn problem(&self) -> Result<Problem, ProblemError> {
        let problem = self.case.problem()?.to_builder();
        problem.pages(self.pages()).build()
    }

    /// Its pages.
    pub fn pages(&self) -> Pages {
        Pages::new(self.n_pages(), self.page_size).columns(self.columns())
    }

    /// The page that an entry names, if the pool has it.
    pub fn page(&self, entry: i32) -> Option<usize> {
        let page = usize::try_from(entry).ok();
        page.filter(|&page| page < self.n_pages())
    }

    /// Rows of each sequence, those in front of it too.
    pub fn lens(&self) -> Vec<usize> {
        let room = |sequence: usize| sequence * self.case.sizes.seqlen_k;
        let spans = self.spans().into_iter().enumerate();
        spans
            .map(|(sequence, span)| span.first + span.len - room(sequence))
            .collect()
    }

    /// Where each sequence's rows lie side by side.
    pub fn spans(&self) -> Vec<Span> {
        let spans = |lengths: Lengths| lengths.k.spans(lengths.n);
        self.case.lengths.map_or_else(Vec::new, spans)
    }

    /// The pages of a sequence of so many rows.
    fn slots(&self, n_rows: usize) -> Range<usize> {
        0..n_rows.div_ceil(self.page_size)
    }

    /// Of each sequence those of its pages that hold rows of its own, and not only what lies in front of these.
    pub fn own_slots(&self) -> Vec<Range<usize>> {
        let ends = self.spans().into_iter().zip(self.lens());
        ends.map(|(span, end)| match span.len {
            0 => 0..0,
            len => (end - len) / self.page_size..self.slots(end).end,
        })
        .collect()
    }

    /// How many of them hold rows of the common prefix alone.
    fn n_shared_slots(&self, n_rows: usize) -> usize {
        let end = |slot: usize| n_rows.min((slot + 1) * self.page_size);
        let mut slots = self.slots(n_rows);
        let first_own = slots.find(|&slot| self.prefix < end(slot));
        first_own.unwrap_or(self.slots(n_rows).len())
    }

    /// Pages of the common prefix.
    fn n_prefix_pages(&self) -> usize {
        self.slots(self.prefix).len()
    }

    /// Its numbers: the rows of the prefix are those of the longest sequence.
    pub fn values(&self) -> Values {
        let mut values = self.case.values();
        let sizes = self.case.sizes;
        let spans = self.spans();
        let Some(longest) = spans.iter().copied().max_by_key(|span| span.len) else {
            return values;
        };
        for Span { first, len } in spans {
            for (array, columns) in [
                (&mut values.k, sizes.head_dim),
                (&mut values.v, sizes.head_dim_v),
            ] {
                let row_elems = sizes.heads_k * columns;
                let n = len.min(self.prefix) * row_elems;
                let from = longest.first * row_elems;
                array.copy_within(from..from + n, first * row_elems);
            }
        }
        values
    }

    /// The table, pages in no order. Behind a sequence's last page, and in front of its first one, it says what no page is.
    pub fn table(&self) -> Vec<i32> {
        let mut rng = StdRng::seed_from_u64(self.case.seed.wrapping_mul(31));
        let mut free: Vec<i32> = (0..self.n_pages() as i32).collect();
        free.shuffle(&mut rng);
        let mut take = |n: usize| free.split_off(free.len() - n);
        let of_prefix = take(self.n_prefix_pages());
        let wrong = [i32::MIN, -1, self.n_pages() as i32, i32::MAX];
        let mut table = Vec::new();
        for (n_rows, own) in self.lens().into_iter().zip(self.own_slots()) {
            let (n, n_shared) = (self.slots(n_rows).len(), self.n_shared_slots(n_rows));
            let of_sequence = [&of_prefix[..n_shared], &take(n - n_shared)].concat();
            let entries = (0..self.columns()).map(|slot| match of_sequence.get(slot) {
                Some(&page) if own.contains(&slot) => page,
                _ => wrong[rng.random_range(0..wrong.len())],
            });
            table.extend(entries);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many sequences have each page.
    fn n_users(paged: &PagedCase) -> Vec<usize> {
        let (table, mut n_users) = (paged.table(), vec![0; paged.n_pages()]);
        for (sequence, n_rows) in paged.lens().into_iter().enumerate() {
            let row = &table[sequence * paged.columns()..];
            for &page in &row[..paged.slots(n_rows).len()] {
                n_users[page as usize] += 1;
            }
        }
        n_users
    }

    #[test]
    fn pages_are_shared_where_a_prefix_is() {
        for paged in all().into_iter().chain(splits()) {
            assert!(n_users(&paged).into_iter().all(|n| n <= 1), "{paged:?}");
        }
        for paged in shared() {
            let most = n_users(&paged).into_iter().max();
            let n = paged.lens().iter().filter(|&&n| n > 0).count();
            // All have the first page, where it holds nothing but the prefix.
            let is_shared = paged.page_size <= paged.prefix;
            assert!(!is_shared || most == Some(n), "{paged:?}");
        }
        let mixed = mixed().into_iter();
        let n_shared = mixed.filter(|paged| n_users(paged).into_iter().any(|n| n > 1));
        assert_eq!(n_shared.count(), 3);
    }

    #[test]
    fn a_prefix_has_the_same_rows_in_every_sequence() {
        for paged in shared() {
            let (values, spans) = (paged.values(), paged.spans());
            let elems = paged.case.sizes.heads_k * paged.case.sizes.head_dim;
            let prefix = |span: &Span| {
                let n = span.len.min(paged.prefix);
                &values.k[span.first * elems..(span.first + n) * elems]
            };
            for span in &spans {
                let (own, longest) = (prefix(span), prefix(&spans[0]));
                let n = own.len().min(longest.len());
                assert_eq!(own[..n], longest[..n], "{paged:?}");
            }
        }
    }
}

//! Sequences of different lengths: packed and padded sides, empty sequences, more queries than keys, one long sequence among
//! short ones. Rows that belong to no sequence are NaN in every input.

use ferroflash::{Dtype, Mask, ProblemBuilder};

use super::{Case, HALVES, window};
use crate::buffer::ALIGNED;
use crate::inputs::{Fill, LseGradient, Values};
use crate::lengths::{Lengths, Rows, Span};
use crate::oracle::{self, Sizes};

const LENGTHS: [Lengths; 18] = [
    // Self-attention over packed sequences, an empty one among them; then with rows of nobody on both sides.
    alike(5, Rows::packed(&[5, 130, 0, 64, 1])),
    alike(4, Rows::packed_between(3, &[65, 1, 128, 17], 9)),
    // One long sequence among short ones.
    alike(9, Rows::packed(&[3, 1, 2, 520, 5, 1, 1, 7, 4])),
    // Fewer tiles than blocks of threads, as there may be more sequences, or longer ones; and none.
    alike(9, Rows::packed(&[0, 0, 0, 40, 0, 0, 0, 0, 0])),
    alike(3, Rows::padded(300).used(&[0, 0, 0])),
    // Packed sequences that use some of their rows.
    alike(3, Rows::packed(&[90, 40, 130]).used(&[33, 40, 0])),
    // Padded ones.
    alike(4, Rows::padded(140).used(&[140, 1, 0, 77])),
    // Queries alone are packed, keys alone, or neither.
    both(
        4,
        Rows::packed(&[3, 70, 0, 17]),
        Rows::padded(150).used(&[150, 31, 20, 0]),
    ),
    both(3, Rows::packed(&[66, 1, 9]), Rows::padded(70)),
    both(3, Rows::padded(40), Rows::packed(&[200, 0, 33])),
    both(
        3,
        Rows::padded(70).used(&[1, 70, 64]),
        Rows::padded(130).used(&[129, 5, 64]),
    ),
    // More queries than keys.
    both(
        4,
        Rows::packed(&[70, 20, 9, 140]),
        Rows::packed(&[3, 40, 0, 129]),
    ),
    // No key at all, and no query: tensors without an address.
    both(2, Rows::packed(&[150, 131]), Rows::packed(&[0, 0])),
    both(2, Rows::packed(&[0, 0]), Rows::packed(&[150, 131])),
    // Decoding: a query each.
    both(
        5,
        Rows::padded(1),
        Rows::padded(260).used(&[260, 1, 0, 129, 64]),
    ),
    // Keys behind padding on the left: of padded sides, used ones too, and of packed ones.
    both(
        4,
        Rows::padded(130),
        Rows::padded(130).leftpad(&[0, 129, 64, 130]),
    ),
    both(
        3,
        Rows::padded(5),
        Rows::padded(200).used(&[200, 70, 0]).leftpad(&[65, 3, 0]),
    ),
    both(
        3,
        Rows::packed(&[40, 1, 70]),
        Rows::packed_between(2, &[90, 3, 70], 1).leftpad(&[7, 3, 1]),
    ),
];

/// `(heads_q, heads_k)`.
const HEADS: [(usize, usize); 4] = [(2, 2), (4, 2), (3, 1), (1, 1)];

const MASKS: [Mask; 5] = [
    Mask::Full,
    Mask::Causal,
    window(Some(20), Some(0)),
    window(Some(40), Some(33)),
    // Longer than some sequences.
    Mask::PrefixLm { prefix: 70 },
];

const HEAD_DIMS: [usize; 5] = [64, 128, 32, 96, 256];

const fn alike(n: usize, rows: Rows) -> Lengths {
    both(n, rows, rows)
}

const fn both(n: usize, q: Rows, k: Rows) -> Lengths {
    Lengths { n, q, k }
}

/// All lengths with every mask; the rest goes round.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for (at, lengths) in LENGTHS.into_iter().enumerate() {
        for (of_mask, mask) in MASKS.into_iter().enumerate() {
            let round = at + of_mask;
            let (heads_q, heads_k) = HEADS[(at + 3 * of_mask) % HEADS.len()];
            let head_dim = HEAD_DIMS[round % HEAD_DIMS.len()];
            let dtype = match round % 5 {
                4 => Dtype::F32,
                round => HALVES[round % 2],
            };
            let case = Case::new(dtype, mask, head_dim, 0, 0).heads(1, heads_q, heads_k);
            cases.push(Case {
                arrangement: ALIGNED[(at + of_mask / 2) % ALIGNED.len()],
                fill: if round % 7 == 3 {
                    Fill::Rising
                } else {
                    Fill::Normal
                },
                lse_gradient: [LseGradient::Given, LseGradient::Absent][(at + of_mask / 2) % 2],
                seed: round as u64,
                ..case.of_rows(lengths)
            });
        }
    }
    cases
}

/// Cases of equal lengths as sequences of lengths of their own, in turns padded and packed.
pub fn of_their_own(cases: Vec<Case>) -> Vec<Case> {
    let of = |(at, case): (usize, Case)| match at % 2 {
        0 => in_used_rows(case),
        _ => packed(case),
    };
    cases.into_iter().enumerate().map(of).collect()
}

/// Each batch entry has a few rows more, of which it uses as many as before.
pub fn in_used_rows(case: Case) -> Case {
    let n = case.sizes.batch;
    let rows =
        |seqlen: usize, more: usize| Rows::padded(seqlen + more).used(vec![seqlen; n].leak());
    let (q, k) = (rows(case.sizes.seqlen_q, 1), rows(case.sizes.seqlen_k, 3));
    case.of_rows(Lengths { n, q, k })
}

/// Batch entries one behind the other, then a short one; with rows of nobody on both sides.
fn packed(case: Case) -> Case {
    let n = case.sizes.batch + 1;
    let rows = |seqlen: usize, short: usize| {
        let mut lens = vec![seqlen; n];
        lens[n - 1] = short;
        Rows::packed_between(1, lens.leak(), 2)
    };
    let (q, k) = (rows(case.sizes.seqlen_q, 2), rows(case.sizes.seqlen_k, 5));
    case.of_rows(Lengths { n, q, k })
}

/// lse: `[entries, heads, seqlen]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LseRows {
    entries: usize,
    heads: usize,
    seqlen: usize,
}

impl LseRows {
    /// How many elements it has.
    pub fn n_elems(&self) -> usize {
        self.entries * self.heads * self.seqlen
    }

    /// The position, counted through all batch entries, of an element.
    pub fn position(&self, element: usize) -> usize {
        element / self.seqlen / self.heads * self.seqlen + element % self.seqlen
    }

    /// The element of a position and a head.
    pub fn element(&self, position: usize, head: usize) -> usize {
        (position / self.seqlen * self.heads + head) * self.seqlen + position % self.seqlen
    }
}

impl Case {
    /// The same with its batch entries and lengths of q and k in place of its own.
    pub(super) fn of_rows(self, lengths: Lengths) -> Case {
        let (batch, seqlen_q, seqlen_k) = (lengths.n, lengths.q.longest(), lengths.k.longest());
        Case {
            sizes: Sizes {
                batch,
                seqlen_q,
                seqlen_k,
                ..self.sizes
            },
            lengths: Some(lengths),
            ..self
        }
    }

    /// The problem with the case's lengths.
    pub(super) fn of_lengths(&self, builder: ProblemBuilder) -> ProblemBuilder {
        let Some(lengths) = &self.lengths else {
            return builder;
        };
        let builder = match lengths.q.packed_total() {
            Some(total) => builder.packed_q(total),
            None => builder,
        };
        match lengths.k.packed_total() {
            Some(total) => builder.packed_k(total),
            None => builder,
        }
    }

    /// The same for the case's own lengths.
    pub(super) fn flat_sizes(&self) -> Sizes {
        self.lengths
            .map_or(self.sizes, |lengths| self.flat(&lengths))
    }

    /// Its sizes with all batch entries of a tensor as one: the order of elements is the same.
    fn flat(&self, lengths: &Lengths) -> Sizes {
        Sizes {
            batch: 1,
            seqlen_q: lengths.q.total(lengths.n),
            seqlen_k: lengths.k.total(lengths.n),
            ..self.sizes
        }
    }

    /// The sizes of one sequence.
    pub fn of_sequence(&self, q: Span, k: Span) -> Sizes {
        Sizes {
            batch: 1,
            seqlen_q: q.len,
            seqlen_k: k.len,
            ..self.sizes
        }
    }

    /// The numbers of sequences of different lengths; NaN in rows that belong to none.
    pub(super) fn values_of_lengths(&self, lengths: &Lengths) -> Values {
        let sizes = self.flat(lengths);
        let mut values = Values::new(self.fill, sizes, self.dtype, self.seed);
        let (owned_q, owned_k) = (lengths.q.owned(lengths.n), lengths.k.owned(lengths.n));
        let (columns, columns_v) = (sizes.head_dim, sizes.head_dim_v);
        let plant = |array: &mut [f64], owned: &[bool], per_row: usize| {
            for (row, array) in array.chunks_exact_mut(per_row).enumerate() {
                if !owned[row] {
                    array.fill(f64::NAN);
                }
            }
        };
        plant(&mut values.q, &owned_q, sizes.heads_q * columns);
        plant(&mut values.d_o, &owned_q, sizes.heads_q * columns_v);
        plant(&mut values.k, &owned_k, sizes.heads_k * columns);
        plant(&mut values.v, &owned_k, sizes.heads_k * columns_v);
        if self.lse_gradient == LseGradient::Absent {
            return values;
        }
        let mut sees = vec![false; sizes.seqlen_q];
        let spans = lengths
            .q
            .spans(lengths.n)
            .into_iter()
            .zip(lengths.k.spans(lengths.n));
        for (q, k) in spans {
            let visible = oracle::visible(
                self.of_sequence(q, k),
                self.mask.window(),
                self.mask.prefix(),
            );
            for i in 0..q.len {
                sees[q.first + i] = (0..k.len).any(|j| visible(i, j));
            }
        }
        let rows = self.lse_rows();
        let sinks = self.sinks_count();
        let has_lse = |row: usize| {
            let (position, head) = (rows.position(row), row / rows.seqlen % rows.heads);
            sees[position] || owned_q[position] && sinks[head]
        };
        values.with_d_lse(sizes, has_lse, self.seed)
    }

    /// How lse is ordered.
    pub fn lse_rows(&self) -> LseRows {
        let (entries, seqlen) = match self
            .lengths
            .as_ref()
            .map(|lengths| lengths.q.packed_total())
        {
            Some(Some(total)) => (1, total),
            _ => (self.sizes.batch, self.sizes.seqlen_q),
        };
        LseRows {
            entries,
            heads: self.sizes.heads_q,
            seqlen,
        }
    }
}

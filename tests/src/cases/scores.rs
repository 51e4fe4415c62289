//! Scores and masks of the user's own: biases, soft caps, documents, masks that are built in too, random expressions; beside other masks, block
//! masks and sequences of different lengths.

mod random;
mod rules;
mod tiles;

use ferroflash::error::ProblemError;
use ferroflash::{Dtype, Mask, Problem};

use super::{Case, HALVES, MASKS, window};
use crate::blocks::{Blocks, Each, Map};
use crate::buffer::ALIGNED;
use crate::dropout::Dropout;
use crate::edits::{Edits, Sequence};
use crate::inputs::{Fill, LseGradient, Values};
use crate::lengths::{Lengths, Rows};
use crate::oracle::{self, Pair};

pub use rules::{Of, Rule};
pub use tiles::wide;
use tiles::{of_many_values, outgrown};

/// A case whose scores are edited.
#[derive(Clone, Copy, Debug)]
pub struct ScoreCase {
    /// The case.
    pub case: Case,
    /// What becomes of its scores.
    pub rule: Rule,
}

/// `(seqlen_q, seqlen_k)`: seldom the same, and divided by no tile; rows of 64 and 128 queries, more queries than keys.
const LENGTHS: [(usize, usize); 6] = [
    (70, 140),
    (130, 130),
    (64, 192),
    (150, 100),
    (33, 257),
    (128, 128),
];

/// `(batch, heads_q, heads_k)`: heads of their own, groups, one key head for all.
const HEADS: [(usize, usize, usize); 4] = [(1, 2, 2), (2, 4, 2), (2, 3, 1), (1, 1, 1)];

/// Of flash2's kernels, flash3's, and two that both pad. The second 192 is with values of 128 columns.
const HEAD_DIMS: [usize; 10] = [64, 128, 32, 96, 256, 192, 40, 192, 264, 160];

/// Sequences of different lengths: packed, padded, of queries and keys alike and not, empty ones, a query each.
const OF_LENGTHS: [Lengths; 5] = [
    Lengths {
        n: 4,
        q: Rows::packed_between(3, &[65, 1, 0, 70], 5),
        k: Rows::packed_between(3, &[65, 1, 0, 70], 5),
    },
    Lengths {
        n: 3,
        q: Rows::padded(70).used(&[1, 70, 64]),
        k: Rows::padded(130).used(&[129, 5, 64]),
    },
    Lengths {
        n: 3,
        q: Rows::packed(&[40, 9, 66]),
        k: Rows::packed(&[90, 3, 129]),
    },
    Lengths {
        n: 4,
        q: Rows::padded(1),
        k: Rows::padded(260).used(&[260, 1, 0, 129]),
    },
    Lengths {
        n: 3,
        q: Rows::padded(5),
        k: Rows::padded(200).used(&[200, 70, 0]).leftpad(&[65, 3, 0]),
    },
];

/// Every rule in some sizes; all else goes round.
pub fn all() -> Vec<ScoreCase> {
    let rules = Rule::all();
    let both = rules.iter().flat_map(|&rule| [rule; 2]).enumerate();
    let cases = both.map(|(round, rule)| nth(round, rule));
    let cases = cases.chain(outgrown((130, 420)));
    cases.chain(of_many_values()).collect()
}

/// Rules beside a causal mask, a window and a prefix.
pub fn masks() -> Vec<ScoreCase> {
    let masks = [
        Mask::Causal,
        window(Some(40), Some(9)),
        Mask::PrefixLm { prefix: 50 },
    ];
    let rules = Rule::all().into_iter().enumerate();
    let cases = rules.map(|(round, rule)| {
        let mut case = nth(round + 1, rule);
        case.case.mask = masks[round % masks.len()];
        case
    });
    cases.collect()
}

/// Rules beside block masks, whose blocks are hidden, full or for the mask to decide.
pub fn blocks() -> Vec<ScoreCase> {
    let maps = [Map::Random, Map::Diagonal, Map::HiddenKeys(0), Map::Partial];
    let each = [Each::Shared, Each::Head, Each::BatchAndHead];
    let rules = [
        Rule::Alibi,
        Rule::EveryFourth,
        Rule::SoftCap(Of::Fast),
        Rule::Documents,
    ];
    let cases = (0..8).map(|round| {
        let (seqlen_q, seqlen_k) = [(300, 300), (200, 400)][round % 2];
        let mut case = nth(round, rules[round / 2]);
        case.case.mask = MASKS[round / 2 % 2];
        (case.case.sizes.seqlen_q, case.case.sizes.seqlen_k) = (seqlen_q, seqlen_k);
        case.case.sizes.head_dim = [64, 128, 64, 512][round / 2];
        case.case.sizes.head_dim_v = case.case.sizes.head_dim;
        case.case.blocks = Some(Blocks {
            block_q: 128,
            block_k: 128,
            each: each[round % each.len()],
            map: maps[round % maps.len()],
        });
        case
    });
    cases.collect()
}

/// Rules that hide whole blocks, and show some, in sequences that have several of them.
pub fn mapped() -> Vec<ScoreCase> {
    let lengths = [(300, 300), (257, 400), (400, 260), (131, 513), (384, 256)];
    let heads = [(2, 2, 1), (1, 2, 2), (1, 3, 1)];
    let head_dims = [64, 128, 64, 96, 32];
    let masks = [
        Mask::Full,
        Mask::Full,
        Mask::Causal,
        window(Some(140), Some(9)),
    ];
    let rules = Rule::of_blocks().into_iter().enumerate();
    let cases = rules.flat_map(|(at, rule)| [(2 * at, rule), (2 * at + 1, rule)]);
    let cases = cases.map(|(round, rule)| {
        let mut case = nth(round, rule);
        (case.case.sizes.seqlen_q, case.case.sizes.seqlen_k) = lengths[round % lengths.len()];
        let (batch, heads_q, heads_k) = heads[round / 2 % heads.len()];
        case.case = case.case.heads(batch, heads_q, heads_k);
        case.case.sizes.head_dim = head_dims[(round + round / 5) % head_dims.len()];
        case.case.sizes.head_dim_v = case.case.sizes.head_dim;
        case.case.dtype = HALVES[round % 2];
        case.case.mask = masks[round / 2 % masks.len()];
        case
    });
    cases.collect()
}

/// Biases that have a gradient, where weights are dropped, and where a part of the gradient is seen by its first queries alone.
pub fn gradients() -> Vec<ScoreCase> {
    let of = |seqlen_q, seqlen_k| ScoreCase {
        case: Case::new(Dtype::Bf16, Mask::Full, 32, seqlen_q, seqlen_k).heads(1, 1, 1),
        rule: Rule::Bias(Of::Fast),
    };
    let (mut dropped, mut windowed) = (of(40, 50), of(128, 200));
    dropped.case.dropout = Some(Dropout::nth(1));
    windowed.case.mask = window(Some(20), None);
    vec![dropped, windowed]
}

/// The same over so many keys that an SM has enough of them in one tile.
pub fn mapped_long() -> Vec<ScoreCase> {
    let rules = [Rule::Causal, Rule::LongDocuments, Rule::OfHeads];
    let cases = rules.into_iter().enumerate().map(|(round, rule)| {
        let mut case = nth(round, rule);
        (case.case.sizes.seqlen_q, case.case.sizes.seqlen_k) = (70, 1930);
        case.case = case.case.heads(1, 2, 1);
        case.case.sizes.head_dim = [64, 128, 96][round];
        case.case.sizes.head_dim_v = case.case.sizes.head_dim;
        case.case.dtype = HALVES[round % 2];
        case
    });
    cases.collect()
}

/// Rules of sequences of different lengths: the batch entry is the sequence's number, and indices begin with the sequence.
pub fn lengths() -> Vec<ScoreCase> {
    let rules = Rule::all();
    let cases = (0..3 * OF_LENGTHS.len()).map(|round| {
        let mut case = nth(round, rules[round * 5 % rules.len()]);
        case.case.mask = MASKS[round / 2 % 2];
        case.case = case.case.of_rows(OF_LENGTHS[round % OF_LENGTHS.len()]);
        case
    });
    // Tensors that reach behind the ends of shorter sequences.
    let behind = (0..).zip(Rule::of_gradients()).map(|(round, rule)| {
        let ScoreCase { case, rule } = nth(round, rule);
        let columns = [64, 128, 192][round % 3];
        let case = case.of_rows(OF_LENGTHS[0]).columns(columns, columns);
        ScoreCase { case, rule }
    });
    cases.chain(behind).collect()
}

/// A few queries over many keys, which are divided into splits of so many, and not.
pub fn few() -> Vec<ScoreCase> {
    let rules = [
        Rule::Alibi,
        Rule::SoftCap(Of::Full),
        Rule::Window,
        Rule::Bias(Of::Fast),
        Rule::AlibiSoftCap(Of::Fast),
        Rule::EveryFourth,
    ];
    let cases = (0..2 * rules.len()).map(|round| {
        let (seqlen_q, seqlen_k) = [(1, 700), (3, 520), (1, 300), (7, 450)][round % 4];
        let mut case = nth(round, rules[round / 2]);
        (case.case.sizes.seqlen_q, case.case.sizes.seqlen_k) = (seqlen_q, seqlen_k);
        case.case.split_kv = [Some(128), None, Some(256)][round % 3];
        case
    });
    cases.collect()
}

/// Random expressions, by a seed that each run gives.
pub fn random(n: usize, seed: u64) -> Vec<ScoreCase> {
    let cases = (0..n).map(|round| {
        let seed = seed.wrapping_mul(1 << 16).wrapping_add(round as u64);
        nth(round, Rule::Random(seed))
    });
    cases.collect()
}

fn nth(round: usize, rule: Rule) -> ScoreCase {
    let (seqlen_q, seqlen_k) = LENGTHS[round % LENGTHS.len()];
    let (batch, heads_q, heads_k) = HEADS[(round + round / 4) % HEADS.len()];
    let dtype = match round % 7 {
        6 => Dtype::F32,
        round => HALVES[round % 2],
    };
    let at = (round + round / 8) % HEAD_DIMS.len();
    let (head_dim, head_dim_v) = (HEAD_DIMS[at], if at == 7 { 128 } else { HEAD_DIMS[at] });
    let case = Case::new(dtype, Mask::Full, head_dim, seqlen_q, seqlen_k);
    let case = case.columns(head_dim, head_dim_v);
    ScoreCase {
        case: Case {
            arrangement: ALIGNED[round / 2 % ALIGNED.len()],
            fill: match dtype {
                Dtype::F32 => Fill::Normal,
                _ => [Fill::Normal, Fill::Peaked, Fill::Normal, Fill::Rising][round / 3 % 4],
            },
            lse_gradient: [LseGradient::Given, LseGradient::Absent][round / 2 % 2],
            seed: round as u64,
            ..case.heads(batch, heads_q, heads_k)
        },
        rule,
    }
}

impl ScoreCase {
    /// Its sequences.
    fn sequences(&self) -> Vec<Sequence> {
        let Some(lengths) = &self.case.lengths else {
            let sizes = self.case.sizes;
            return vec![Sequence { first: 0, sizes }];
        };
        let spans = lengths.q.spans(lengths.n).into_iter();
        let spans = spans.zip(lengths.k.spans(lengths.n)).enumerate();
        let of = |(first, (q, k))| Sequence {
            first,
            sizes: self.case.of_sequence(q, k),
        };
        spans.map(of).collect()
    }

    /// Whether a pair counts by the masks that are not of the user's own.
    fn counts(&self, sequence: &Sequence, pair: Pair) -> bool {
        let mask = self.case.mask;
        let by_mask = oracle::visible(sequence.sizes, mask.window(), mask.prefix());
        let Pair {
            batch,
            head,
            query,
            key,
        } = pair;
        let visible = by_mask(query, key);
        self.case.block_table().map_or(visible, |table| {
            oracle::keep(table.at(batch, head, query, key), visible)
        })
    }

    /// The expressions with what they read, in which elements that count for nobody are NaN.
    pub fn edits(&self) -> Edits {
        let mut edits = self.rule.edits(self.case.sizes, self.case.seed);
        let sequences = self.sequences();
        let counts = |number: usize, pair| self.counts(&sequences[number], pair);
        edits.spoil(&sequences, counts);
        edits
    }

    /// Its problem with the expressions.
    pub fn problem(&self) -> Result<Problem, ProblemError> {
        let edits = self.rule.edits(self.case.sizes, self.case.seed);
        edits.edit(&self.case.problem()?)
    }

    /// Its numbers: the gradient of lse is NaN or infinite in rows that see no key, by any mask.
    pub fn values(&self, edits: &Edits) -> Values {
        let without = Case {
            lse_gradient: LseGradient::Absent,
            ..self.case
        };
        let values = without.values();
        if self.case.lse_gradient == LseGradient::Absent {
            return values;
        }
        let mut rows = Vec::new();
        let sequences = self.sequences();
        for sequence in &sequences {
            rows.push(edits.rows_that_see(sequence, |pair| self.counts(sequence, pair)));
        }
        let Some(lengths) = &self.case.lengths else {
            let sees = |row: usize| rows[0][row];
            return values.with_d_lse(self.case.sizes, sees, self.case.seed);
        };
        let order = self.case.lse_rows();
        let mut sees = vec![false; order.n_elems()];
        let spans = lengths.q.spans(lengths.n).into_iter();
        for (span, of_sequence) in spans.zip(rows) {
            for (at, seen) in of_sequence.into_iter().enumerate() {
                let (head, query) = (at / span.len, at % span.len);
                sees[order.element(span.first + query, head)] = seen;
            }
        }
        values.with_d_lse(self.case.flat_sizes(), |row| sees[row], self.case.seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::Sizes;
    use crate::reference::Reference;

    #[test]
    fn every_rule_has_expressions_with_all_that_they_read() {
        for case in all().iter().chain(&lengths()).chain(&random(40, 7)) {
            let edits = case.edits();
            assert!(edits.score.is_some() || edits.mask.is_some(), "{case:?}");
        }
    }

    /// What no score needs is NaN, and nothing that one needs.
    #[test]
    fn elements_that_nobody_reads_are_nan() {
        let mut causal = nth(0, Rule::Bias(Of::Full));
        causal.case.mask = Mask::Causal;
        let bias = &causal.edits().tensors[0];
        let Sizes {
            seqlen_q, seqlen_k, ..
        } = causal.case.sizes;
        for (at, value) in bias.values.iter().enumerate().skip(1) {
            let (query, key) = (at / seqlen_k % seqlen_q, at % seqlen_k);
            let is_read = key + seqlen_q <= query + seqlen_k;
            assert_eq!(value.is_nan(), !is_read, "{query} {key}");
        }
    }

    /// A mask of the user's own and the one that is built in are the same to the oracle.
    #[test]
    fn masks_that_are_built_in_too_are_the_same() {
        let rules = [Rule::Causal, Rule::Window, Rule::Prefix];
        for (round, rule) in rules.into_iter().enumerate() {
            for round in [round, round + 3] {
                let case = nth(round, rule);
                let built_in = Case {
                    mask: rule.built_in().unwrap(),
                    ..case.case
                };
                let edits = case.edits();
                let values = case.values(&edits);
                let ours = Reference::edited(&case.case, &values, 0.3, Some(&edits));
                let theirs = Reference::new(&built_in, &values, 0.3);
                assert_eq!(ours.output, theirs.output, "{case:?}");
                assert_eq!(ours.gradients, theirs.gradients, "{case:?}");
            }
        }
    }
}

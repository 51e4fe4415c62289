//! Queries, keys and values in 8 bits: masks, lengths, block masks, sinks, pages and scores, with scales of tensors, of heads and of blocks, sums of one level,
//! and gradients.

use ferroflash::error::ProblemError;
use ferroflash::{Dtype, Fp8, Fp8Sums, Pages, Problem};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::base::one_in;
use super::scores::{Of, Rule, ScoreCase};
use super::{Case, MASKS, base, decode, sinks};
use crate::edits::Edits;
use crate::lengths::Span;

/// A case whose queries, keys and values are in 8 bits; its type is that of o.
#[derive(Clone, Copy, Debug)]
pub struct E4m3Case {
    /// The case.
    pub case: Case,
    /// Which scales it has.
    pub scales: Fp8,
    /// How P V is summed.
    pub sums: Fp8Sums,
    /// Whether keys and values lie in pages, which they do only without lengths.
    pub in_pages: bool,
    /// What becomes of its scores.
    pub rule: Option<Rule>,
    /// Whether the gradients are looked at, and not o and lse.
    pub backward: bool,
}

/// Rows of a page.
pub const PAGE_SIZE: usize = 64;

/// Rows that share a scale of blocks.
pub const BLOCK: usize = 128;

/// head_dims of the kernels, and some that they pad.
const HEAD_DIMS: [usize; 8] = [128, 64, 80, 192, 96, 256, 16, 176];

/// head_dims of flash2's kernels for few queries, and some that they pad.
const HEAD_DIMS_OF_FEW: [usize; 5] = [64, 128, 32, 96, 16];

/// Types of o.
const DTYPES: [Dtype; 3] = [Dtype::Bf16, Dtype::F16, Dtype::F32];

/// Masks, lengths, block masks and sinks; head_dims, scales and types of o going round.
pub fn all() -> Vec<E4m3Case> {
    let plain = [base::all(), base::masks(), base::lengths()].concat();
    let others = [
        base::blocks(),
        one_in(4, sinks::all()),
        one_in(4, sinks::lengths()),
    ]
    .concat();
    let cases = plain.into_iter().chain(others).enumerate();
    cases.map(|(at, case)| in_8_bits(at, case)).collect()
}

/// Keys and values in pages.
pub fn pages() -> Vec<E4m3Case> {
    let cases = one_in(2, base::masks()).into_iter().enumerate();
    let in_pages = |(at, case)| E4m3Case {
        in_pages: true,
        ..in_8_bits(at, case)
    };
    cases.map(in_pages).collect()
}

/// Scores of the user's own.
pub fn scores() -> Vec<E4m3Case> {
    let rules = [
        Rule::SoftCap(Of::Fast),
        Rule::AlibiSoftCap(Of::Full),
        Rule::SoftCapAlibi(Of::Fast),
    ];
    let cases = one_in(2, base::masks()).into_iter().enumerate();
    let edited = |(at, case)| E4m3Case {
        rule: Some(rules[at % rules.len()]),
        ..in_8_bits(at, case)
    };
    cases.map(edited).collect()
}

/// Gradients.
pub fn gradients() -> Vec<E4m3Case> {
    let others = [base::blocks(), sinks::all(), sinks::lengths()].concat();
    let cases = [
        one_in(2, base::all()),
        base::masks(),
        base::lengths(),
        one_in(4, others),
    ]
    .concat();
    let gradients = |(at, case)| {
        let e4m3 = in_8_bits(at, case);
        let head_dim = match e4m3.case.sizes.head_dim {
            // Tiles of the backward pass do not divide blocks, either; and there is none of f32.
            129.. if case.blocks.is_some() || e4m3.case.dtype == Dtype::F32 => 128,
            head_dim => head_dim,
        };
        E4m3Case {
            case: e4m3.case.columns(head_dim, head_dim),
            backward: true,
            ..e4m3
        }
    };
    cases.into_iter().enumerate().map(gradients).collect()
}

/// Few queries, whose heads share tiles.
pub fn few_queries() -> Vec<E4m3Case> {
    few(decode::all())
}

/// The same of sequences of lengths of their own, and with sinks.
pub fn few_lengths() -> Vec<E4m3Case> {
    few([decode::lengths(), sinks::few()].concat())
}

/// The same with keys divided into splits. Of many queries, too: they and their keys have scales of several blocks.
pub fn few_splits() -> Vec<E4m3Case> {
    let sizes = [(1, 1), (2, 300), (3, 513), (4, 700), (150, 300)];
    let masks = MASKS.into_iter().cycle();
    let groups = sizes.into_iter().zip(masks).map(|(sizes, mask)| {
        let case = Case::new(Dtype::Bf16, mask, 64, sizes.0, sizes.1);
        let case = Case {
            split_kv: Some(128),
            ..case.heads(2, 16, 2)
        };
        // Each with scales of blocks, of heads and of a tensor.
        [case; 3]
    });
    let groups = groups.flatten().enumerate();
    let groups = groups.map(|(seed, case)| Case {
        seed: seed as u64,
        ..case
    });
    let sets = [decode::splits(), sinks::splits(), groups.collect()];
    few(sets.concat())
}

/// For flash2's kernels of few queries.
fn few(cases: Vec<Case>) -> Vec<E4m3Case> {
    let in_8_bits = |(at, case): (usize, Case)| {
        let head_dim = HEAD_DIMS_OF_FEW[at % HEAD_DIMS_OF_FEW.len()];
        E4m3Case {
            scales: [Fp8::PerBlock, Fp8::PerHead, Fp8::PerTensor][at % 3],
            case: case.columns(head_dim, head_dim),
            sums: Fp8Sums::TwoLevels,
            in_pages: false,
            rule: None,
            backward: false,
        }
    };
    let cases = cases.into_iter().filter(decode::is_decode).enumerate();
    cases.map(in_8_bits).collect()
}

/// For the tiles of long sequences.
pub fn wide() -> Vec<E4m3Case> {
    let cases = [base::masks(), one_in(2, base::lengths())].concat();
    let cases = cases.into_iter().enumerate();
    cases.map(|(at, case)| in_8_bits(at, case)).collect()
}

/// The same, with sums of one level.
pub fn one_level() -> Vec<E4m3Case> {
    let of_one_level = |case| E4m3Case {
        sums: Fp8Sums::OneLevel,
        ..case
    };
    wide().into_iter().map(of_one_level).collect()
}

/// All of it with scales of blocks.
pub fn per_block() -> Vec<E4m3Case> {
    let cases = [one_in(2, all()), pages(), scores()].concat();
    cases.into_iter().map(of_blocks).collect()
}

/// The same for the tiles of long sequences.
pub fn per_block_wide() -> Vec<E4m3Case> {
    wide().into_iter().map(of_blocks).collect()
}

/// Gradients.
pub fn per_block_gradients() -> Vec<E4m3Case> {
    one_in(2, gradients()).into_iter().map(of_blocks).collect()
}

/// A case with scales of blocks.
fn of_blocks(case: E4m3Case) -> E4m3Case {
    E4m3Case {
        scales: Fp8::PerBlock,
        ..case
    }
}

fn in_8_bits(at: usize, case: Case) -> E4m3Case {
    let head_dim = HEAD_DIMS[at % HEAD_DIMS.len()];
    let case = Case {
        dtype: DTYPES[at / 2 % DTYPES.len()],
        dropout: None,
        ..case.columns(head_dim, head_dim)
    };
    E4m3Case {
        case,
        scales: [Fp8::PerHead, Fp8::PerTensor][at / 3 % 2],
        sums: Fp8Sums::TwoLevels,
        in_pages: false,
        rule: None,
        backward: false,
    }
}

impl E4m3Case {
    /// The problem.
    pub fn problem(&self) -> Result<Problem, ProblemError> {
        let problem = self.case.problem()?.to_builder();
        let problem = problem.fp8(self.scales).fp8_sums(self.sums);
        let problem = match self.in_pages {
            true => problem.pages(Pages::new(self.table().len(), PAGE_SIZE)),
            false => problem,
        };
        let problem = problem.build()?;
        match self.edits() {
            Some(edits) => edits.edit(&problem),
            None => Ok(problem),
        }
    }

    /// What becomes of its scores, with what that reads.
    pub fn edits(&self) -> Option<Edits> {
        let case = self.case;
        self.rule.map(|rule| ScoreCase { case, rule }.edits())
    }

    /// The pages of all sequences, from the last page down; no more than are needed.
    pub fn table(&self) -> Vec<i32> {
        let sizes = self.case.sizes;
        let n_pages = sizes.batch * sizes.seqlen_k.div_ceil(PAGE_SIZE);
        (0..n_pages as i32).rev().collect()
    }

    /// The rows of q and of k of each sequence.
    pub fn spans(&self) -> [Vec<Span>; 2] {
        let sizes = self.case.sizes;
        match &self.case.lengths {
            Some(lengths) => [&lengths.q, &lengths.k].map(|side| side.spans(lengths.n)),
            None => [sizes.seqlen_q, sizes.seqlen_k].map(|len| {
                let span = |sequence| Span {
                    first: sequence * len,
                    len,
                };
                (0..sizes.batch).map(span).collect()
            }),
        }
    }

    /// Scales of q, k and v, `[1]`, `[sequences, heads_k]` or `[sequences, heads_k, blocks]`. Those of neighbouring blocks of keys differ widely: a kernel that took
    /// one for the other would be far off.
    pub fn scales(&self) -> [Vec<f32>; 3] {
        let mut rng = StdRng::seed_from_u64(self.case.seed.wrapping_mul(79));
        let [spans, _] = self.spans();
        let ranges = match self.scales {
            Fp8::PerTensor | Fp8::PerHead => [(-6.5f32, -5.0), (-6.5, -5.0), (-14.0, 2.0)],
            Fp8::PerBlock => [(-7.0, -5.0), (-9.0, -3.0), (-6.0, 0.0)],
        };
        let [blocks_q, blocks_k] = self.blocks();
        let mut scales = [blocks_q, blocks_k, blocks_k].into_iter().zip(ranges);
        std::array::from_fn(|_| {
            let (blocks, (least, most)) = scales.next().unwrap_or((0, (0.0, 0.0)));
            let n = match self.scales {
                Fp8::PerTensor => 1,
                Fp8::PerHead | Fp8::PerBlock => spans.len() * self.case.sizes.heads_k * blocks,
            };
            let scale = || rng.random_range(least..most).exp2();
            std::iter::repeat_with(scale).take(n).collect()
        })
    }

    /// How many scales a sequence and head has, in q and in k.
    fn blocks(&self) -> [usize; 2] {
        let sizes = self.case.sizes;
        [sizes.seqlen_q, sizes.seqlen_k].map(|rows| match self.scales {
            Fp8::PerTensor | Fp8::PerHead => 1,
            Fp8::PerBlock => rows.div_ceil(BLOCK).max(1),
        })
    }

    /// The number of the scale of a sequence, a head of keys and a row of it: in q, and in k.
    pub fn scale(&self, sequence: usize, head_k: usize, row: usize) -> [usize; 2] {
        let head = sequence * self.case.sizes.heads_k + head_k;
        match self.scales {
            Fp8::PerTensor => [0, 0],
            Fp8::PerHead => [head, head],
            Fp8::PerBlock => self.blocks().map(|blocks| head * blocks + row / BLOCK),
        }
    }
}

//! Caches in 8 bits: decode and chunks of queries, in pages and side by side, with scales of every size. And queries in 8 bits, too.

use ferroflash::error::ProblemError;
use ferroflash::{Fp8, Fp8Kv, Problem};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::pages::{self, PagedCase};
use crate::lengths::{Lengths, Room, Span};

/// What has 8 bits, and which scales it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scales {
    /// Keys and values.
    Cache(Fp8Kv),
    /// Queries, too.
    All(Fp8),
}

/// Rows that share a scale of blocks.
const BLOCK: usize = 128;

/// A case whose keys and values are in 8 bits.
#[derive(Clone, Copy, Debug)]
pub struct Fp8Case {
    /// The case, and its pages.
    pub paged: PagedCase,
    /// Which scales it has.
    pub scales: Scales,
}

/// head_dims of the kernels, and some that they pad.
const HEAD_DIMS: [usize; 5] = [128, 64, 80, 128, 16];

/// Pages of all sizes, scales of sequences and of pages going round.
pub fn all() -> Vec<Fp8Case> {
    in_8_bits(pages::all().into_iter().chain(pages::padded()).collect())
}

/// Keys divided into splits.
pub fn splits() -> Vec<Fp8Case> {
    in_8_bits(pages::splits())
}

/// Queries in 8 bits, too; keys divided and not.
pub fn queries() -> Vec<Fp8Case> {
    let cases = [pages::all(), pages::padded(), pages::splits()].concat();
    let cases = in_8_bits(cases).into_iter().enumerate();
    let in_8_bits = |(at, case)| Fp8Case {
        scales: Scales::All([Fp8::PerHead, Fp8::PerBlock, Fp8::PerTensor][at % 3]),
        ..case
    };
    cases.map(in_8_bits).collect()
}

/// Those whose queries are padded, with a head_dim that the kernels take.
pub(super) fn in_8_bits(cases: Vec<PagedCase>) -> Vec<Fp8Case> {
    let padded = |paged: &PagedCase| {
        let lengths = paged.case.lengths;
        !lengths.is_some_and(|lengths| matches!(lengths.q.room, Room::Packed { .. }))
    };
    let cases = cases.into_iter().filter(padded).enumerate();
    let cases = cases.map(|(at, mut paged)| {
        let head_dim = HEAD_DIMS[at % HEAD_DIMS.len()];
        paged.case = paged.case.columns(head_dim, head_dim);
        Fp8Case {
            paged,
            scales: Scales::Cache([Fp8Kv::PerPage, Fp8Kv::PerSequence][at / 2 % 2]),
        }
    });
    cases.collect()
}

impl Fp8Case {
    /// The problem, in pages.
    pub fn problem(&self) -> Result<Problem, ProblemError> {
        self.with_scales(self.paged.problem()?)
    }

    /// The problem with these scales.
    pub fn with_scales(&self, problem: Problem) -> Result<Problem, ProblemError> {
        let problem = problem.to_builder();
        match self.scales {
            Scales::Cache(scales) => problem.fp8_kv(scales),
            Scales::All(scales) => problem.fp8(scales),
        }
        .build()
    }

    /// Scales of q, if it has some, of k and of v, `[batch or pages, heads_k]`, as [`Fp8`] says. Those of v differ by far from page to page. NaN is what nobody's
    /// page has.
    pub fn scales(&self, table: &[i32]) -> [Vec<f32>; 3] {
        let mut rng = StdRng::seed_from_u64(self.paged.case.seed.wrapping_mul(77));
        let sizes = self.paged.case.sizes;
        let [n_q, n_k] = self.n_scaled();
        let by_page = self.scales == Scales::Cache(Fp8Kv::PerPage);
        let mut used = vec![!by_page; n_k];
        if by_page {
            for (sequence, slots) in self.paged.own_slots().into_iter().enumerate() {
                let row = &table[sequence * self.paged.columns()..];
                for &page in &row[slots] {
                    used[page as usize] = true;
                }
            }
        }
        let heads = match self.scales {
            Scales::All(Fp8::PerTensor) => 1,
            _ => sizes.heads_k,
        };
        let mut draw = |used: &[bool], (least, most): (f32, f32)| {
            let mut scales = Vec::new();
            for &used in used {
                let scale = || match used {
                    true => rng.random_range(least..most).exp2(),
                    false => f32::NAN,
                };
                scales.extend(std::iter::repeat_with(scale).take(heads));
            }
            scales
        };
        let of_k = draw(&used, (-6.5, -5.0));
        let of_v = draw(&used, (-14.0, 2.0));
        [draw(&vec![true; n_q], (-6.5, -4.5)), of_k, of_v]
    }

    /// Sequences or pages, or blocks of sequences: of q, and of k and v.
    fn n_scaled(&self) -> [usize; 2] {
        let batch = self.paged.case.sizes.batch;
        match self.scales {
            Scales::Cache(Fp8Kv::PerSequence) => [0, batch],
            Scales::Cache(Fp8Kv::PerPage) => [0, self.paged.n_pages()],
            Scales::All(Fp8::PerTensor) => [1, 1],
            Scales::All(Fp8::PerHead) => [batch, batch],
            Scales::All(Fp8::PerBlock) => self.blocks().map(|blocks| batch * blocks),
        }
    }

    /// Blocks of the longest sequence, of q and of k.
    fn blocks(&self) -> [usize; 2] {
        let sizes = self.paged.case.sizes;
        [sizes.seqlen_q, sizes.seqlen_k].map(|rows| rows.div_ceil(BLOCK).max(1))
    }

    /// The number of the scale of a row that the tensor has side by side, of a sequence with these rows and a head of k.
    pub fn scaled(
        &self,
        (sequence, Span { first, .. }): (usize, Span),
        row: usize,
        head: usize,
        table: &[i32],
    ) -> Option<usize> {
        let sizes = self.paged.case.sizes;
        let of_sequence = sequence * sizes.heads_k + head;
        match self.scales {
            Scales::Cache(Fp8Kv::PerSequence) => Some(of_sequence),
            Scales::Cache(Fp8Kv::PerPage) => {
                let row = row - sequence * sizes.seqlen_k;
                let slot = sequence * self.paged.columns() + row / self.paged.page_size;
                let page = self.paged.page(*table.get(slot)?)?;
                Some(page * sizes.heads_k + head)
            }
            Scales::All(of) => {
                let [_, blocks] = self.blocks();
                Some(place_of(of, of_sequence, blocks, row - first))
            }
        }
    }

    /// The number of the scale of a row of a sequence's queries, counted from its first, and a head of k.
    pub fn scaled_query(&self, sequence: usize, row: usize, head: usize) -> Option<usize> {
        let of_sequence = sequence * self.paged.case.sizes.heads_k + head;
        match self.scales {
            Scales::Cache(_) => None,
            Scales::All(of) => {
                let [blocks, _] = self.blocks();
                Some(place_of(of, of_sequence, blocks, row))
            }
        }
    }

    /// Where each sequence's queries lie.
    pub fn spans_q(&self) -> Vec<Span> {
        let spans = |lengths: Lengths| lengths.q.spans(lengths.n);
        self.paged.case.lengths.map_or_else(Vec::new, spans)
    }
}

/// The number of the scale of a row, of a sequence and head with this number.
fn place_of(of: Fp8, of_sequence: usize, blocks: usize, row: usize) -> usize {
    match of {
        Fp8::PerTensor => 0,
        Fp8::PerHead => of_sequence,
        Fp8::PerBlock => of_sequence * blocks + row / BLOCK,
    }
}

//! Caches in 8 bits: decode and chunks of queries, in pages and side by side, with scales of every size.

use ferroflash::error::ProblemError;
use ferroflash::{Fp8Kv, Problem};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::pages::{self, PagedCase};
use crate::lengths::Room;

/// A case whose keys and values are in 8 bits.
#[derive(Clone, Copy, Debug)]
pub struct Fp8Case {
    /// The case, and its pages.
    pub paged: PagedCase,
    /// Which scales it has.
    pub scales: Fp8Kv,
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
            scales: [Fp8Kv::PerPage, Fp8Kv::PerSequence][at / 2 % 2],
        }
    });
    cases.collect()
}

impl Fp8Case {
    /// The problem, in pages.
    pub fn problem(&self) -> Result<Problem, ProblemError> {
        let problem = self.paged.problem()?.to_builder();
        problem.fp8_kv(self.scales).build()
    }

    /// Scales of k and of v, `[batch or pages, heads_k]`. Those of v differ by far from page to page. NaN is what nobody's page has.
    pub fn scales(&self, table: &[i32]) -> [Vec<f32>; 2] {
        let mut rng = StdRng::seed_from_u64(self.paged.case.seed.wrapping_mul(77));
        let sizes = self.paged.case.sizes;
        let mut used = vec![self.scales == Fp8Kv::PerSequence; self.n_scaled()];
        if self.scales == Fp8Kv::PerPage {
            for (sequence, slots) in self.paged.own_slots().into_iter().enumerate() {
                let row = &table[sequence * self.paged.columns()..];
                for &page in &row[slots] {
                    used[page as usize] = true;
                }
            }
        }
        [(-6.5f32, -5.0), (-14.0, 2.0)].map(|(least, most)| {
            let mut scales = Vec::new();
            for &used in &used {
                let scale = || match used {
                    true => rng.random_range(least..most).exp2(),
                    false => f32::NAN,
                };
                scales.extend(std::iter::repeat_with(scale).take(sizes.heads_k));
            }
            scales
        })
    }

    /// Sequences or pages.
    fn n_scaled(&self) -> usize {
        match self.scales {
            Fp8Kv::PerSequence => self.paged.case.sizes.batch,
            Fp8Kv::PerPage => self.paged.n_pages(),
        }
    }

    /// The number of the scale, without the head, of a row of the longest that a sequence can have.
    pub fn scaled(&self, sequence: usize, row: usize, table: &[i32]) -> Option<usize> {
        let slot = sequence * self.paged.columns() + row / self.paged.page_size;
        match self.scales {
            Fp8Kv::PerSequence => Some(sequence),
            Fp8Kv::PerPage => self.paged.page(*table.get(slot)?),
        }
    }
}

//! Queries, keys and values in 8 bits: masks, lengths, block masks and sinks, with scales of tensors and of heads.

use ferroflash::error::ProblemError;
use ferroflash::{Dtype, Fp8, Problem};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::base::one_in;
use super::{Case, base, sinks};
use crate::lengths::Span;

/// A case whose queries, keys and values are in 8 bits; its type is that of o.
#[derive(Clone, Copy, Debug)]
pub struct E4m3Case {
    /// The case.
    pub case: Case,
    /// Which scales it has.
    pub scales: Fp8,
}

/// head_dims of the kernels, and some that they pad.
const HEAD_DIMS: [usize; 8] = [128, 64, 80, 192, 96, 256, 16, 176];

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

fn in_8_bits(at: usize, case: Case) -> E4m3Case {
    let head_dim = match HEAD_DIMS[at % HEAD_DIMS.len()] {
        // Its tiles do not divide blocks.
        256 | 176 if case.blocks.is_some() => 128,
        head_dim => head_dim,
    };
    let case = Case {
        dtype: DTYPES[at / 2 % DTYPES.len()],
        dropout: None,
        ..case.columns(head_dim, head_dim)
    };
    E4m3Case {
        case,
        scales: [Fp8::PerHead, Fp8::PerTensor][at / 3 % 2],
    }
}

impl E4m3Case {
    /// The problem.
    pub fn problem(&self) -> Result<Problem, ProblemError> {
        let problem = self.case.problem()?.to_builder();
        problem.fp8(self.scales).build()
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

    /// Scales of q, k and v, `[1]` or `[sequences, heads_k]`.
    pub fn scales(&self) -> [Vec<f32>; 3] {
        let mut rng = StdRng::seed_from_u64(self.case.seed.wrapping_mul(79));
        let [spans, _] = self.spans();
        let n = match self.scales {
            Fp8::PerTensor => 1,
            Fp8::PerHead => spans.len() * self.case.sizes.heads_k,
        };
        [(-6.5f32, -5.0), (-6.5, -5.0), (-14.0, 2.0)].map(|(least, most)| {
            let scale = || rng.random_range(least..most).exp2();
            std::iter::repeat_with(scale).take(n).collect()
        })
    }

    /// The number of the scale of a sequence and a head of keys.
    pub fn scale(&self, sequence: usize, head_k: usize) -> usize {
        match self.scales {
            Fp8::PerTensor => 0,
            Fp8::PerHead => sequence * self.case.sizes.heads_k + head_k,
        }
    }
}

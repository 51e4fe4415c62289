//! Simulated serving engines: how their caches lie in pages, and how long they run.

use ferroflash::rotary::Pairs;
use ferroflash::{Backend, Dtype, Mask};

use super::appends::RotaryCase;
use super::{HALVES, window};
use crate::buffer::{ALIGNED, Arrangement};

/// A serving engine: caches in a pool of pages, and sequences that come, grow and go.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServingCase {
    /// Element type.
    pub dtype: Dtype,
    /// Mask.
    pub mask: Mask,
    /// Heads of q.
    pub heads_q: usize,
    /// Heads of k and v.
    pub heads_k: usize,
    /// Columns.
    pub head_dim: usize,
    /// Whether rows are rotated by their positions, and how.
    pub rotary: Option<RotaryCase>,
    /// Rows of a page.
    pub page_size: usize,
    /// Pages of the pool; too few for as many sequences as there may be of the length that they may have.
    pub n_pages: usize,
    /// The most sequences at a time.
    pub n_slots: usize,
    /// The most rows of a sequence.
    pub seqlen: usize,
    /// How the pools lie.
    pub arrangement: Arrangement,
    /// Steps.
    pub n_steps: usize,
    /// Decides the steps and the numbers.
    pub seed: u64,
}

/// `(page_size, n_pages, seqlen)`.
const POOLS: [(usize, usize, usize); 3] = [(1, 60, 20), (3, 30, 31), (16, 12, 70)];

/// `(heads_q, heads_k)`.
const HEADS: [(usize, usize); 4] = [(4, 2), (2, 2), (3, 1), (2, 1)];

const MASKS: [Mask; 4] = [
    Mask::Causal,
    Mask::Causal,
    window(Some(9), Some(0)),
    Mask::PrefixLm { prefix: 5 },
];

/// The engines of a backend: on the CPU 10,000 steps in all, of element types and head_dims that only it takes, too.
pub fn all(backend: Backend, seed: u64) -> Vec<ServingCase> {
    let (n, n_steps) = match backend {
        Backend::Cpu => (10, 1000),
        Backend::Cuda => (12, 100),
        Backend::Emulated => (3, 40),
    };
    let case = |at| nth(at, n_steps, seed);
    let engines = (0..n).map(case);
    match backend {
        Backend::Cpu => engines.map(of_cpu).collect(),
        Backend::Cuda | Backend::Emulated => engines.collect(),
    }
}

/// An engine that kernels take. The seed decides what goes with which pages, too.
fn nth(at: usize, n_steps: usize, seed: u64) -> ServingCase {
    let (page_size, n_pages, seqlen) = POOLS[at % POOLS.len()];
    let round = at + at / POOLS.len() + (seed % 16) as usize;
    let (heads_q, heads_k) = HEADS[round % HEADS.len()];
    let head_dim = [64, 32, 128][round / 2 % 3];
    let rotary = |pairs| RotaryCase {
        pairs,
        rotary_dim: head_dim / 2,
        odd_tables: false,
    };
    ServingCase {
        dtype: HALVES[round % 2],
        mask: MASKS[round / 2 % MASKS.len()],
        heads_q,
        heads_k,
        head_dim,
        rotary: [None, Some(Pairs::Halves), Some(Pairs::Interleaved)][round % 3].map(rotary),
        page_size,
        n_pages,
        n_slots: 6,
        seqlen,
        arrangement: ALIGNED[round % ALIGNED.len()],
        n_steps,
        seed: seed.wrapping_mul(1 << 16).wrapping_add(at as u64),
    }
}

/// The same with fewer columns, and of f32 now and then.
fn of_cpu(case: ServingCase) -> ServingCase {
    let round = case.seed as usize;
    let head_dim = [8, 12, 16, 10][round % 4];
    let rotary = |rotary| RotaryCase {
        rotary_dim: head_dim / 2 / 2 * 2,
        ..rotary
    };
    ServingCase {
        dtype: if round % 3 == 1 {
            Dtype::F32
        } else {
            case.dtype
        },
        head_dim,
        rotary: case.rotary.map(rotary),
        ..case
    }
}

//! Appends to a cache and rotations: how rows are rotated, how many come at a time, and where they go.

mod pages;
mod scales;
mod tables;

use ferroflash::rotary::{Pairs, QueryPositions};
use ferroflash::{AppendProblem, Dtype, Fp8Kv, RotateProblem};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

pub use scales::Scales;
pub use tables::{Table, Tables};

use super::chunk;
use crate::buffer::{ALIGNED, Arrangement};
use crate::inputs::round;

/// How many new rows each sequence has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum New {
    /// So many of every sequence.
    Padded(usize),
    /// Up to so many, one sequence behind the other, between rows of no sequence.
    Packed(usize),
}

/// How rows are rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RotaryCase {
    /// Which elements form pairs.
    pub pairs: Pairs,
    /// How many elements turn.
    pub rotary_dim: usize,
    /// The tables begin at an odd place in memory: no 16 bytes of them are aligned.
    pub odd_tables: bool,
}

/// One append; without a cache, one rotation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AppendCase {
    /// Element type.
    pub dtype: Dtype,
    /// Sequences.
    pub batch: usize,
    /// New rows.
    pub new: New,
    /// Heads of q, or of the tensor that is rotated; 0: there is none.
    pub heads_q: usize,
    /// Heads of k and v.
    pub heads_k: usize,
    /// Columns.
    pub head_dim: usize,
    /// Rows of a sequence in the cache; of a rotation, positions.
    pub seqlen_cache: usize,
    /// Rows of a page, where the cache lies in pages.
    pub page_size: Option<usize>,
    /// Which scales it has, where it is in 8 bits.
    pub fp8_kv: Option<Fp8Kv>,
    /// Whether rows are rotated, and how.
    pub rotary: Option<RotaryCase>,
    /// Where queries stand.
    pub query_positions: QueryPositions,
    /// q is rotated where it lies.
    pub in_place: bool,
    /// How new k, new v, q, q_out and the cache lie.
    pub arrangements: [Arrangement; 5],
    /// Decides the numbers.
    pub seed: u64,
}

/// Where the new rows of a sequence lie, and how many it has before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// Batch entry of tensors of new rows.
    pub batch_idx: usize,
    /// The first of its rows there.
    pub first: usize,
    /// How many.
    pub len: usize,
    /// How many rows it has in the cache.
    pub before: usize,
}

impl AppendCase {
    fn rng(&self, of: u64) -> StdRng {
        StdRng::seed_from_u64(self.seed.wrapping_mul(31).wrapping_add(of))
    }

    /// The sequences: none in the cache, all but the new rows, and anything between. Packed ones may be empty.
    pub fn sequences(&self) -> Vec<Sequence> {
        let mut rng = self.rng(1);
        let mut end = match self.new {
            New::Padded(_) => 0,
            New::Packed(_) => rng.random_range(0..3),
        };
        let of = |batch_idx| {
            let (batch_idx, first, len) = match self.new {
                New::Padded(len) => (batch_idx, 0, len),
                New::Packed(most) => {
                    let most = most.min(self.seqlen_cache);
                    let (first, len) = match rng.random_range(0..4) {
                        0 => (end, 0),
                        1 => (end, most.min(1)),
                        _ => (end, rng.random_range(0..=most)),
                    };
                    end += len;
                    (0, first, len)
                }
            };
            let room = self.seqlen_cache - len;
            let before = match rng.random_range(0..4) {
                0 => 0,
                1 => room,
                _ => rng.random_range(0..=room),
            };
            Sequence {
                batch_idx,
                first,
                len,
                before,
            }
        };
        (0..self.batch).map(of).collect()
    }

    /// Rows of all packed sequences, and two of none behind them.
    pub fn total(&self) -> Option<usize> {
        let sequences = self.sequences();
        let end = sequences.iter().map(|own| own.first + own.len).max();
        match self.new {
            New::Padded(_) => None,
            New::Packed(_) => Some(end.unwrap_or(0) + 2),
        }
    }

    /// Where packed sequences begin, and where the last one ends.
    pub fn cu_seqlens(&self) -> Option<Vec<i32>> {
        self.total()?;
        let sequences = self.sequences();
        let begins = sequences.iter().map(|own| own.first as i32);
        let end = sequences.last().map_or(0, |own| own.first + own.len);
        Some(begins.chain([end as i32]).collect())
    }

    /// The tables of cosines and sines, from an odd place on if they are to lie there.
    pub fn tables(&self) -> Option<Tables> {
        Tables::new(self.rotary?, self.seqlen_cache)
    }

    /// The append.
    pub fn problem(&self) -> Result<AppendProblem, ferroflash::error::ProblemError> {
        let builder = AppendProblem::builder(self.dtype)
            .batch(self.batch)
            .heads_q(self.heads_q)
            .heads_k(self.heads_k)
            .head_dim(self.head_dim)
            .seqlen_cache(self.seqlen_cache)
            .query_positions(self.query_positions);
        let builder = match (self.new, self.total()) {
            (New::Padded(seqlen), _) => builder.seqlen_new(seqlen),
            (New::Packed(_), total) => builder.packed_new(total.unwrap_or(0)),
        };
        let builder = match self.rotary {
            Some(RotaryCase {
                pairs, rotary_dim, ..
            }) => builder.rotary(pairs, rotary_dim, self.seqlen_cache),
            None => builder,
        };
        let builder = match self.fp8_kv {
            Some(scales) => builder.fp8_kv(scales),
            None => builder,
        };
        self.in_pages(builder).build()
    }

    /// The rotation of q alone.
    pub fn rotation(&self) -> Option<RotateProblem> {
        let (turns, heads, head_dim) = (self.tables()?.turns, self.heads_q, self.head_dim);
        Some(match (self.new, self.total()) {
            (New::Padded(seqlen), _) => {
                RotateProblem::new(self.dtype, [self.batch, seqlen, heads, head_dim], turns)
            }
            (New::Packed(_), total) => {
                let shape = [total.unwrap_or(0), heads, head_dim];
                RotateProblem::packed(self.dtype, self.batch, shape, turns)
            }
        })
    }

    /// Whether the kernel takes it, given which of its tensors have elements, said a second time so that a refusal too many is a
    /// failure.
    pub fn fits_kernel(&self, shapes: [[usize; 4]; 5]) -> bool {
        let unaligned = self
            .arrangements
            .iter()
            .zip(shapes)
            .any(|(&given, shape)| given == Arrangement::Unaligned && !shape.contains(&0));
        let columns = match self.fp8_kv {
            Some(_) => 16,
            None => chunk(self.dtype),
        };
        self.head_dim.is_multiple_of(columns) && !unaligned
    }

    /// Numbers of a tensor; of those that are copied and not rotated some are special.
    pub fn numbers(&self, of: u64, n: usize, rotated: usize) -> Vec<f64> {
        let mut rng = self.rng(of);
        let number = |at| match rng.random_range(0..64) {
            0 => -0.0,
            1 if at % self.head_dim >= rotated => f64::NAN,
            2 if at % self.head_dim >= rotated => f64::NEG_INFINITY,
            _ => round(rng.random_range(-4.0..4.0), self.dtype),
        };
        (0..n).map(number).collect()
    }
}

const DTYPES: [Dtype; 3] = [Dtype::Bf16, Dtype::F16, Dtype::F32];

/// Every way to turn rows of every kind: no turn, all of head_dim and parts of it, such that pairs lie in chunks and across them.
pub fn turns(seed: u64) -> Vec<AppendCase> {
    let dims = [
        (8, &[2, 8][..]),
        (12, &[4, 6, 8, 12]),
        (36, &[20, 36]),
        (40, &[6, 20, 32, 40]),
        (64, &[16, 24, 64]),
        (72, &[72]),
        (80, &[20, 32, 80]),
        (128, &[64, 126, 128]),
        (256, &[64, 256]),
    ];
    let mut cases = Vec::new();
    for (head_dim, rotary_dims) in dims {
        let pairs = [Pairs::Halves, Pairs::Interleaved];
        let rotated = rotary_dims
            .iter()
            .flat_map(|&dim| pairs.map(|pairs| Some((pairs, dim))));
        for rotated in rotated.chain([None]) {
            let n = cases.len();
            cases.push(AppendCase {
                dtype: match head_dim % 8 {
                    0 => DTYPES[(n + n / 3) % DTYPES.len()],
                    _ => Dtype::F32,
                },
                batch: 1 + n % 3,
                new: match n % 4 {
                    0 => New::Padded(1),
                    1 => New::Packed(5),
                    2 => New::Padded(3),
                    _ => New::Packed(2),
                },
                heads_q: rotated.map_or(0, |_| [4, 3, 0][n % 3]),
                heads_k: [2, 1, 3][n % 3],
                head_dim,
                seqlen_cache: 7 + n % 4,
                page_size: [None, Some(4), Some(1)][n / 2 % 3],
                fp8_kv: None,
                rotary: rotated.map(|(pairs, rotary_dim)| RotaryCase {
                    pairs,
                    rotary_dim,
                    odd_tables: n % 5 == 2,
                }),
                query_positions: [QueryPositions::Ascending, QueryPositions::First][n / 2 % 2],
                in_place: n % 2 == 0,
                arrangements: [n, n + 1, n / 4, n + 2, n / 3].map(|n| ALIGNED[n % ALIGNED.len()]),
                seed: seed.wrapping_add(n as u64),
            });
        }
    }
    cases
}

/// An append of some rows to a cache of ten.
fn usual(seed: u64) -> AppendCase {
    AppendCase {
        dtype: Dtype::Bf16,
        batch: 3,
        new: New::Padded(2),
        heads_q: 4,
        heads_k: 2,
        head_dim: 32,
        seqlen_cache: 10,
        page_size: None,
        fp8_kv: None,
        rotary: Some(RotaryCase {
            pairs: Pairs::Halves,
            rotary_dim: 32,
            odd_tables: false,
        }),
        query_positions: QueryPositions::Ascending,
        in_place: false,
        arrangements: [Arrangement::Bshd; 5],
        seed,
    }
}

/// Nothing to append, caches that are full afterwards, more sequences than a block has threads, and what kernels do not take.
pub fn edges(seed: u64) -> Vec<AppendCase> {
    let usual = usual(seed);
    let with = |at: usize, arrangement| {
        let mut arrangements = usual.arrangements;
        arrangements[at] = arrangement;
        AppendCase {
            arrangements,
            ..usual
        }
    };
    let new = |new| AppendCase { new, ..usual };
    let mut cases = vec![
        AppendCase { batch: 0, ..usual },
        AppendCase {
            heads_q: 0,
            heads_k: 0,
            ..usual
        },
        AppendCase {
            heads_k: 0,
            ..usual
        },
        new(New::Padded(0)),
        new(New::Packed(0)),
        new(New::Padded(10)),
        new(New::Packed(10)),
        AppendCase {
            seqlen_cache: 2,
            ..usual
        },
        AppendCase {
            batch: 300,
            new: New::Packed(2),
            heads_q: 1,
            heads_k: 1,
            head_dim: 8,
            rotary: None,
            ..usual
        },
        AppendCase {
            head_dim: 33,
            ..usual
        },
        AppendCase {
            dtype: Dtype::F32,
            ..usual
        },
        AppendCase {
            head_dim: 36,
            ..usual
        },
    ];
    cases[8].heads_q = 0;
    cases.extend((0..5).map(|at| with(at, Arrangement::Unaligned)));
    for (n, case) in cases.iter_mut().enumerate() {
        case.seed = case.seed.wrapping_add(n as u64);
    }
    cases
}

/// The same of a cache in 8 bits, with scales of sequences and of pages: every way to turn rows, and the edges.
pub fn in_8_bits(seed: u64) -> Vec<AppendCase> {
    let cases = turns(seed).into_iter().chain(edges(seed)).enumerate();
    cases
        .map(|(n, case)| AppendCase {
            // Each type with each way to turn.
            dtype: match case.head_dim % 8 {
                0 => DTYPES[n % DTYPES.len()],
                _ => case.dtype,
            },
            fp8_kv: Some(match (case.page_size, n % 3) {
                (Some(_), 0 | 1) => Fp8Kv::PerPage,
                _ => Fp8Kv::PerSequence,
            }),
            ..case
        })
        .collect()
}

/// So many of any kind.
pub fn random(n: usize, seed: u64) -> Vec<AppendCase> {
    let mut rng = StdRng::seed_from_u64(seed);
    let of = |_| {
        let dtype = DTYPES[rng.random_range(0..DTYPES.len())];
        let is_fp8 = rng.random_bool(0.3);
        let chunk = if is_fp8 { 16 } else { chunk(dtype) };
        let head_dim = chunk * rng.random_range(1..=256 / chunk);
        let seqlen_cache = rng.random_range(1..40);
        let most = rng.random_range(0..=seqlen_cache);
        let rotary = rng.random_bool(0.8).then(|| RotaryCase {
            pairs: [Pairs::Halves, Pairs::Interleaved][rng.random_range(0..2)],
            rotary_dim: 2 * rng.random_range(1..=head_dim / 2),
            odd_tables: rng.random_bool(0.2),
        });
        let page_size =
            [None, Some([1, 3, 4, 16, 64][rng.random_range(0..5)])][rng.random_range(0..2)];
        let scales = match page_size.is_some() && rng.random() {
            true => Fp8Kv::PerPage,
            false => Fp8Kv::PerSequence,
        };
        AppendCase {
            dtype,
            batch: rng.random_range(1..6),
            new: match rng.random_bool(0.5) {
                true => New::Padded(most),
                false => New::Packed(most),
            },
            heads_q: rotary.map_or(0, |_| rng.random_range(0..5)),
            heads_k: rng.random_range(1..4),
            head_dim,
            seqlen_cache,
            page_size,
            fp8_kv: is_fp8.then_some(scales),
            rotary,
            query_positions: [QueryPositions::Ascending, QueryPositions::First]
                [rng.random_range(0..2)],
            in_place: rng.random(),
            arrangements: [(); 5].map(|()| ALIGNED[rng.random_range(0..ALIGNED.len())]),
            seed: rng.random(),
        }
    };
    (0..n).map(of).collect()
}

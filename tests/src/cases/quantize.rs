//! Tensors to be rounded to 8 bits: shapes, scales, arrangements, and kinds of numbers.

use ferroflash::{Dtype, Fp8, QuantizeProblem};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::buffer::{ALIGNED, Arrangement};
use crate::inputs::round;

/// One tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantizeCase {
    /// Element type.
    pub dtype: Dtype,
    /// Rows of each sequence.
    pub lens: Vec<usize>,
    /// Whether sequences are packed; else all have as many rows.
    pub packed: bool,
    /// Heads, those of keys, and columns.
    pub sizes: [usize; 3],
    /// Which numbers have a scale.
    pub scales: Fp8,
    /// Whether scales are powers of 2.
    pub power_of_2: bool,
    /// Whether scales are given.
    pub given: bool,
    /// A Hadamard transform, if there is one, and the seed of its signs, if it has some.
    pub hadamard: Option<Option<u64>>,
    /// How the tensor and the result lie.
    pub arrangements: [Arrangement; 2],
    /// What kind of numbers there are.
    pub numbers: Numbers,
    /// Decides the numbers.
    pub seed: u64,
}

/// Kinds of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    /// Of a normal size.
    Usual,
    /// Of all sizes, down to 2^-20 of the greatest.
    Wide,
    /// All 0, of either sign.
    Zero,
    /// So small that the least scale counts.
    Tiny,
    /// An infinity or a NaN among them.
    NotFinite,
}

/// Every way of scales.
const SCALES: [Fp8; 3] = [Fp8::PerTensor, Fp8::PerHead, Fp8::PerBlock];

impl QuantizeCase {
    /// Whether kernels can round it, said a second time so that a refusal too many is a failure.
    pub fn fits_kernels(&self) -> bool {
        let [_, _, head_dim] = self.sizes;
        let unaligned = self.arrangements.contains(&Arrangement::Unaligned);
        let is_empty = self.shape().contains(&0);
        head_dim.is_multiple_of(16) && head_dim <= 256 && (!unaligned || is_empty)
    }

    /// The library's description.
    pub fn problem(&self) -> QuantizeProblem {
        let ([heads, heads_k, head_dim], scales) = (self.sizes, self.scales);
        let most = self.lens.iter().copied().max().unwrap_or(0);
        let problem = match self.packed {
            true => {
                let shape = [self.total(), heads, head_dim];
                QuantizeProblem::packed(self.dtype, self.lens.len(), most, shape, scales)
            }
            false => QuantizeProblem::new(self.dtype, self.shape(), scales),
        };
        let problem = problem.heads_k(heads_k);
        let problem = match self.power_of_2 {
            true => problem.power_of_2(),
            false => problem,
        };
        let problem = match self.given {
            true => problem.giving_descale(),
            false => problem,
        };
        match self.hadamard {
            Some(seed) => problem.hadamard(seed),
            None => problem,
        }
    }

    /// `[batch, seqlen, heads, head_dim]`.
    pub fn shape(&self) -> [usize; 4] {
        let [heads, _, head_dim] = self.sizes;
        match self.packed {
            true => [1, self.total(), heads, head_dim],
            false => {
                let seqlen = self.lens.first().copied().unwrap_or(0);
                [self.lens.len(), seqlen, heads, head_dim]
            }
        }
    }

    /// Packed rows, with one before the first sequence and one behind the last.
    fn total(&self) -> usize {
        self.lens.iter().sum::<usize>() + 2
    }

    /// The first row of each packed sequence, and the end of the last.
    pub fn cu_seqlens(&self) -> Option<Vec<i32>> {
        let ends = self.lens.iter().scan(1, |end, &len| {
            *end += len as i32;
            Some(*end)
        });
        self.packed
            .then(|| std::iter::once(1).chain(ends).collect())
    }

    /// The batch entry and the rows of each sequence.
    pub fn spans(&self) -> Vec<(usize, std::ops::Range<usize>)> {
        let Some(ends) = self.cu_seqlens() else {
            return self.lens.iter().map(|&len| 0..len).enumerate().collect();
        };
        let rows = ends
            .windows(2)
            .map(|ends| (0, ends[0] as usize..ends[1] as usize));
        rows.collect()
    }

    /// How many scales there are.
    pub fn n_scales(&self) -> usize {
        match self.scales {
            Fp8::PerTensor => 1,
            Fp8::PerHead | Fp8::PerBlock => self.lens.len() * self.sizes[1] * self.blocks(),
        }
    }

    /// Blocks of rows with a scale, of a sequence and head.
    fn blocks(&self) -> usize {
        let most = self.lens.iter().copied().max().unwrap_or(0);
        match self.scales {
            Fp8::PerTensor | Fp8::PerHead => 1,
            Fp8::PerBlock => most.div_ceil(Fp8::BLOCK).max(1),
        }
    }

    /// The place of the scale of a sequence's row, of a head of keys.
    pub fn scale(&self, sequence: usize, head_k: usize, row: usize) -> usize {
        let of_head = (sequence * self.sizes[1] + head_k) * self.blocks();
        match self.scales {
            Fp8::PerTensor => 0,
            Fp8::PerHead => of_head,
            Fp8::PerBlock => of_head + row / Fp8::BLOCK,
        }
    }

    /// The numbers, dense; those of no sequence are NaN.
    pub fn values(&self) -> Vec<f64> {
        let mut rng = StdRng::seed_from_u64(self.seed);
        let [_, seqlen, heads, head_dim] = self.shape();
        let mut values = vec![f64::NAN; self.shape().iter().product()];
        let unit = 2f64.powi(rng.random_range(-8..8));
        for (batch_idx, rows) in self.spans() {
            let rows = batch_idx * seqlen + rows.start..batch_idx * seqlen + rows.end;
            for x in &mut values[rows.start * heads * head_dim..rows.end * heads * head_dim] {
                let number = rng.random_range(-2.0..2.0) * unit;
                let number = match self.numbers {
                    Numbers::Usual => number,
                    Numbers::Wide => number * 2f64.powi(-rng.random_range(0..20)),
                    Numbers::Zero if number < 0.0 => -0.0,
                    Numbers::Zero => 0.0,
                    Numbers::Tiny => number * 2f64.powi(-70),
                    Numbers::NotFinite => match rng.random_range(0..40 * head_dim) {
                        0 => f64::INFINITY,
                        1 => f64::NEG_INFINITY,
                        2 => f64::NAN,
                        _ => number,
                    },
                };
                *x = round(number, self.dtype);
            }
        }
        values
    }

    /// Scales that are given: such that some numbers are beyond e4m3's range.
    pub fn descale(&self) -> Vec<f32> {
        let mut rng = StdRng::seed_from_u64(self.seed ^ 1);
        let scale = |_| 2f32.powi(rng.random_range(-16..2)) * rng.random_range(1.0..2.0);
        (0..self.n_scales()).map(scale).collect()
    }
}

/// Every head_dim, group of heads and way of scales; sequences that end within a tile and with one.
pub fn shapes(seed: u64) -> Vec<QuantizeCase> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut cases = Vec::new();
    for (at, (head_dim, heads, heads_k)) in [
        (16, 1, 1),
        (48, 3, 1),
        (64, 8, 2),
        (80, 5, 5),
        (96, 2, 2),
        (128, 4, 1),
        (128, 2, 2),
        (192, 6, 3),
        (256, 2, 1),
    ]
    .into_iter()
    .enumerate()
    {
        for scales in SCALES {
            for hadamard in [None, Some(None), Some(Some(rng.random()))] {
                let packed = rng.random();
                cases.push(QuantizeCase {
                    dtype: [Dtype::Bf16, Dtype::F16, Dtype::F32][(at + cases.len()) % 3],
                    lens: match packed {
                        true => vec![129, 0, 5, 128],
                        false => vec![[1, 128, 131][cases.len() % 3]; 1 + cases.len() % 2],
                    },
                    packed,
                    sizes: [heads, heads_k, head_dim],
                    scales,
                    power_of_2: rng.random(),
                    given: cases.len() % 4 == 3,
                    hadamard,
                    arrangements: [0; 2].map(|_| ALIGNED[rng.random_range(0..ALIGNED.len())]),
                    numbers: [Numbers::Usual, Numbers::Wide][cases.len() % 2],
                    seed: rng.random(),
                });
            }
        }
    }
    cases
}

/// No rows, no heads, no sequences; every kind of number; what kernels refuse.
pub fn edges(seed: u64) -> Vec<QuantizeCase> {
    let usual = QuantizeCase {
        dtype: Dtype::Bf16,
        lens: vec![9, 9],
        packed: false,
        sizes: [4, 2, 64],
        scales: Fp8::PerHead,
        power_of_2: false,
        given: false,
        hadamard: None,
        arrangements: [Arrangement::Bshd; 2],
        numbers: Numbers::Usual,
        seed,
    };
    let mut cases = Vec::new();
    for scales in SCALES {
        let usual = QuantizeCase {
            scales,
            ..usual.clone()
        };
        for numbers in [Numbers::Zero, Numbers::Tiny, Numbers::NotFinite] {
            for (power_of_2, given) in [(false, false), (true, false), (false, true)] {
                cases.push(QuantizeCase {
                    numbers,
                    power_of_2,
                    given,
                    dtype: match numbers {
                        Numbers::Tiny => Dtype::F32,
                        _ => usual.dtype,
                    },
                    ..usual.clone()
                });
            }
        }
        for (lens, packed, sizes) in [
            (vec![], false, [4, 2, 64]),
            (vec![], true, [4, 2, 64]),
            (vec![0, 0], false, [4, 2, 64]),
            (vec![0, 0], true, [4, 2, 64]),
            (vec![9], false, [0, 0, 64]),
            (vec![9], false, [2, 2, 8]),
            (vec![9], true, [2, 1, 40]),
            (vec![9], false, [2, 1, 320]),
            (vec![9], false, [1, 1, 1]),
            (vec![129, 3, 257], true, [2, 1, 16]),
        ] {
            for given in [false, true] {
                cases.push(QuantizeCase {
                    lens: lens.clone(),
                    packed,
                    sizes,
                    given,
                    hadamard: Some(None).filter(|_| scales == Fp8::PerHead),
                    ..usual.clone()
                });
            }
        }
        // Several tiles share an amax, and one of them has what is not finite.
        cases.push(QuantizeCase {
            lens: vec![300],
            given: true,
            numbers: Numbers::NotFinite,
            ..usual.clone()
        });
        for arrangements in [
            [Arrangement::Unaligned, Arrangement::Bshd],
            [Arrangement::Bshd, Arrangement::Unaligned],
        ] {
            cases.push(QuantizeCase {
                arrangements,
                ..usual.clone()
            });
        }
    }
    cases.push(QuantizeCase {
        arrangements: [Arrangement::Far; 2],
        ..usual
    });
    cases
}

/// Any.
pub fn random(n: usize, seed: u64) -> Vec<QuantizeCase> {
    let mut rng = StdRng::seed_from_u64(seed);
    let case = |_| {
        let packed = rng.random();
        let heads_k = rng.random_range(1..4);
        let n = rng.random_range(1..4);
        let most = [3, 40, 300][rng.random_range(0..3)];
        let len = rng.random_range(0..most);
        QuantizeCase {
            dtype: [Dtype::Bf16, Dtype::F16, Dtype::F32][rng.random_range(0..3)],
            lens: match packed {
                true => (0..n).map(|_| rng.random_range(0..most)).collect(),
                false => vec![len; n],
            },
            packed,
            sizes: [
                heads_k * rng.random_range(1..4),
                heads_k,
                16 * rng.random_range(1..17),
            ],
            scales: SCALES[rng.random_range(0..3)],
            power_of_2: rng.random(),
            given: rng.random_range(0..3) == 0,
            hadamard: [None, Some(None), Some(Some(rng.random()))][rng.random_range(0..3)],
            arrangements: [0; 2].map(|_| ALIGNED[rng.random_range(0..ALIGNED.len())]),
            numbers: match rng.random_range(0..8) {
                0 => Numbers::NotFinite,
                1..4 => Numbers::Wide,
                _ => Numbers::Usual,
            },
            seed: rng.random(),
        }
    };
    (0..n).map(case).collect()
}

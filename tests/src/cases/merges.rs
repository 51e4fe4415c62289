//! Merges of two parts of the keys: shapes, arrangements, and every kind of row statistics in each.

use ferroflash::Dtype;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::chunk;
use crate::buffer::{ALIGNED, Arrangement, Repeats};
use crate::inputs::round;
use crate::oracle::Output;

/// One merge.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MergeCase {
    /// Element type.
    pub dtype: Dtype,
    /// `[batch, seqlen, heads, head_dim]`.
    pub shape: [usize; 4],
    /// How o of the first part, of the second, and the output lie.
    pub arrangements: [Arrangement; 3],
    /// Decides the numbers.
    pub seed: u64,
}

impl MergeCase {
    /// Whether kernels can merge it, said a second time so that a refusal too many is a failure.
    pub fn fits_kernels(&self) -> bool {
        let unaligned = self.arrangements.contains(&Arrangement::Unaligned);
        let [.., head_dim] = self.shape;
        let is_empty = self.shape.contains(&0);
        head_dim.is_multiple_of(chunk(self.dtype)) && (!unaligned || is_empty)
    }

    /// o and lse of both parts. Rows go through all kinds of statistics, beginning anywhere. Where lse is −∞, o is NaN.
    pub fn parts(&self) -> [Output; 2] {
        let mut rng = StdRng::seed_from_u64(self.seed);
        let [batch, seqlen, heads, head_dim] = self.shape;
        let n_rows = batch * heads * seqlen;
        let first = rng.random_range(0..KINDS.len());
        let mut parts = [(); 2].map(|()| Output {
            o: vec![0.0; n_rows * head_dim],
            lse: vec![0.0; n_rows],
        });
        for row in 0..n_rows {
            let lse = KINDS[(first + row) % KINDS.len()].lse(&mut rng);
            let (b, h, i) = (row / seqlen / heads, row / seqlen % heads, row % seqlen);
            let begin = ((b * seqlen + i) * heads + h) * head_dim;
            for (part, lse) in parts.iter_mut().zip(lse) {
                part.lse[row] = round(lse, Dtype::F32);
                for o in &mut part.o[begin..begin + head_dim] {
                    *o = match rng.random_range(0..16) {
                        _ if lse == f64::NEG_INFINITY => f64::NAN,
                        0 => -0.0,
                        1 => 0.0,
                        _ => round(rng.random_range(-4.0..4.0), self.dtype),
                    };
                }
            }
        }
        let repeats = self.arrangements.map(Arrangement::repeats);
        for (part, repeats) in parts.iter_mut().zip(repeats) {
            self.repeat(part, repeats);
        }
        parts
    }

    /// Where a stride of 0 repeats a row, all heads and batch entries have the last one's numbers, and no row is of a part without keys.
    fn repeat(&self, part: &mut Output, repeats: Repeats) {
        let [batch, seqlen, heads, head_dim] = self.shape;
        if repeats == Repeats::Nothing {
            return;
        }
        part.lse
            .iter_mut()
            .for_each(|lse| *lse = lse.clamp(-1e3, 1e3));
        part.o
            .iter_mut()
            .filter(|o| o.is_nan())
            .for_each(|o| *o = 0.5);
        let at = |b: usize, i: usize, h: usize| ((b * seqlen + i) * heads + h) * head_dim;
        for (b, i, h) in (0..batch)
            .flat_map(|b| (0..seqlen).flat_map(move |i| (0..heads).map(move |h| (b, i, h))))
        {
            let from = match repeats {
                Repeats::Nothing => at(b, i, h),
                Repeats::Batch => at(batch - 1, i, h),
                Repeats::Rows => at(b, seqlen - 1, h),
                Repeats::Heads => at(b, i, heads - 1),
            };
            part.o.copy_within(from..from + head_dim, at(b, i, h));
        }
    }
}

/// What the two lse of a row have to do with each other.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Usual,
    Equal,
    Near,
    /// So far apart that one weight is small, or lost.
    Apart(f64),
    Same(f64),
    FirstEmpty,
    SecondEmpty,
    BothEmpty,
    Huge,
    Infinite,
}

/// All kinds; a prime number of them, so that neighbours of any shape differ.
const KINDS: [Kind; 17] = [
    Kind::Usual,
    Kind::FirstEmpty,
    Kind::Equal,
    Kind::SecondEmpty,
    Kind::Near,
    Kind::BothEmpty,
    Kind::Apart(20.0),
    Kind::Apart(-20.0),
    Kind::Usual,
    Kind::Apart(95.0),
    Kind::Apart(-300.0),
    Kind::Huge,
    Kind::Same(1e30),
    Kind::Same(-1e30),
    Kind::Infinite,
    Kind::Same(0.0),
    Kind::Usual,
];

impl Kind {
    fn lse(self, rng: &mut StdRng) -> [f64; 2] {
        let empty = f64::NEG_INFINITY;
        let a: f64 = rng.random_range(-8.0..8.0);
        match self {
            Kind::Usual => [a, rng.random_range(-8.0..8.0)],
            Kind::Equal => [a, a],
            Kind::Near => [a, a * (1.0 + 1e-6)],
            Kind::Apart(distance) => [a, a - distance],
            Kind::Same(lse) => [lse, lse],
            Kind::FirstEmpty => [empty, a],
            Kind::SecondEmpty => [a, empty],
            Kind::BothEmpty => [empty, empty],
            Kind::Huge if a < 0.0 => [-1e30, 1e30],
            Kind::Huge => [1e30, -1e30],
            Kind::Infinite if a < 0.0 => [f64::INFINITY, a],
            Kind::Infinite => [f64::INFINITY, f64::INFINITY],
        }
    }
}

const DTYPES: [Dtype; 3] = [Dtype::Bf16, Dtype::F16, Dtype::F32];

/// Every head_dim that fills a row of lanes in another way, and shapes whose rows end within a block, at its end and behind it; each
/// tensor arranged in another way.
pub fn shapes(seed: u64) -> Vec<MergeCase> {
    let heads = [[1, 1, 1], [1, 32, 1], [2, 33, 3], [5, 1, 7], [1, 130, 2]];
    let mut cases = Vec::new();
    for head_dim in [8, 40, 64, 96, 128, 200, 256] {
        for [batch, seqlen, heads] in heads {
            let n = cases.len();
            cases.push(MergeCase {
                dtype: DTYPES[n % DTYPES.len()],
                shape: [batch, seqlen, heads, head_dim],
                arrangements: [n, n + 1 + n / 4, n + 3].map(|n| ALIGNED[n % ALIGNED.len()]),
                seed: seed.wrapping_add(n as u64),
            });
        }
    }
    cases
}

/// Tensors without elements; strides of 0 in inputs; what kernels do not take.
pub fn edges(seed: u64) -> Vec<MergeCase> {
    use Arrangement::{Bshd, Padded, Repeated, Unaligned};
    let arranged = |shape, arrangements| (shape, arrangements);
    let all = [
        arranged([0, 4, 2, 64], [Bshd; 3]),
        arranged([2, 0, 2, 64], [Unaligned, Bshd, Bshd]),
        arranged([2, 4, 0, 64], [Bshd; 3]),
        arranged([2, 5, 3, 64], [Repeated(Repeats::Batch), Padded, Bshd]),
        arranged([2, 5, 3, 64], [Bshd, Repeated(Repeats::Rows), Padded]),
        arranged(
            [2, 5, 3, 32],
            [Repeated(Repeats::Heads), Repeated(Repeats::Rows), Bshd],
        ),
        arranged([2, 5, 3, 20], [Bshd; 3]),
        arranged([1, 3, 2, 1], [Bshd; 3]),
        arranged([2, 5, 3, 64], [Unaligned, Bshd, Bshd]),
        arranged([2, 5, 3, 64], [Bshd, Unaligned, Bshd]),
        arranged([2, 5, 3, 64], [Bshd, Bshd, Unaligned]),
    ];
    let of = |(n, (shape, arrangements)): (usize, ([usize; 4], [Arrangement; 3]))| {
        DTYPES.map(|dtype| MergeCase {
            dtype,
            shape,
            arrangements,
            seed: seed.wrapping_add(n as u64),
        })
    };
    all.into_iter().enumerate().flat_map(of).collect()
}

/// So many merges of any shape.
pub fn random(n: usize, seed: u64) -> Vec<MergeCase> {
    let mut rng = StdRng::seed_from_u64(seed);
    let of = |_| {
        let dtype = DTYPES[rng.random_range(0..DTYPES.len())];
        let chunk = chunk(dtype);
        MergeCase {
            dtype,
            shape: [
                rng.random_range(1..4),
                rng.random_range(1..70),
                rng.random_range(1..5),
                chunk * rng.random_range(1..=256 / chunk),
            ],
            arrangements: [(); 3].map(|()| ALIGNED[rng.random_range(0..ALIGNED.len())]),
            seed: rng.random(),
        }
    };
    (0..n).map(of).collect()
}

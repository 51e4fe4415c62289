//! Where the numbers come from: random, spaced and adversarial values, each exactly representable in the element type
//! under test, so that the oracle and the backends read the same numbers.

use ferroflash::Dtype;
use half::{bf16, f16};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::buffer::Repeats;
use crate::oracle::Sizes;

/// What the numbers look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Normally distributed, as activations are.
    Normal,
    /// Evenly spaced in [−1, 1], the same in every run.
    Spaced,
    /// Normal, queries six times as large: most of a row's weight lies on one key.
    Peaked,
    /// Queries and keys of ±16 and ±32: scores in the thousands, exact ties, values up to 256.
    Huge,
    /// 2⁻²⁰ times normal: subnormal in f16.
    Tiny,
    /// Queries and keys are +0 and −0: every weight is 1/n.
    Zeros,
    /// All rows of a tensor are equal.
    EqualRows,
    /// Every score is far below 0: a maximum that starts at 0 instead of −∞ shows.
    VeryNegative,
    /// Scores grow along the keys: every tile raises the maximum of every row.
    Rising,
    /// Scores fall along the keys: only the first tile counts.
    Falling,
    /// Scores fall by 2⁻⁴⁰ and more from each step of this many keys to the next, and are nearly equal within one. Who goes through
    /// the keys from the last block down finds that every block outgrows the one before, and that all its keys count.
    Steps {
        /// Keys of a step.
        keys: usize,
    },
    /// All scores are 0, but that of the fourth key is this many sixteenths, to base 2.
    Spike {
        /// Sixteenths.
        log2_16: u16,
    },
}

/// The fills that are not [`Fill::Normal`], but for those that are aimed at one kernel's tiles.
pub const ADVERSARIAL: [Fill; 9] = [
    Fill::Spaced,
    Fill::Peaked,
    Fill::Huge,
    Fill::Tiny,
    Fill::Zeros,
    Fill::EqualRows,
    Fill::VeryNegative,
    Fill::Rising,
    Fill::Falling,
];

/// Whether the loss depends on lse too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LseGradient {
    /// It does not, and no gradient of lse is given.
    Absent,
    /// It does.
    Given,
}

/// The arrays of one problem, dense, in the oracle's layout.
#[derive(Clone, Debug, PartialEq)]
pub struct Values {
    /// Queries.
    pub q: Vec<f64>,
    /// Keys.
    pub k: Vec<f64>,
    /// Values.
    pub v: Vec<f64>,
    /// Gradient of the output.
    pub d_o: Vec<f64>,
    /// Gradient of lse, f32 whatever the element type is.
    pub d_lse: Option<Vec<f64>>,
}

impl Values {
    /// The values of a problem of these sizes, without a gradient of lse; equal seeds give equal values.
    pub fn new(fill: Fill, sizes: Sizes, dtype: Dtype, seed: u64) -> Values {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut values = Values {
            q: normal(&mut rng, sizes.query_elems()),
            k: normal(&mut rng, sizes.key_elems()),
            v: normal(&mut rng, sizes.value_elems()),
            d_o: normal(&mut rng, sizes.output_elems()),
            d_lse: None,
        };
        values.reshape(fill, sizes, &mut rng);
        for array in [&mut values.q, &mut values.k, &mut values.v, &mut values.d_o] {
            array.iter_mut().for_each(|x| *x = round(*x, dtype));
        }
        values
    }

    /// The same with a gradient of lse that is large enough to show in every other gradient: normally distributed, four
    /// times as large as that of o. In rows that see no key it is NaN or infinite: nobody may look at it.
    /// `sees` says which elements of lse see one.
    pub fn with_d_lse(self, sizes: Sizes, sees: impl Fn(usize) -> bool, seed: u64) -> Values {
        let mut rng = StdRng::seed_from_u64(seed.wrapping_add(1 << 32));
        let mut d_lse = normal(&mut rng, sizes.row_elems());
        for (row, x) in d_lse.iter_mut().enumerate() {
            *x = match row % 3 {
                _ if sees(row) => round(4.0 * *x, Dtype::F32),
                0 => f64::NAN,
                1 => f64::INFINITY,
                _ => f64::NEG_INFINITY,
            };
        }
        Values {
            d_lse: Some(d_lse),
            ..self
        }
    }

    /// The same where a stride of 0 repeats entries: every batch entry, row or head is the first one of its tensor.
    pub fn repeated(mut self, repeats: Repeats, sizes: Sizes) -> Values {
        let (of_q, of_k) = (
            (sizes.seqlen_q, sizes.heads_q),
            (sizes.seqlen_k, sizes.heads_k),
        );
        for (array, (seqlen, heads), head_dim) in [
            (&mut self.q, of_q, sizes.head_dim),
            (&mut self.k, of_k, sizes.head_dim),
            (&mut self.v, of_k, sizes.head_dim_v),
            (&mut self.d_o, of_q, sizes.head_dim_v),
        ] {
            let (row, entry) = (heads * head_dim, seqlen * heads * head_dim);
            for at in 0..array.len() {
                let first = match repeats {
                    Repeats::Nothing => at,
                    Repeats::Batch => at % entry,
                    Repeats::Rows => at / entry * entry + at % row,
                    Repeats::Heads => at / row * row + at % head_dim,
                };
                array[at] = array[first];
            }
        }
        self
    }

    /// NaN in these keys and values of every batch entry and head.
    pub fn spoil_keys(&mut self, sizes: Sizes, keys: std::ops::Range<usize>) {
        for (array, columns) in [
            (&mut self.k, sizes.head_dim),
            (&mut self.v, sizes.head_dim_v),
        ] {
            let row_elems = sizes.heads_k * columns;
            for (row, array) in array.chunks_exact_mut(row_elems.max(1)).enumerate() {
                if keys.contains(&(row % sizes.seqlen_k)) {
                    array.fill(f64::NAN);
                }
            }
        }
    }

    /// Turns normally distributed values into those of another fill.
    fn reshape(&mut self, fill: Fill, sizes: Sizes, rng: &mut StdRng) {
        let Values { q, k, v, d_o, .. } = self;
        match fill {
            Fill::Normal => {}
            Fill::Spaced => {
                for (salt, array) in [q, k, v, d_o].into_iter().enumerate() {
                    let n = array.len().max(2) as f64 - 1.0;
                    let stride = [7, 11, 13, 17][salt];
                    let len = array.len();
                    array
                        .iter_mut()
                        .enumerate()
                        .for_each(|(at, x)| *x = 2.0 * ((at * stride) % len) as f64 / n - 1.0);
                }
            }
            Fill::Peaked => q.iter_mut().for_each(|x| *x *= 6.0),
            Fill::Huge => {
                q.iter_mut()
                    .chain(k)
                    .for_each(|x| *x = x.signum() * if rng.random::<bool>() { 16.0 } else { 32.0 });
                v.iter_mut().for_each(|x| *x *= 64.0);
            }
            Fill::Tiny => [q, k, v, d_o]
                .into_iter()
                .flatten()
                .for_each(|x| *x *= 2f64.powi(-20)),
            Fill::Zeros => q.iter_mut().chain(k).for_each(|x| *x *= 0.0),
            Fill::EqualRows => {
                for (array, row_elems) in [
                    (q, sizes.heads_q * sizes.head_dim),
                    (k, sizes.heads_k * sizes.head_dim),
                    (v, sizes.heads_k * sizes.head_dim_v),
                    (d_o, sizes.heads_q * sizes.head_dim_v),
                ] {
                    (row_elems..array.len()).for_each(|at| array[at] = array[at - row_elems]);
                }
            }
            Fill::VeryNegative => {
                q.iter_mut().for_each(|x| *x = x.abs() + 4.0);
                k.iter_mut().for_each(|x| *x = -x.abs() - 4.0);
            }
            Fill::Rising | Fill::Falling => {
                let row_elems = sizes.heads_k * sizes.head_dim;
                q.iter_mut().for_each(|x| *x = x.abs() + 1.0);
                for (at, x) in k.iter_mut().enumerate() {
                    let along = ((at / row_elems) % sizes.seqlen_k) as f64 / sizes.seqlen_k as f64;
                    let ramp = if fill == Fill::Rising {
                        along
                    } else {
                        1.0 - along
                    };
                    *x = 4.0 * ramp + 0.0625 * *x;
                }
            }
            Fill::Steps { keys } => {
                let row_elems = sizes.heads_k * sizes.head_dim;
                // The scale of the scores is 1/√head_dim, so a step is 40 and more.
                let step = 40.0 / (sizes.head_dim as f64).sqrt();
                q.iter_mut().for_each(|x| *x = 1.0 + 0.125 * *x);
                for (at, x) in k.iter_mut().enumerate() {
                    let nth = (at / row_elems) % sizes.seqlen_k / keys;
                    *x = 0.0625 * *x - step * nth as f64;
                }
            }
            Fill::Spike { log2_16 } => {
                let row_elems = sizes.heads_k * sizes.head_dim;
                let score = f64::from(log2_16) / 16.0 * std::f64::consts::LN_2;
                // With queries of 1 and a scale of 1/√head_dim.
                let each = score / (sizes.head_dim as f64).sqrt();
                q.iter_mut().for_each(|x| *x = 1.0);
                for (at, x) in k.iter_mut().enumerate() {
                    let of_spike = (at / row_elems) % sizes.seqlen_k == 3;
                    *x = if of_spike { each } else { 0.0 };
                }
            }
        }
    }
}

/// `n` normally distributed numbers (Box and Muller).
fn normal(rng: &mut StdRng, n: usize) -> Vec<f64> {
    (0..n)
        .map(|_| {
            let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
            radius * (std::f64::consts::TAU * rng.random::<f64>()).cos()
        })
        .collect()
}

/// The nearest value of the element type.
pub fn round(x: f64, dtype: Dtype) -> f64 {
    match dtype {
        Dtype::Bf16 => bf16::from_f64(x).to_f64(),
        Dtype::F16 => f16::from_f64(x).to_f64(),
        Dtype::F32 => f64::from(x as f32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes {
        batch: 2,
        seqlen_q: 5,
        seqlen_k: 7,
        heads_q: 4,
        heads_k: 2,
        head_dim: 8,
        head_dim_v: 8,
    };

    #[test]
    fn values_are_finite_representable_and_depend_on_the_seed_alone() {
        let aimed = [Fill::Steps { keys: 3 }, Fill::Spike { log2_16: 264 }];
        for fill in ADVERSARIAL.into_iter().chain([Fill::Normal]).chain(aimed) {
            for dtype in [Dtype::Bf16, Dtype::F16, Dtype::F32] {
                let values = Values::new(fill, SIZES, dtype, 3);
                assert_eq!(values, Values::new(fill, SIZES, dtype, 3));
                for array in [&values.q, &values.k, &values.v, &values.d_o] {
                    assert!(
                        array.iter().all(|&x| x.is_finite() && round(x, dtype) == x),
                        "{fill:?} {dtype}"
                    );
                }
            }
        }
        assert_ne!(
            Values::new(Fill::Normal, SIZES, Dtype::F32, 3),
            Values::new(Fill::Normal, SIZES, Dtype::F32, 4)
        );
    }

    #[test]
    fn normal_numbers_have_mean_0_and_variance_1() {
        let numbers = normal(&mut StdRng::seed_from_u64(1), 100_000);
        let mean = numbers.iter().sum::<f64>() / 1e5;
        let variance = numbers.iter().map(|x| x * x).sum::<f64>() / 1e5;
        assert!(
            mean.abs() < 0.02 && (variance - 1.0).abs() < 0.02,
            "{mean} {variance}"
        );
    }

    /// The scores of the first query with every key, to base 2.
    fn scores_log2(fill: Fill) -> Vec<f64> {
        let values = Values::new(fill, SIZES, Dtype::F16, 1);
        let row_elems = SIZES.heads_k * SIZES.head_dim;
        let scale = std::f64::consts::LOG2_E / (SIZES.head_dim as f64).sqrt();
        let score = |key: usize| -> f64 {
            let k = &values.k[key * row_elems..][..SIZES.head_dim];
            values.q.iter().zip(k).map(|(q, k)| q * k).sum()
        };
        (0..SIZES.seqlen_k).map(|key| score(key) * scale).collect()
    }

    #[test]
    fn steps_fall_far_and_a_spike_is_as_high_as_it_says() {
        let scores = scores_log2(Fill::Steps { keys: 3 });
        for (key, score) in scores.iter().enumerate() {
            let first = scores[key / 3 * 3];
            assert!((score - first).abs() < 2.0, "{scores:?}");
            assert!(key < 3 || *score < scores[key - 3] - 40.0, "{scores:?}");
        }
        let scores = scores_log2(Fill::Spike { log2_16: 264 });
        assert!((scores[3] - 16.5).abs() < 0.02, "{scores:?}");
        assert_eq!(scores.iter().filter(|&&score| score == 0.0).count(), 6);
    }

    #[test]
    fn repeated_entries_are_the_first_one() {
        let values = Values::new(Fill::Normal, SIZES, Dtype::Bf16, 1);
        let of = |repeats| values.clone().repeated(repeats, SIZES).k;
        let (head, row, entry) = (8, 16, 112);
        assert_eq!(of(Repeats::Nothing), values.k);
        assert_eq!(of(Repeats::Batch)[entry..], values.k[..entry]);
        assert_eq!(
            of(Repeats::Heads)[row + head..][..head],
            values.k[row..][..head]
        );
        let rows = of(Repeats::Rows);
        assert_eq!(rows[entry + 3 * row..][..row], values.k[entry..][..row]);
    }

    #[test]
    fn both_zeros_occur() {
        let values = Values::new(Fill::Zeros, SIZES, Dtype::Bf16, 1);
        let negative = values.q.iter().filter(|x| x.is_sign_negative()).count();
        assert!(values.q.iter().all(|&x| x == 0.0) && 0 < negative && negative < values.q.len());
    }
}

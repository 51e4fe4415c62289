//! What the kernels computed against f64, twice: each kernel against its definition applied to what it was given,
//! which leaves only its own rounding; and the whole pass against attention by its definition.

use ferroflash_kernels::variants::Kind;

use crate::attention::Attention;
use crate::case::{Case, Tensor};

type Matrix = Vec<Vec<f64>>;

/// What f32 accumulation may lose of a sum whose terms' absolute values add up to 1.
const ACCUMULATION: f64 = 1e-6;

/// A sum of products, and the sum of the terms' absolute values.
#[derive(Clone, Copy, Default)]
struct Sum {
    value: f64,
    size: f64,
}

impl Sum {
    fn of(terms: impl Iterator<Item = f64>) -> Sum {
        terms.fold(Sum::default(), |sum, x| Sum {
            value: sum.value + x,
            size: sum.size + x.abs(),
        })
    }
}

#[track_caller]
fn close(what: &str, case: &Case, actual: f64, expected: f64, tolerance: f64) {
    let equal = actual == expected;
    let near = (actual - expected).abs() <= tolerance;
    assert!(
        equal || near,
        "{what}: {actual} instead of {expected} (± {tolerance}) in {case:?}"
    );
}

impl Attention {
    /// One head's scores, whole rows.
    fn score_rows(&self, n: usize) -> Matrix {
        self.rows_of(n, |i| f64::from(self.scores[i]))
    }

    /// One head's weights, whole rows.
    fn weight_rows(&self, n: usize) -> Matrix {
        self.rows_of(n, |i| self.case.to_f64(self.weights[i]))
    }

    fn rows_of(&self, n: usize, number: impl Fn(usize) -> f64) -> Matrix {
        let (rows, cols) = (self.case.seqlen_q as usize, self.case.padded_k());
        let first = n * rows * cols;
        (0..rows)
            .map(|i| (0..cols).map(|j| number(first + i * cols + j)).collect())
            .collect()
    }

    /// The rows of a product that were stored as elements, against sums of products.
    fn check_elements(
        &self,
        what: &str,
        (tensor, batch, head): (&Tensor, usize, usize),
        expected: impl Fn(usize, usize) -> Sum,
    ) {
        for (i, row) in tensor.head(&self.case, batch, head).iter().enumerate() {
            for (d, &x) in row.iter().enumerate() {
                let sum = expected(i, d);
                let tolerance = self.case.unit_roundoff() * sum.value.abs() * 1.001
                    + ACCUMULATION * sum.size
                    + 1e-7;
                close(what, &self.case, x, sum.value, tolerance);
            }
        }
        assert!(
            tensor.gaps_are_untouched(),
            "{what}: written outside in {:?}",
            self.case
        );
    }

    /// What the kernel has just written, from what it read. For dS, `before` is what was there before: P.
    pub fn check(&self, kind: Kind, before: &[u16]) {
        let case = &self.case;
        let scale = case.softmax_scale();
        for (n, b, h, kv) in case.heads() {
            match kind {
                Kind::StandardScores => {
                    let (q, k) = (self.q.head(case, b, h), self.k.head(case, b, kv));
                    self.check_scores(n, |i, j| {
                        let sum = dot(&q[i], &k[j]);
                        if case.sees(i, j) {
                            Sum {
                                value: sum.value * scale,
                                size: sum.size * scale,
                            }
                        } else {
                            Sum {
                                value: f64::NEG_INFINITY,
                                size: 0.0,
                            }
                        }
                    });
                }
                Kind::StandardDWeights => {
                    let (d_o, v) = (self.d_o.head(case, b, h), self.v.head(case, b, kv));
                    self.check_scores(n, |i, j| dot(&d_o[i], &v[j]));
                }
                Kind::StandardSoftmax => self.check_softmax(n),
                Kind::StandardOutput => {
                    let (p, v) = (self.weight_rows(n), self.v.head(case, b, kv));
                    let sum =
                        |i: usize, d: usize| Sum::of(v.iter().zip(&p[i]).map(|(v, p)| p * v[d]));
                    self.check_elements("o", (&self.o, b, h), sum);
                }
                Kind::StandardDelta => {
                    let (o, d_o) = (self.o.head(case, b, h), self.d_o.head(case, b, h));
                    for i in 0..case.seqlen_q as usize {
                        let (sum, d_lse) = (dot(&o[i], &d_o[i]), self.d_lse_of(n, i));
                        let delta = f64::from(self.delta[n * case.seqlen_q as usize + i]);
                        let size = sum.size + d_lse.abs();
                        close("delta", case, delta, sum.value - d_lse, ACCUMULATION * size);
                    }
                }
                Kind::StandardDScores => self.check_d_scores(n, before),
                Kind::StandardDq => {
                    let (d_s, k) = (self.weight_rows(n), self.k.head(case, b, kv));
                    let sum = |i: usize, d: usize| {
                        Sum::of(k.iter().zip(&d_s[i]).map(|(k, x)| x * k[d] * scale))
                    };
                    self.check_elements("d_q", (&self.d_q, b, h), sum);
                }
                Kind::StandardDv => self.check_group("d_v", n, &self.d_v, &self.d_o, 1.0),
                Kind::StandardDk => self.check_group("d_k", n, &self.d_k, &self.q, scale),
                _ => panic!("{kind:?} is no kernel of standard attention"),
            }
        }
    }

    /// The gradient of the lse of a head's row.
    fn d_lse_of(&self, n: usize, i: usize) -> f64 {
        match &self.d_lse {
            Some(d_lse) if self.case.sees_any(i) => {
                f64::from(d_lse[n * self.case.seqlen_q as usize + i])
            }
            _ => 0.0,
        }
    }

    fn check_scores(&self, n: usize, expected: impl Fn(usize, usize) -> Sum) {
        for (i, row) in self.score_rows(n).iter().enumerate() {
            for (j, &s) in row[..self.case.seqlen_k as usize].iter().enumerate() {
                let sum = expected(i, j);
                close("scores", &self.case, s, sum.value, ACCUMULATION * sum.size);
            }
        }
    }

    fn check_softmax(&self, n: usize) {
        let (case, weights) = (&self.case, self.weight_rows(n));
        for (i, s) in self.score_rows(n).iter().enumerate() {
            let max = s.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = s
                .iter()
                .filter(|s| s.is_finite())
                .map(|s| (s - max).exp())
                .sum();
            let lse = max + sum.ln();
            let actual = f64::from(self.lse[n * case.seqlen_q as usize + i]);
            close("lse", case, actual, lse, 1e-6 * (1.0 + lse.abs()));
            for (j, s) in s.iter().enumerate() {
                let p = if s.is_finite() { (s - lse).exp() } else { 0.0 };
                let tolerance = (case.unit_roundoff() * 1.001 + 3e-5) * p + 6e-8;
                let tolerance = if p == 0.0 { 0.0 } else { tolerance };
                close("weights", case, weights[i][j], p, tolerance);
            }
        }
    }

    fn check_d_scores(&self, n: usize, before: &[u16]) {
        let case = &self.case;
        let p = self.rows_of(n, |i| case.to_f64(before[i]));
        let (d_p, d_s) = (self.score_rows(n), self.weight_rows(n));
        for i in 0..case.seqlen_q as usize {
            let delta = f64::from(self.delta[n * case.seqlen_q as usize + i]);
            for j in 0..case.padded_k() {
                let sees = j < case.seqlen_k as usize && case.sees(i, j);
                let expected = if sees {
                    p[i][j] * (d_p[i][j] - delta)
                } else {
                    0.0
                };
                let size = p[i][j] * (d_p[i][j].abs() + delta.abs());
                let tolerance = case.unit_roundoff() * 1.001 * expected.abs() + 1e-6 * size + 6e-8;
                let tolerance = if sees { tolerance } else { 0.0 };
                close("d_s", case, d_s[i][j], expected, tolerance);
            }
        }
    }

    /// dK or dV of the key head of query head `n`, where that is the first of its group.
    fn check_group(&self, what: &str, n: usize, result: &Tensor, tensor: &Tensor, scale: f64) {
        let heads = self.case.heads();
        let (_, b, _, kv) = heads[n];
        let group: Vec<_> = heads
            .iter()
            .filter(|head| (head.1, head.3) == (b, kv))
            .collect();
        if group[0].0 != n {
            return;
        }
        let group: Vec<_> = group
            .iter()
            .map(|&&(n, b, h, _)| (self.weight_rows(n), tensor.head(&self.case, b, h)))
            .collect();
        self.check_elements(what, (result, b, kv), |j, d| {
            let terms = group.iter().flat_map(|(weights, rows)| {
                weights
                    .iter()
                    .zip(rows)
                    .map(move |(w, row)| w[j] * row[d] * scale)
            });
            Sum::of(terms)
        });
    }

    /// The pass as a whole against the definition: relative error of each result in the Frobenius norm.
    pub fn check_whole(&self, results: &Whole) {
        // Rounding of P and dS, and of the result, each at most half a unit; Δ inherits O's.
        let tolerance = 4.0 * self.case.unit_roundoff();
        let case = &self.case;
        let each_q = |tensor: &Tensor| gather(case, tensor, case.heads_q);
        let each_k = |tensor: &Tensor| gather(case, tensor, case.heads_k);
        for (what, actual, expected) in [
            ("o", each_q(&self.o), &results.o),
            ("d_q", each_q(&self.d_q), &results.d_q),
            ("d_k", each_k(&self.d_k), &results.d_k),
            ("d_v", each_k(&self.d_v), &results.d_v),
        ] {
            assert_eq!(actual.len(), expected.len());
            let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
            let error = norm(&mut actual.iter().zip(expected).map(|(a, e)| a - e));
            let size = norm(&mut expected.iter().copied());
            // What is left of a gradient that is exactly 0: f32 accumulation, in each element.
            let floor = ACCUMULATION * (expected.len() as f64).sqrt();
            assert!(
                error <= tolerance * size + floor,
                "{what}: error {error} of {size} in {case:?}"
            );
        }
    }
}

/// All heads' rows, one after the other.
fn gather(case: &Case, tensor: &Tensor, heads: u32) -> Vec<f64> {
    (0..case.batch as usize)
        .flat_map(|b| (0..heads as usize).map(move |h| (b, h)))
        .flat_map(|(b, h)| tensor.head(case, b, h).concat())
        .collect()
}

fn dot(a: &[f64], b: &[f64]) -> Sum {
    Sum::of(a.iter().zip(b).map(|(a, b)| a * b))
}

/// Attention and its gradients by the definition, in f64, head after head.
#[derive(Default)]
pub struct Whole {
    o: Vec<f64>,
    d_q: Vec<f64>,
    d_k: Vec<f64>,
    d_v: Vec<f64>,
}

impl Whole {
    /// From the inputs alone.
    pub fn of(attention: &Attention) -> Whole {
        let case = &attention.case;
        let (cols, keys) = (case.head_dim as usize, case.seqlen_k as usize);
        let per_key_head = (case.batch * case.heads_k) as usize * keys * cols;
        let mut whole = Whole {
            d_k: vec![0.0; per_key_head],
            d_v: vec![0.0; per_key_head],
            ..Whole::default()
        };
        for (n, b, h, kv) in case.heads() {
            let (q, d_o) = (attention.q.head(case, b, h), attention.d_o.head(case, b, h));
            let (k, v) = (attention.k.head(case, b, kv), attention.v.head(case, b, kv));
            let first = (b * case.heads_k as usize + kv) * keys * cols;
            for i in 0..case.seqlen_q as usize {
                let visible: Vec<usize> = (0..keys).filter(|&j| case.sees(i, j)).collect();
                let exp: Vec<f64> = visible
                    .iter()
                    .map(|&j| (dot(&q[i], &k[j]).value * case.softmax_scale()).exp())
                    .collect();
                let sum: f64 = exp.iter().sum();
                let mut o = vec![0.0; cols];
                for (&j, e) in visible.iter().zip(&exp) {
                    (0..cols).for_each(|d| o[d] += e / sum * v[j][d]);
                }
                let delta = dot(&o, &d_o[i]).value - attention.d_lse_of(n, i);
                let mut d_q = vec![0.0; cols];
                for (&j, e) in visible.iter().zip(&exp) {
                    let p = e / sum;
                    let d_s = p * (dot(&d_o[i], &v[j]).value - delta) * case.softmax_scale();
                    for d in 0..cols {
                        d_q[d] += d_s * k[j][d];
                        whole.d_k[first + j * cols + d] += d_s * q[i][d];
                        whole.d_v[first + j * cols + d] += p * d_o[i][d];
                    }
                }
                whole.o.extend(o);
                whole.d_q.extend(d_q);
            }
        }
        whole
    }
}

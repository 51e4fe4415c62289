//! Attention in f64 from the definition, with scores that a function edits.

use ferroflash::expression::ParamValue;
use ferroflash::{
    Attention, Device, Dtype, Gradients, Inputs, OutputGradients, Outputs, Problem, ProblemBuilder,
    ReadTensor, Saved, Tensor, TensorMut,
};

/// Where a score lies.
#[derive(Clone, Copy)]
pub struct At {
    pub batch: usize,
    pub head: usize,
    pub kv_head: usize,
    pub q: i64,
    pub k: i64,
    pub seqlen_q: i64,
    pub seqlen_k: i64,
}

/// The new score with its derivative by the old one; `None` where the key is hidden.
pub type Edited<'f> = &'f dyn Fn(f64, At) -> Option<(f64, f64)>;

/// Sequences, and the sizes that they share.
#[derive(Clone)]
pub struct Sizes {
    pub lens_q: Vec<usize>,
    pub lens_k: Vec<usize>,
    pub heads_q: usize,
    pub heads_k: usize,
    pub head_dim: usize,
}

impl Sizes {
    pub fn packed(&self) -> ProblemBuilder {
        let longest = |lens: &[usize]| lens.iter().copied().max().unwrap();
        self.builder()
            .seqlen_q(longest(&self.lens_q))
            .seqlen_k(longest(&self.lens_k))
            .packed_q(self.lens_q.iter().sum())
            .packed_k(self.lens_k.iter().sum())
    }

    /// Of equal lengths.
    pub fn padded(&self) -> ProblemBuilder {
        self.builder()
            .seqlen_q(self.lens_q[0])
            .seqlen_k(self.lens_k[0])
    }

    fn builder(&self) -> ProblemBuilder {
        Problem::builder(Dtype::F32)
            .batch(self.lens_q.len())
            .heads_q(self.heads_q)
            .heads_k(self.heads_k)
            .head_dim(self.head_dim)
    }
}

/// o, lse and the gradients of q, k and v, the rows of all sequences one behind the other.
pub struct Results {
    pub o: Vec<f64>,
    pub lse: Vec<f64>,
    pub gradients: [Vec<f64>; 3],
}

pub fn values(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((state >> 40) % 256) as f32 / 128.0 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// q, k, v and dO.
pub fn data(sizes: &Sizes) -> [Vec<f32>; 4] {
    let n = |lens: &[usize], heads| lens.iter().sum::<usize>() * heads * sizes.head_dim;
    let (n_q, n_k) = (
        n(&sizes.lens_q, sizes.heads_q),
        n(&sizes.lens_k, sizes.heads_k),
    );
    [
        values(n_q, 1),
        values(n_k, 2),
        values(n_k, 3),
        values(n_q, 4),
    ]
}

/// What attention gives, row by row. lse is `[head, row]` of all rows.
pub fn expected(sizes: &Sizes, data: &[Vec<f32>; 4], scale: f64, edited: Edited) -> Results {
    let d = sizes.head_dim;
    let [q, k, v, d_o] = data.clone().map(|data| {
        let wide: Vec<f64> = data.into_iter().map(f64::from).collect();
        wide
    });
    let total_q: usize = sizes.lens_q.iter().sum();
    let mut results = Results {
        o: vec![0.0; q.len()],
        lse: vec![f64::NEG_INFINITY; total_q * sizes.heads_q],
        gradients: [vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; k.len()]],
    };
    let dot = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
    let (mut first_q, mut first_k) = (0, 0);
    for (batch, (&n_q, &n_k)) in sizes.lens_q.iter().zip(&sizes.lens_k).enumerate() {
        for head in 0..sizes.heads_q {
            let kv_head = head / (sizes.heads_q / sizes.heads_k);
            for i in 0..n_q {
                let row = ((first_q + i) * sizes.heads_q + head) * d;
                let key = |j: usize| ((first_k + j) * sizes.heads_k + kv_head) * d;
                let seen: Vec<(usize, f64, f64)> = (0..n_k)
                    .filter_map(|j| {
                        let at = At {
                            batch,
                            head,
                            kv_head,
                            q: i as i64,
                            k: j as i64,
                            seqlen_q: n_q as i64,
                            seqlen_k: n_k as i64,
                        };
                        let s = dot(&q[row..row + d], &k[key(j)..key(j) + d]) * scale;
                        let (s, slope) = edited(s, at)?;
                        Some((j, s, slope))
                    })
                    .collect();
                if seen.is_empty() {
                    continue;
                }
                let m = seen.iter().fold(f64::NEG_INFINITY, |m, seen| m.max(seen.1));
                let l: f64 = seen.iter().map(|(_, s, _)| (s - m).exp()).sum();
                results.lse[head * total_q + first_q + i] = m + l.ln();
                for &(j, s, _) in &seen {
                    for c in 0..d {
                        results.o[row + c] += (s - m).exp() / l * v[key(j) + c];
                    }
                }
                let delta = dot(&d_o[row..row + d], &results.o[row..row + d]);
                for &(j, s, slope) in &seen {
                    let p = (s - m).exp() / l;
                    let d_p = dot(&d_o[row..row + d], &v[key(j)..key(j) + d]);
                    let d_s = p * (d_p - delta) * slope * scale;
                    let [d_q, d_k, d_v] = &mut results.gradients;
                    for c in 0..d {
                        d_q[row + c] += d_s * k[key(j) + c];
                        d_k[key(j) + c] += d_s * q[row + c];
                        d_v[key(j) + c] += p * d_o[row + c];
                    }
                }
            }
        }
        first_q += n_q;
        first_k += n_k;
    }
    results
}

/// What expressions are given.
#[derive(Clone, Copy, Default)]
pub struct Given<'a> {
    pub params: &'a [(&'a str, ParamValue)],
    pub tensors: &'a [(&'a str, ReadTensor<'a>)],
}

impl<'a> Given<'a> {
    pub fn to(self, mut inputs: Inputs<'a>) -> Inputs<'a> {
        for &(name, value) in self.params {
            inputs = inputs.score_param(name, value);
        }
        for &(name, tensor) in self.tensors {
            inputs = inputs.score_tensor(name, tensor);
        }
        inputs
    }
}

/// Both passes on a device. `complete` adds what the problem takes beside q, k and v.
pub fn computed<'a>(
    device: &Device,
    problem: Problem,
    data: &'a [Vec<f32>; 4],
    complete: impl Fn(Inputs<'a>) -> Inputs<'a>,
) -> Results {
    let [q, k, v, d_o] = data;
    let [shape_q, shape_k] = [problem.shape_q(), problem.shape_k()];
    let tensor = |data: &'a [f32], shape| Tensor::bshd(data, shape).unwrap();
    let inputs = complete(Inputs::new(
        &tensor(q, shape_q),
        &tensor(k, shape_k),
        &tensor(v, shape_k),
    ));
    let attention = Attention::new(device, problem).unwrap();
    let (mut o, mut lse) = (
        vec![f32::NAN; q.len()],
        vec![f32::NAN; problem.shape_lse().iter().product()],
    );
    let mut outputs = Outputs::new(TensorMut::bshd(&mut o, shape_q).unwrap(), &mut lse);
    attention.forward(&inputs, &mut outputs).unwrap();
    let mut gradients = [q, k, v].map(|like| vec![f32::NAN; like.len()]);
    let [d_q, d_k, d_v] = &mut gradients;
    let mut written = Gradients::new(
        TensorMut::bshd(d_q, shape_q).unwrap(),
        TensorMut::bshd(d_k, shape_k).unwrap(),
        TensorMut::bshd(d_v, shape_k).unwrap(),
    );
    let saved = Saved::new(&Tensor::bshd(&o, shape_q).unwrap(), &lse);
    let of_output = OutputGradients::new(&tensor(d_o, shape_q));
    attention
        .backward(&inputs, &saved, &of_output, &mut written)
        .unwrap();
    let wide = |data: Vec<f32>| data.into_iter().map(f64::from).collect();
    Results {
        o: wide(o),
        lse: wide(lse),
        gradients: gradients.map(wide),
    }
}

/// Compares all results; lse of padded sequences is `[batch, head, row]`, of packed ones `[head, row]`.
pub fn compare(sizes: &Sizes, problem: &Problem, given: &Results, expected: &Results) {
    let close = |name: &str, given: &[f64], expected: &[f64]| {
        for (index, (given, expected)) in given.iter().zip(expected).enumerate() {
            let equal = given == expected || (given - expected).abs() < 2e-5;
            assert!(
                equal,
                "{problem:?}: {name}[{index}] is {given}, expected {expected}"
            );
        }
        assert_eq!(given.len(), expected.len());
    };
    close("o", &given.o, &expected.o);
    let lse = match problem.total_q() {
        Some(_) => expected.lse.clone(),
        None => {
            let (n, all) = (sizes.lens_q[0], sizes.lens_q.iter().sum::<usize>());
            let batches = 0..sizes.lens_q.len();
            let rows = batches.flat_map(|batch| {
                (0..sizes.heads_q)
                    .flat_map(move |head| (0..n).map(move |row| head * all + batch * n + row))
            });
            rows.map(|row| expected.lse[row]).collect()
        }
    };
    close("lse", &given.lse, &lse);
    for (name, (given, expected)) in ["d_q", "d_k", "d_v"]
        .into_iter()
        .zip(given.gradients.iter().zip(&expected.gradients))
    {
        close(name, given, expected);
    }
}

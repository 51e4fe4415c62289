//! Runs of the backend on known inputs, and what they must give: attention in f64 from the definition.

use crate::arguments::{Gradients, Inputs, Operands, OutputGradients, Outputs, Saved};
use crate::backend::cpu::machine::Machine;
use crate::backend::cpu::typed;
use crate::dtype::{Dtype, Element};
use crate::problem::{Mask, Problem};
use crate::tensor::{Layout, Tensor, TensorMut};
use crate::validate::Pass;

/// Sizes of one case: batch, heads_q, heads_k, seqlen_q, seqlen_k, head_dim.
pub(super) type Shape = [usize; 6];

pub(super) fn problem<T: Element>(
    [batch, heads_q, heads_k, seqlen_q, seqlen_k, head_dim]: Shape,
    mask: Mask,
) -> Problem {
    let problem = Problem::builder(T::DTYPE)
        .batch(batch)
        .heads_q(heads_q)
        .heads_k(heads_k)
        .head_dim(head_dim);
    problem
        .seqlen_q(seqlen_q)
        .seqlen_k(seqlen_k)
        .mask(mask)
        .build()
        .unwrap()
}

/// Values in [−2, 2), a multiple of 2⁻⁶ each: exact in every element type.
fn values<T: Element>(n: usize, seed: u64) -> Vec<T> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        T::from_f32(((state >> 40) % 256) as f32 / 64.0 - 2.0)
    };
    (0..n).map(|_| next()).collect()
}

/// Everything that goes in and comes out, each with its layout.
pub(super) struct Run<T> {
    pub(super) problem: Problem,
    layout_q: Layout,
    layout_k: Layout,
    pub(super) inputs: [Vec<T>; 4],
    /// Gradient of lse; `None` at first.
    pub(super) d_lse: Option<Vec<f32>>,
    pub(super) o: Vec<T>,
    pub(super) lse: Vec<f32>,
    pub(super) gradients: [Vec<T>; 3],
}

/// q, k and v of a run.
fn inputs<T: Element>(data: &[Vec<T>; 4], layout_q: Layout, layout_k: Layout) -> Inputs<'_> {
    let [q, k, v, _] = data;
    Inputs::new(
        &Tensor::strided(q, layout_q).unwrap(),
        &Tensor::strided(k, layout_k).unwrap(),
        &Tensor::strided(v, layout_k).unwrap(),
    )
}

impl<T: Element> Run<T> {
    /// Contiguous `[batch, seqlen, heads, head_dim]`.
    pub(super) fn contiguous(problem: Problem) -> Run<T> {
        let (layout_q, layout_k) = (
            Layout::bshd(problem.shape_q()),
            Layout::bshd(problem.shape_k()),
        );
        Run::with_layouts(problem, layout_q.unwrap(), layout_k.unwrap())
    }

    /// Values lie where the layout says; everything else is NaN.
    pub(super) fn with_layouts(problem: Problem, layout_q: Layout, layout_k: Layout) -> Run<T> {
        let place = |layout: Layout, seed| {
            let mut data = nan(layout);
            for (offset, value) in offsets(layout)
                .into_iter()
                .zip(values(layout.n_elems().unwrap(), seed))
            {
                data[offset] = value;
            }
            data
        };
        let inputs = [
            place(layout_q, 1),
            place(layout_k, 2),
            place(layout_k, 3),
            place(layout_q, 4),
        ];
        let lse = vec![f32::NAN; problem.batch() * problem.heads_q() * problem.seqlen_q()];
        let gradients = [nan(layout_q), nan(layout_k), nan(layout_k)];
        Run {
            problem,
            layout_q,
            layout_k,
            inputs,
            d_lse: None,
            o: nan(layout_q),
            lse,
            gradients,
        }
    }

    /// Gives the rows that see a key a gradient of lse, and all others NaN.
    pub(super) fn with_d_lse(mut self) -> Run<T> {
        let d_lse = values::<f32>(self.lse.len(), 5).into_iter().enumerate();
        let p = &self.problem;
        let sees_none = |i: usize| !(0..p.seqlen_k()).any(|j| sees(p, i, j));
        let of_row = |(row, x): (usize, f32)| {
            if sees_none(row % p.seqlen_q()) {
                f32::NAN
            } else {
                x
            }
        };
        self.d_lse = Some(d_lse.map(of_row).collect());
        self
    }

    pub(super) fn forward(&mut self, machine: Machine) {
        let inputs = inputs(&self.inputs, self.layout_q, self.layout_k);
        let o = TensorMut::strided(&mut self.o, self.layout_q).unwrap();
        let mut outputs = Outputs::new(o, &mut self.lse);
        let mut operands = Operands::forward(&inputs, &mut outputs);
        typed::<T>(machine, &self.problem, Pass::Forward, &mut operands).unwrap();
    }

    pub(super) fn backward(&mut self, machine: Machine) {
        let inputs = inputs(&self.inputs, self.layout_q, self.layout_k);
        let saved = Saved::new(&Tensor::strided(&self.o, self.layout_q).unwrap(), &self.lse);
        let mut of_output =
            OutputGradients::new(&Tensor::strided(&self.inputs[3], self.layout_q).unwrap());
        of_output.d_lse = self.d_lse.as_ref().map(Into::into);
        let [d_q, d_k, d_v] = &mut self.gradients;
        let mut gradients = Gradients::new(
            TensorMut::strided(d_q, self.layout_q).unwrap(),
            TensorMut::strided(d_k, self.layout_k).unwrap(),
            TensorMut::strided(d_v, self.layout_k).unwrap(),
        );
        let mut operands = Operands::backward(&inputs, &saved, &of_output, &mut gradients);
        typed::<T>(machine, &self.problem, Pass::Backward, &mut operands).unwrap();
    }

    /// Compares everything with f64.
    pub(super) fn check(&self) {
        let expected = expect(self);
        let q_like = offsets(self.layout_q);
        let k_like = offsets(self.layout_k);
        self.compare("o", &self.o, &q_like, &expected.o);
        for (index, (lse, expected)) in self.lse.iter().zip(&expected.lse).enumerate() {
            let equal = lse == expected || (f64::from(*lse) - f64::from(*expected)).abs() < 4e-6;
            assert!(
                equal,
                "{:?}: lse[{index}] is {lse}, expected {expected}",
                self.problem
            );
        }
        let names = [("d_q", &q_like), ("d_k", &k_like), ("d_v", &k_like)];
        for ((name, like), (given, expected)) in names
            .iter()
            .zip(self.gradients.iter().zip(&expected.gradients))
        {
            self.compare(name, given, like, expected);
        }
    }

    /// At most one rounding of the element type and f32's errors over sums of this size.
    fn compare(&self, name: &str, given: &[T], offsets: &[usize], expected: &[f64]) {
        let largest = expected
            .iter()
            .fold(1.0f64, |largest, x| largest.max(x.abs()));
        for (index, (&offset, &expected)) in offsets.iter().zip(expected).enumerate() {
            let given = f64::from(given[offset].to_f32());
            let rounding = (f64::from(T::from_f32(expected as f32).to_f32()) - expected).abs();
            let allowed = 1.01 * rounding + 3e-6 * largest + step::<T>(expected);
            let error = (given - expected).abs();
            assert!(
                error <= allowed,
                "{:?}: {name}[{index}] is {given}, expected {expected}",
                self.problem
            );
        }
        let written = given
            .iter()
            .filter(|value| !value.to_f32().is_nan())
            .count();
        assert_eq!(
            written,
            offsets.len(),
            "{:?}: {name} was written outside its rows",
            self.problem
        );
    }
}

/// Half a unit in the last place: a value next to a tie may round the other way.
fn step<T: Element>(value: f64) -> f64 {
    let bits = match T::DTYPE {
        Dtype::Bf16 => 8,
        Dtype::F16 => 11,
        Dtype::F32 => return 0.0,
    };
    value.abs() * 0.5f64.powi(bits)
}

fn nan<T: Element>(layout: Layout) -> Vec<T> {
    vec![T::from_f32(f32::NAN); layout.extent_elems().unwrap()]
}

/// Where the elements lie, in the order [batch, seqlen, heads, head_dim].
fn offsets(layout: Layout) -> Vec<usize> {
    let [batch, seqlen, heads, head_dim] = layout.shape();
    let at = |index: usize| {
        let (index, column) = (index / head_dim, index % head_dim);
        let (index, head) = (index / heads, index % heads);
        let (batch_idx, row) = (index / seqlen, index % seqlen);
        batch_idx * layout.batch_stride
            + row * layout.row_stride
            + head * layout.head_stride
            + column
    };
    (0..batch * seqlen * heads * head_dim).map(at).collect()
}

/// The right results, in the order [batch, seqlen, heads, head_dim]; lse as it is.
pub(super) struct Expected {
    o: Vec<f64>,
    pub(super) lse: Vec<f32>,
    gradients: [Vec<f64>; 3],
}

/// Attention from the definition, one row at a time. Δ is taken from the o that the forward pass gave.
pub(super) fn expect<T: Element>(run: &Run<T>) -> Expected {
    let p = &run.problem;
    let wide = |data: &[T], layout| -> Vec<f64> {
        offsets(layout)
            .into_iter()
            .map(|offset| f64::from(data[offset].to_f32()))
            .collect()
    };
    let [q, k, v, d_o] = &run.inputs;
    let (q, k, v) = (
        wide(q, run.layout_q),
        wide(k, run.layout_k),
        wide(v, run.layout_k),
    );
    let (d_o, o_given) = (wide(d_o, run.layout_q), wide(&run.o, run.layout_q));
    let d = p.head_dim();
    let dot = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
    let mut o = vec![0.0; q.len()];
    let mut lse = vec![f32::NEG_INFINITY; run.lse.len()];
    let (mut d_q, mut d_k, mut d_v) = (vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; k.len()]);
    let scale = f64::from(p.scale());
    for row in 0..p.batch() * p.seqlen_q() * p.heads_q() {
        let (head, i) = (row % p.heads_q(), row / p.heads_q() % p.seqlen_q());
        let batch_idx = row / p.heads_q() / p.seqlen_q();
        let at = row * d..(row + 1) * d;
        let sees = |j: &usize| sees(p, i, *j);
        let key = |j: usize| {
            let start = ((batch_idx * p.seqlen_k() + j) * p.heads_k()
                + head / (p.heads_q() / p.heads_k()))
                * d;
            start..start + d
        };
        let scores: Vec<f64> = (0..p.seqlen_k())
            .filter(sees)
            .map(|j| dot(&q[at.clone()], &k[key(j)]) * scale)
            .collect();
        let m = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let l: f64 = scores.iter().map(|s| (s - m).exp()).sum();
        if scores.is_empty() {
            continue;
        }
        let lse_at = (batch_idx * p.heads_q() + head) * p.seqlen_q() + i;
        lse[lse_at] = (m + l.ln()) as f32;
        let d_lse = run.d_lse.as_ref().map_or(0.0, |d_lse| d_lse[lse_at]);
        let delta = dot(&d_o[at.clone()], &o_given[at.clone()]);
        for (j, s) in scores.iter().enumerate() {
            let weight = (s - m).exp() / l;
            let d_p = dot(&d_o[at.clone()], &v[key(j)]);
            let d_s = weight * (d_p - delta + f64::from(d_lse)) * scale;
            for c in 0..d {
                o[at.start + c] += weight * v[key(j).start + c];
                d_q[at.start + c] += d_s * k[key(j).start + c];
                d_k[key(j).start + c] += d_s * q[at.start + c];
                d_v[key(j).start + c] += weight * d_o[at.start + c];
            }
        }
    }
    Expected {
        o,
        lse,
        gradients: [d_q, d_k, d_v],
    }
}

/// Whether query `i` sees key `j`, by the definition.
fn sees(p: &Problem, i: usize, j: usize) -> bool {
    let place = (i + p.seqlen_k()) as i128 - p.seqlen_q() as i128;
    let (left, right) = p.mask().window();
    let by_window = right.is_none_or(|n| j as i128 <= place + n as i128)
        && left.is_none_or(|n| j as i128 >= place - n as i128);
    by_window || j < p.mask().prefix()
}

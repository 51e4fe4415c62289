//! Attention by candle's own operations, in f32 on the CPU: what the tests compare with, forward and by candle's autograd.
#![allow(dead_code, reason = "each test takes its part")]

use candle_core::{D, DType, Device, Result, Tensor, Var};
use candle_ferroflash::Error;

/// Sizes and mask of a problem.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub batch: usize,
    pub seqlen_q: usize,
    pub seqlen_k: usize,
    pub heads_q: usize,
    pub heads_k: usize,
    pub head_dim: usize,
    pub left: Option<usize>,
    pub right: Option<usize>,
}

impl Case {
    /// Some sizes without a mask: two sequences, grouped heads.
    pub const PLAIN: Case = Case {
        batch: 2,
        seqlen_q: 37,
        seqlen_k: 37,
        heads_q: 4,
        heads_k: 2,
        head_dim: 16,
        left: None,
        right: None,
    };

    pub fn scale(self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }

    /// Variables q, k and v of this type; their values are those of the type.
    pub fn variables(self, dtype: DType) -> Result<[Var; 3]> {
        let q = (self.batch, self.seqlen_q, self.heads_q, self.head_dim);
        let k = (self.batch, self.seqlen_k, self.heads_k, self.head_dim);
        Ok([
            variable(q, 1, dtype)?,
            variable(k, 2, dtype)?,
            variable(k, 3, dtype)?,
        ])
    }

    /// Weights of a loss over o, so that every element has a gradient of its own.
    pub fn weights(self, dtype: DType) -> Result<Tensor> {
        let shape = (self.batch, self.seqlen_q, self.heads_q, self.head_dim);
        numbers(shape, 4)?.to_dtype(dtype)
    }
}

/// Numbers between −1 and 1, the same each time.
pub fn numbers(shape: impl Into<candle_core::Shape>, seed: u64) -> Result<Tensor> {
    let shape = shape.into();
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 / (1u64 << 24) as f32) * 2.0 - 1.0
    };
    let numbers: Vec<f32> = (0..shape.elem_count()).map(|_| next()).collect();
    Tensor::from_vec(numbers, shape, &Device::Cpu)
}

/// A variable with [`numbers`], rounded to a type.
pub fn variable(shape: impl Into<candle_core::Shape>, seed: u64, dtype: DType) -> Result<Var> {
    Var::from_tensor(&numbers(shape, seed)?.to_dtype(dtype)?)
}

/// The same values in f32, as a variable of its own.
pub fn widened(variable: &Var) -> Result<Var> {
    Var::from_tensor(&variable.as_tensor().detach().to_dtype(DType::F32)?)
}

/// o and lse of `[batch, seqlen, heads, head_dim]`, f32, by matmul and softmax. Rows that see no key give 0 and −∞.
pub fn naive(q: &Tensor, k: &Tensor, v: &Tensor, case: Case) -> Result<(Tensor, Tensor)> {
    naive_edited(q, k, v, case, Ok)
}

/// The same, with something done to the scores, `[batch, heads, seqlen_q, seqlen_k]`.
pub fn naive_edited(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    case: Case,
    edit: impl FnOnce(Tensor) -> Result<Tensor>,
) -> Result<(Tensor, Tensor)> {
    naive_beside(q, k, v, case, edit, None, None)
}

/// The same with sinks, `[heads_q]`, which want every row to see a key, and with factors of the weights, `[batch, heads, seqlen_q, seqlen_k]`.
pub fn naive_beside(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    case: Case,
    edit: impl FnOnce(Tensor) -> Result<Tensor>,
    sinks: Option<&Tensor>,
    factors: Option<&Tensor>,
) -> Result<(Tensor, Tensor)> {
    let (batch, n_q, heads_q, head_dim) = q.dims4()?;
    let (_, n_k, heads_k, _) = k.dims4()?;
    let repeat = |x: &Tensor| -> Result<Tensor> {
        let group = heads_q / heads_k;
        x.unsqueeze(3)?
            .broadcast_as((batch, n_k, heads_k, group, head_dim))?
            .reshape((batch, n_k, heads_q, head_dim))?
            .transpose(1, 2)?
            .contiguous()
    };
    let (q, k, v) = (q.transpose(1, 2)?.contiguous()?, repeat(k)?, repeat(v)?);
    let scores = (q.matmul(&k.transpose(2, 3)?.contiguous()?)? * f64::from(case.scale()))?;
    let scores = edit(scores)?;

    let visible = |i: usize, j: usize| {
        let (place, j) = (i as i128 + n_k as i128 - n_q as i128, j as i128);
        case.left.is_none_or(|n| j >= place - n as i128)
            && case.right.is_none_or(|n| j <= place + n as i128)
    };
    let pairs = (0..n_q).flat_map(|i| (0..n_k).map(move |j| (i, j)));
    let hidden: Vec<f32> = pairs
        .map(|(i, j)| if visible(i, j) { 0.0 } else { -1e30 })
        .collect();
    let sees: Vec<f32> = (0..n_q)
        .map(|i| f32::from(u8::from((0..n_k).any(|j| visible(i, j)))))
        .collect();
    let hidden = Tensor::from_vec(hidden, (1, 1, n_q, n_k), &Device::Cpu)?;
    let sees = Tensor::from_vec(sees, (1, 1, n_q, 1), &Device::Cpu)?;

    let scores = scores.broadcast_add(&hidden)?;
    let max = scores.max_keepdim(D::Minus1)?.detach();
    let exponentials = scores.broadcast_sub(&max)?.exp()?;
    let sums = exponentials.sum_keepdim(D::Minus1)?;
    let sums = match sinks {
        Some(sinks) => {
            let sinks = sinks.reshape((1, heads_q, 1, 1))?;
            (sums + sinks.broadcast_sub(&max)?.exp()?)?
        }
        None => sums,
    };
    let weights = exponentials.broadcast_div(&sums)?.broadcast_mul(&sees)?;
    let weights = match factors {
        Some(factors) => (weights * factors)?,
        None => weights,
    };
    let o = weights.matmul(&v)?.transpose(1, 2)?.contiguous()?;
    let lse = (sums.log()? + max)?;
    let lse = lse.broadcast_add(&sees.log()?.detach())?;
    Ok((o, lse.squeeze(3)?))
}

/// The largest difference of two tensors, as f32; NaN differs from all, equal infinities do not.
pub fn difference(a: &Tensor, b: &Tensor) -> Result<f32> {
    assert_eq!(a.dims(), b.dims());
    let flat = |x: &Tensor| x.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>();
    let differ = |(a, b): (f32, f32)| if a == b { 0.0 } else { (a - b).abs() };
    let differences = flat(a)?.into_iter().zip(flat(b)?).map(differ);
    Ok(differences.fold(0.0, |most, d| {
        if d.is_nan() {
            f32::INFINITY
        } else {
            f32::max(most, d)
        }
    }))
}

/// Fails where two tensors differ by more than `most` in an element.
#[track_caller]
pub fn assert_close(what: &str, a: &Tensor, b: &Tensor, most: f32) {
    let found = difference(a, b).unwrap();
    assert!(found <= most, "{what}: differs by {found}, allowed {most}");
}

/// What the error says; it has to be one of ours.
#[track_caller]
pub fn refusal<T: std::fmt::Debug>(result: Result<T>) -> String {
    let error = result.expect_err("a refusal");
    let text = Error::of(&error).expect("an error of ours").to_string();
    assert!(
        error.to_string().contains(&text),
        "candle prints it: {error}"
    );
    text
}

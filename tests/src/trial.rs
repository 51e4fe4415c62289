//! One case on one device: memory is laid out, both passes run, every result is compared.

use ferroflash::error::PlanError;
use ferroflash::plan::Outcome;
use ferroflash::{
    Algorithm, Attention, Device, Dtype, Element, Error, Gradients, Order, OutputGradients, Saved,
};
use half::{bf16, f16};

use crate::buffer::{Buffer, Repeats};
use crate::cases::Case;
use crate::compare::{Closeness, Comparison, Errors};
use crate::inputs::{Fill, Values};
use crate::oracle::{self, Condition, Inputs, Output, Terms};
use crate::tolerance::Quantity;

/// What a device computed, dense.
#[derive(Clone, Debug, PartialEq)]
pub struct Results {
    /// o and lse.
    pub output: Output,
    /// d_q, d_k and d_v.
    pub gradients: oracle::Gradients,
    /// The kernels of the forward pass.
    pub forward_kernels: Vec<&'static str>,
    /// The kernels of the backward pass.
    pub backward_kernels: Vec<&'static str>,
}

/// What it should have computed.
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
    /// o and lse.
    pub output: Output,
    /// d_q, d_k and d_v.
    pub gradients: oracle::Gradients,
    /// What their errors are measured against.
    pub condition: Condition,
}

/// Why there is nothing to compare.
#[derive(Clone, Debug, PartialEq)]
pub enum Refusal {
    /// The algorithm says that it cannot serve this problem on this device, and why.
    NotEligible(String),
    /// It failed, or wrote where it must not.
    Failed(String),
}

/// Gives `f` what the oracle takes of a case.
pub fn with_inputs<R>(
    case: &Case,
    values: &Values,
    softmax_scale: f32,
    f: impl FnOnce(&Inputs) -> R,
) -> R {
    let visible = oracle::band(case.sizes, case.mask.window());
    let Values { q, k, v, .. } = values;
    f(&Inputs {
        sizes: case.sizes,
        q,
        k,
        v,
        softmax_scale: softmax_scale.into(),
        visible: &visible,
    })
}

impl Reference {
    /// By the oracle.
    pub fn new(case: &Case, values: &Values, softmax_scale: f32) -> Reference {
        with_inputs(case, values, softmax_scale, |inputs| {
            let output = oracle::forward(inputs);
            let (d_o, d_lse) = (&values.d_o, values.d_lse.as_deref());
            let gradients = oracle::backward(inputs, d_o, d_lse);
            let condition = oracle::condition(inputs, &output, d_o, d_lse);
            Reference {
                output,
                gradients,
                condition,
            }
        })
    }

    /// Compares all five results; the error lists every one that is beyond tolerance.
    pub fn judge(&self, case: &Case, results: &Results) -> Result<Closeness, String> {
        let sizes = case.sizes;
        let like_q = [sizes.batch, sizes.seqlen_q, sizes.heads_q, sizes.head_dim];
        let like_k = [sizes.batch, sizes.seqlen_k, sizes.heads_k, sizes.head_dim];
        let like_lse = [sizes.batch, sizes.heads_q, sizes.seqlen_q, 1];
        let of_row = sizes.seqlen_k;
        let of_column = sizes.seqlen_q * sizes.heads_q.checked_div(sizes.heads_k).unwrap_or(0);
        let rows_are_equal =
            case.fill == Fill::EqualRows || case.arrangement.repeats() == Repeats::Rows;
        let errors = if rows_are_equal {
            Errors::Shared
        } else {
            Errors::Independent
        };
        let score = self.condition.score;
        let compare = |quantity, shape, n_terms, actual, reference, terms| {
            Comparison {
                quantity,
                dtype: case.dtype,
                shape,
                actual,
                reference,
                terms,
                n_terms,
                score,
                errors,
            }
            .check()
        };
        let (ours, theirs, condition) = (&results.gradients, &self.gradients, &self.condition);
        let of_lse = Terms::uniform(self.output.lse.len(), 1.0, 0.0);
        let checks = [
            compare(
                Quantity::O,
                like_q,
                of_row,
                &results.output.o,
                &self.output.o,
                &condition.o,
            ),
            compare(
                Quantity::Lse,
                like_lse,
                of_row,
                &results.output.lse,
                &self.output.lse,
                &of_lse,
            ),
            compare(
                Quantity::DQ,
                like_q,
                of_row,
                &ours.d_q,
                &theirs.d_q,
                &condition.d_q,
            ),
            compare(
                Quantity::DK,
                like_k,
                of_column,
                &ours.d_k,
                &theirs.d_k,
                &condition.d_k,
            ),
            compare(
                Quantity::DV,
                like_k,
                of_column,
                &ours.d_v,
                &theirs.d_v,
                &condition.d_v,
            ),
        ];
        let mut closest = Closeness::default();
        let mut mismatches = Vec::new();
        for check in checks {
            match check {
                Ok(close) => {
                    closest = Closeness {
                        worst: closest.worst.max(close.worst),
                        rms: closest.rms.max(close.rms),
                    };
                }
                Err(mismatch) => mismatches.push(mismatch.to_string()),
            }
        }
        if mismatches.is_empty() {
            Ok(closest)
        } else {
            Err(mismatches.join("\n"))
        }
    }
}

/// Both passes of a case.
pub fn run(
    case: &Case,
    values: &Values,
    device: &Device,
    algorithm: Algorithm,
    order: Order,
) -> Result<Results, Refusal> {
    match case.dtype {
        Dtype::Bf16 => typed::<bf16>(case, values, device, algorithm, order),
        Dtype::F16 => typed::<f16>(case, values, device, algorithm, order),
        Dtype::F32 => typed::<f32>(case, values, device, algorithm, order),
    }
}

fn typed<T: Element>(
    case: &Case,
    values: &Values,
    device: &Device,
    algorithm: Algorithm,
    order: Order,
) -> Result<Results, Refusal> {
    let refusal = |error| refusal(error, algorithm);
    let broken = |error: ferroflash::error::ProblemError| Refusal::Failed(error.to_string());
    let mut problem = case.problem().map_err(broken)?;
    problem.order = order;
    let (like_q, like_k) = (problem.shape_q(), problem.shape_k());
    let filled = |values: &[f64], shape| {
        Buffer::<T>::filled(values, shape, case.arrangement).map_err(broken)
    };
    let outputs = case.arrangement.of_outputs();
    let unwritten = |shape| Buffer::<T>::unwritten(shape, outputs).map_err(broken);
    let inputs = [
        filled(&values.q, like_q)?,
        filled(&values.k, like_k)?,
        filled(&values.v, like_k)?,
        filled(&values.d_o, like_q)?,
    ];
    let view = |at: usize| inputs[at].view().map_err(broken);
    let (q, k, v, d_o) = (view(0)?, view(1)?, view(2)?, view(3)?);
    let d_lse = values.d_lse.as_deref().map(Rows::filled);
    let attention = Attention::new(device, problem)
        .map_err(refusal)?
        .with_algorithm(algorithm);

    let mut o = unwritten(like_q)?;
    let mut rows = Rows::unwritten(case.sizes.row_elems());
    let mut o_view = o.view_mut().map_err(broken)?;
    let forward = attention
        .forward(&q, &k, &v, &mut o_view, &mut rows.slice_mut().into())
        .map_err(refusal)?;

    let (mut d_q, mut d_k, mut d_v) = (unwritten(like_q)?, unwritten(like_k)?, unwritten(like_k)?);
    let saved = Saved {
        q,
        k,
        v,
        o: o.view().map_err(broken)?,
        lse: rows.slice().into(),
    };
    let mut gradients = Gradients {
        d_q: d_q.view_mut().map_err(broken)?,
        d_k: d_k.view_mut().map_err(broken)?,
        d_v: d_v.view_mut().map_err(broken)?,
    };
    let of_output = OutputGradients {
        d_o,
        d_lse: d_lse.as_ref().map(|d_lse| d_lse.slice().into()),
    };
    let backward = attention
        .backward(&saved, of_output, &mut gradients)
        .map_err(refusal)?;

    let [q, k, v, d_o] = &inputs;
    for (name, tensor) in [
        ("q", q),
        ("k", k),
        ("v", v),
        ("d_o", d_o),
        ("o", &o),
        ("d_q", &d_q),
        ("d_k", &d_k),
        ("d_v", &d_v),
    ] {
        if let Some(distance) = tensor.strayed() {
            return Err(Refusal::Failed(format!(
                "element {distance} of the memory of {name} was written to"
            )));
        }
    }
    if rows.strayed() {
        return Err(Refusal::Failed("memory beside lse was written to".into()));
    }
    Ok(Results {
        output: Output {
            o: o.values(),
            lse: rows.slice().iter().copied().map(f64::from).collect(),
        },
        gradients: oracle::Gradients {
            d_q: d_q.values(),
            d_k: d_k.values(),
            d_v: d_v.values(),
        },
        forward_kernels: forward.kernels,
        backward_kernels: backward.kernels,
    })
}

/// A planner that refuses says why; everything else is a failure.
fn refusal(error: Error, algorithm: Algorithm) -> Refusal {
    match &error {
        Error::Plan(PlanError::NoCandidate { candidates, .. }) => {
            let reason = candidates
                .iter()
                .find_map(|candidate| match &candidate.outcome {
                    Outcome::Refused(reason) if candidate.algorithm == algorithm => {
                        Some(reason.to_string())
                    }
                    _ => None,
                });
            reason.map_or_else(|| Refusal::Failed(error.to_string()), Refusal::NotEligible)
        }
        _ => Refusal::Failed(error.to_string()),
    }
}

/// lse or its gradient, with NaN on both sides.
struct Rows(Vec<f32>);

impl Rows {
    const MARGIN: usize = 8;

    fn unwritten(n: usize) -> Rows {
        Rows(vec![f32::NAN; n + 2 * Rows::MARGIN])
    }

    fn filled(values: &[f64]) -> Rows {
        let mut rows = Rows::unwritten(values.len());
        for (row, &value) in rows.slice_mut().iter_mut().zip(values) {
            *row = value as f32;
        }
        rows
    }

    fn slice(&self) -> &[f32] {
        &self.0[Rows::MARGIN..self.0.len() - Rows::MARGIN]
    }

    fn slice_mut(&mut self) -> &mut [f32] {
        let end = self.0.len() - Rows::MARGIN;
        &mut self.0[Rows::MARGIN..end]
    }

    fn strayed(&self) -> bool {
        let (front, back) = (
            &self.0[..Rows::MARGIN],
            &self.0[self.0.len() - Rows::MARGIN..],
        );
        front.iter().chain(back).any(|x| !x.is_nan())
    }
}

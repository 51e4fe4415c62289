//! One case on one device: memory is laid out, both passes run, every result is compared.

use ferroflash::arguments::Argument;
use ferroflash::error::PlanError;
use ferroflash::plan::{Outcome, SpecialisedKernel};
use ferroflash::{
    Algorithm, Attention, Device, Dtype, Element, Error, Gradients, Inputs, Order, OutputGradients,
    Outputs, Problem, Saved,
};
use half::{bf16, f16};

use crate::blocks::Table;
use crate::buffer::{Buffer, Number};
use crate::cases::Case;
use crate::edits::Edits;
use crate::edits::memory::Unwritten;
use crate::inputs::Values;
use crate::oracle::{self, Output};

/// What a device computed, dense.
#[derive(Clone, Debug, PartialEq)]
pub struct Results {
    /// o and lse.
    pub output: Output,
    /// d_q, d_k, d_v and d_sinks.
    pub gradients: oracle::Gradients,
    /// Of the tensors that a score reads, those that have one.
    pub tensors: Vec<Vec<f64>>,
    /// The kernels of the forward pass.
    pub forward_kernels: Vec<SpecialisedKernel>,
    /// The kernels of the backward pass.
    pub backward_kernels: Vec<SpecialisedKernel>,
}

/// Why there is nothing to compare.
#[derive(Clone, Debug, PartialEq)]
pub enum Refusal {
    /// The algorithm says that it cannot serve this problem on this device, and why.
    NotEligible(String),
    /// It failed, or wrote where it must not.
    Failed(String),
}

/// Both passes of a case.
pub fn run(
    case: &Case,
    values: &Values,
    device: &Device,
    algorithm: Algorithm,
    order: Order,
) -> Result<Results, Refusal> {
    run_edited(case, values, None, device, algorithm, order)
}

/// Both passes of a case whose scores are edited.
pub fn run_edited(
    case: &Case,
    values: &Values,
    edits: Option<&Edits>,
    device: &Device,
    algorithm: Algorithm,
    order: Order,
) -> Result<Results, Refusal> {
    match case.dtype {
        Dtype::Bf16 => typed::<bf16>(case, values, edits, device, algorithm, order),
        Dtype::F16 => typed::<f16>(case, values, edits, device, algorithm, order),
        Dtype::F32 => typed::<f32>(case, values, edits, device, algorithm, order),
    }
}

fn typed<T: Element + Number>(
    case: &Case,
    values: &Values,
    edits: Option<&Edits>,
    device: &Device,
    algorithm: Algorithm,
    order: Order,
) -> Result<Results, Refusal> {
    let refusal = |error| refusal(error, algorithm);
    let broken = |error: ferroflash::error::ProblemError| Refusal::Failed(error.to_string());
    let problem = problem_of(case, edits, order).map_err(broken)?;
    let memory = edits.map(Edits::memory).unwrap_or_default();
    let (like_q, like_k) = (problem.shape_q(), problem.shape_k());
    let (like_v, like_o) = (problem.shape_v(), problem.shape_o());
    let filled = |values: &[f64], shape| {
        Buffer::<T>::filled(values, shape, case.arrangement).map_err(broken)
    };
    let outputs = case.arrangement.of_outputs();
    let unwritten = |shape| Buffer::<T>::unwritten(shape, outputs).map_err(broken);
    let inputs = [
        filled(&values.q, like_q)?,
        filled(&values.k, like_k)?,
        filled(&values.v, like_v)?,
        filled(&values.d_o, like_o)?,
    ];
    let view = |at: usize| inputs[at].view().map_err(broken);
    let mut given = Inputs::new(&view(0)?, &view(1)?, &view(2)?);
    let vectors = Vectors::of(case);
    given = vectors.give(given);
    if let Some(dropout) = &case.dropout {
        given = dropout.give(given);
    }
    given = edits.map_or(given, |edits| edits.give(given, &memory));
    let d_o = view(3)?;
    let d_lse = values.d_lse.as_deref().map(Rows::filled);
    let attention = Attention::new(device, problem).map_err(refusal)?;

    let mut o = unwritten(like_o)?;
    let mut rows = Rows::unwritten(problem.shape_lse().iter().product());
    let mut outputs = Outputs::new(o.view_mut().map_err(broken)?, rows.slice_mut());
    let forward = attention.clone().with_algorithm(algorithm);
    let forward = forward.forward(&given, &mut outputs).map_err(refusal)?;

    let (mut d_q, mut d_k, mut d_v) = (unwritten(like_q)?, unwritten(like_k)?, unwritten(like_v)?);
    let mut gradients = Gradients::new(
        d_q.view_mut().map_err(broken)?,
        d_k.view_mut().map_err(broken)?,
        d_v.view_mut().map_err(broken)?,
    );
    let mut d_sinks = vectors
        .sinks
        .as_ref()
        .map(|sinks| Rows::unwritten(sinks.len()));
    gradients.d_sinks = d_sinks.as_mut().map(|d_sinks| d_sinks.slice_mut().into());
    let tensors = edits.map_or(Vec::new(), |edits| edits.differentiable(&problem));
    let mut d_tensors: Vec<Unwritten> = tensors.iter().map(Unwritten::new).collect();
    for (of, d_tensor) in tensors.iter().zip(&mut d_tensors) {
        gradients = gradients.d_score_tensor(of.name, d_tensor.vector());
    }
    let mut of_output = OutputGradients::new(&d_o);
    of_output.d_lse = d_lse.as_ref().map(|d_lse| d_lse.slice().into());
    let saved = Saved::new(&o.view().map_err(broken)?, rows.slice());
    let backward = attention
        .with_algorithm(of_backward(algorithm, case))
        .backward(&given, &saved, &of_output, &mut gradients)
        .map_err(refusal)?;

    beside(&rows, d_sinks.as_ref(), &d_tensors)?;
    let [q, k, v, d_o] = &inputs;
    untouched([
        ("q", q),
        ("k", k),
        ("v", v),
        ("d_o", d_o),
        ("o", &o),
        ("d_q", &d_q),
        ("d_k", &d_k),
        ("d_v", &d_v),
    ])?;
    Ok(Results {
        output: Output {
            o: o.values(),
            lse: rows.values(),
        },
        gradients: oracle::Gradients {
            d_q: d_q.values(),
            d_k: d_k.values(),
            d_v: d_v.values(),
            d_sinks: d_sinks.map_or(Vec::new(), |d_sinks| d_sinks.values()),
        },
        tensors: d_tensors.iter().map(Unwritten::values).collect(),
        forward_kernels: forward.kernels,
        backward_kernels: backward.kernels,
    })
}

/// The algorithm of the backward pass: that of the forward pass, but where flash2 and flash3 have kernels for the latter alone.
fn of_backward(algorithm: Algorithm, case: &Case) -> Algorithm {
    match algorithm {
        Algorithm::Flash2 | Algorithm::Flash3
            if case.sizes.head_dim.max(case.sizes.head_dim_v) > 256 =>
        {
            Algorithm::Standard
        }
        other => other,
    }
}

/// Nobody wrote beside lse and the gradients of sinks and tensors.
fn beside(rows: &Rows, d_sinks: Option<&Rows>, d_tensors: &[Unwritten]) -> Result<(), Refusal> {
    let failed = |failure: &str| Err(Refusal::Failed(failure.into()));
    if rows.strayed() || d_sinks.is_some_and(Rows::strayed) {
        return failed("memory beside lse or d_sinks was written to");
    }
    match d_tensors.iter().any(Unwritten::strayed) {
        true => failed("memory beside the gradient of a tensor was written to"),
        false => Ok(()),
    }
}

/// The case's problem, with its edits.
pub(crate) fn problem_of(
    case: &Case,
    edits: Option<&Edits>,
    order: Order,
) -> Result<Problem, ferroflash::error::ProblemError> {
    let problem = case.problem()?.to_builder().order(order).build()?;
    match edits {
        Some(edits) => edits.edit(&problem),
        None => Ok(problem),
    }
}

/// Nobody wrote beside these tensors.
fn untouched<T: Number, const N: usize>(tensors: [(&str, &Buffer<T>); N]) -> Result<(), Refusal> {
    for (name, tensor) in tensors {
        if let Some(distance) = tensor.strayed() {
            return Err(Refusal::Failed(format!(
                "element {distance} of the memory of {name} was written to"
            )));
        }
    }
    Ok(())
}

/// What a call is given of a case beside tensors.
pub(crate) struct Vectors {
    lengths: Vec<(Argument, Vec<i32>)>,
    block_mask: Option<Table>,
    sinks: Option<Vec<f32>>,
}

impl Vectors {
    pub(crate) fn of(case: &Case) -> Vectors {
        let sinks = case.sink_values();
        Vectors {
            lengths: case.vectors(),
            block_mask: case.block_table(),
            sinks: sinks.map(|sinks| sinks.into_iter().map(|sink| sink as f32).collect()),
        }
    }

    /// The inputs with them.
    pub(crate) fn give<'a>(&'a self, mut given: Inputs<'a>) -> Inputs<'a> {
        given.block_mask = self.block_mask.as_ref().map(|table| (&table.bytes).into());
        given.sinks = self.sinks.as_ref().map(Into::into);
        let lengths = self.lengths.iter();
        lengths.fold(given, |given, (argument, vector)| {
            given.with(*argument, vector)
        })
    }
}

/// A planner that refuses says why; everything else is a failure.
pub(crate) fn refusal(error: Error, algorithm: Algorithm) -> Refusal {
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

/// lse, its gradient or that of sinks, with NaN on both sides.
pub(crate) struct Rows(Vec<f32>);

impl Rows {
    const MARGIN: usize = 8;

    pub(crate) fn unwritten(n: usize) -> Rows {
        Rows(vec![f32::NAN; n + 2 * Rows::MARGIN])
    }

    pub(crate) fn filled(values: &[f64]) -> Rows {
        let mut rows = Rows::unwritten(values.len());
        for (row, &value) in rows.slice_mut().iter_mut().zip(values) {
            *row = value as f32;
        }
        rows
    }

    pub(crate) fn slice(&self) -> &[f32] {
        &self.0[Rows::MARGIN..self.0.len() - Rows::MARGIN]
    }

    pub(crate) fn slice_mut(&mut self) -> &mut [f32] {
        let end = self.0.len() - Rows::MARGIN;
        &mut self.0[Rows::MARGIN..end]
    }

    pub(crate) fn values(&self) -> Vec<f64> {
        self.slice().iter().copied().map(f64::from).collect()
    }

    pub(crate) fn strayed(&self) -> bool {
        let (front, back) = (
            &self.0[..Rows::MARGIN],
            &self.0[self.0.len() - Rows::MARGIN..],
        );
        front.iter().chain(back).any(|x| !x.is_nan())
    }
}

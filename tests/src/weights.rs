//! Chosen rows of the weights, [`Attention::weights`], against the oracle: each sequence and head, some rows at a time.

use ferroflash::{Attention, Device, Dtype, Element, Order, WeightsOf};
use half::{bf16, f16};

use crate::buffer::{Buffer, Number};
use crate::cases::Case;
use crate::compare::{Comparison, Errors};
use crate::edits::Edits;
use crate::inputs::Values;
use crate::oracle::Terms;
use crate::reference::Probabilities;
use crate::tolerance::{Arithmetic, Quantity};
use crate::trial::{Vectors, problem_of};

/// Computes the weights of every sequence and head of a case in two parts, and compares them with the oracle's; says how close the
/// farthest comes to what is allowed.
pub fn check(
    case: &Case,
    values: &Values,
    edits: Option<&Edits>,
    device: &Device,
) -> Result<f64, String> {
    match case.dtype {
        Dtype::Bf16 => typed::<bf16>(case, values, edits, device),
        Dtype::F16 => typed::<f16>(case, values, edits, device),
        Dtype::F32 => typed::<f32>(case, values, edits, device),
    }
}

fn typed<T: Element + Number>(
    case: &Case,
    values: &Values,
    edits: Option<&Edits>,
    device: &Device,
) -> Result<f64, String> {
    let broken = |error: ferroflash::error::ProblemError| error.to_string();
    let problem = problem_of(case, edits, Order::Deterministic).map_err(broken)?;
    let memory = edits.map(Edits::memory).unwrap_or_default();
    let filled = |values: &[f64], shape| {
        Buffer::<T>::filled(values, shape, case.arrangement).map_err(broken)
    };
    let q = filled(&values.q, problem.shape_q())?;
    let k = filled(&values.k, problem.shape_k())?;
    let (q, k) = (q.view().map_err(broken)?, k.view().map_err(broken)?);
    let vectors = Vectors::of(case);
    let mut given = vectors.give(ferroflash::Inputs::latent(&q, &k));
    if let Some(edits) = edits {
        given = edits.give(given, &memory);
    }
    let attention = Attention::new(device, problem).map_err(|error| error.to_string())?;
    let expected = Probabilities::of_case(case, values, problem.scale(), edits);
    let (heads, seqlen_k) = (case.sizes.heads_q, problem.seqlen_k());
    let mut closest = 0f64;
    for (batch, of_sequence) in expected.iter().enumerate() {
        let [seqlen_q, own_k] = of_sequence.seqlens;
        for head in 0..heads {
            // Not at an edge of a panel.
            let middle = (seqlen_q / 3 + head).min(seqlen_q);
            for rows in [0..middle, middle..seqlen_q] {
                let of = WeightsOf {
                    batch,
                    head,
                    rows: rows.clone(),
                };
                let mut out = vec![f32::NAN; rows.len() * seqlen_k];
                let ran = attention.weights(&given, &of, &mut out);
                let ran = ran.map_err(|error| format!("{of:?}: {error}"))?;
                if ran.seqlen_k != own_k {
                    return Err(format!("{of:?}: {} keys, not {own_k}", ran.seqlen_k));
                }
                let close = compare(case, of_sequence, &of, &out, seqlen_k);
                closest = closest.max(close.map_err(|error| format!("{of:?}: {error}"))?);
            }
        }
    }
    Ok(closest)
}

/// Some rows against the oracle's; behind the sequence's own keys they are 0.
fn compare(
    case: &Case,
    expected: &Probabilities,
    of: &WeightsOf,
    out: &[f32],
    seqlen_k: usize,
) -> Result<f64, String> {
    let [seqlen_q, own_k] = expected.seqlens;
    let (mut actual, mut reference) = (Vec::new(), Vec::new());
    for (row, query) in out.chunks_exact(seqlen_k.max(1)).zip(of.rows.clone()) {
        let first = (of.head * seqlen_q + query) * own_k;
        actual.extend(row.iter().copied().map(f64::from));
        reference.extend(&expected.dense[first..first + own_k]);
        reference.resize(actual.len(), 0.0);
    }
    let sums = actual.chunks_exact(seqlen_k.max(1));
    for (row, query) in sums.zip(of.rows.clone()) {
        let sum: f64 = row.iter().sum();
        let has_sink = case.sink_values().is_some();
        if sum > 1.0 + 1e-5 || !has_sink && sum != 0.0 && sum < 1.0 - 1e-5 {
            return Err(format!("query {query} adds up to {sum}"));
        }
    }
    let comparison = Comparison {
        quantity: Quantity::Weights,
        // They are f32 whatever the inputs are.
        arithmetic: Arithmetic::F32,
        shape: [1, 1, of.rows.len(), seqlen_k],
        actual: &actual,
        reference: &reference,
        terms: &Terms {
            relative: reference.clone(),
            absolute: vec![0.0; reference.len()],
        },
        n_terms: 1,
        score: expected.score,
        errors: Errors::Shared,
    };
    match comparison.check() {
        Ok(close) => Ok(close.worst),
        Err(mismatch) => Err(mismatch.to_string()),
    }
}

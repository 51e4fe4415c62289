//! Chosen rows of the weights: whether the rows exist, and whether the inputs fit.

use super::{all_fit, fits, no_lengths_beside_a_block_mask, sizes};
use crate::arguments::{Argument, Arguments, Need, Presence, need};
use crate::error::ProblemError;
use crate::problem::Problem;
use crate::tensor::Location;
use crate::terms::Pass;
use crate::terms::WeightsOf;

/// The arguments of the weights: the inputs of a forward pass; values may be left out.
fn read(problem: &Problem, argument: Argument) -> Option<Need> {
    let need = need(problem, Pass::Forward, argument)?;
    match argument {
        Argument::O | Argument::Lse => None,
        Argument::V | Argument::VDescale => Some(Need {
            presence: Presence::Optional,
            ..need
        }),
        _ => Some(need),
    }
}

/// Checks the request and the inputs, and returns the memory they are in. If sequences have lengths, whether the sequence has the rows is checked later.
pub(crate) fn weights(
    problem: &Problem,
    arguments: &Arguments,
    of: &WeightsOf,
    n_out: u64,
) -> Result<Location, ProblemError> {
    sizes(problem)?;
    if problem.fp8().is_some() {
        let what = "the backward pass or the weights";
        return Err(ProblemError::Fp8With { what });
    }
    for (what, given, n) in [
        ("batch", of.batch, problem.batch()),
        ("head", of.head, problem.heads_q()),
    ] {
        if given >= n {
            return Err(ProblemError::WeightsOf { what, given, n });
        }
    }
    let seqlen_q = problem.seqlen_q();
    if of.rows.start > of.rows.end || of.rows.end > seqlen_q {
        return Err(ProblemError::WeightsOfRows {
            given: of.rows.clone(),
            sequence: of.batch,
            seqlen_q,
        });
    }
    let needed = (of.rows.len() as u64).saturating_mul(problem.seqlen_k() as u64);
    if n_out != needed {
        return Err(ProblemError::ElementCount {
            argument: Argument::Weights,
            given: n_out,
            needed,
        });
    }
    no_lengths_beside_a_block_mask(problem, arguments)?;
    let need = |argument| read(problem, argument);
    all_fit(
        arguments,
        Argument::Q,
        need,
        |argument, need, given, location| fits(argument, need, given, Some(problem), location),
    )
}

//! A rounding to 8 bits × arguments → [`CheckedQuantize`].

use super::operation::{CheckedOperation, check_operation};
use super::sizes::{are_scales, countable, head_dim_in_range};
use crate::arguments::{Argument, Arguments, Operands};
use crate::error::ProblemError;
use crate::lengths::new_rows::of_quantize;
use crate::problem::quantize::QuantizeProblem;

/// A rounding with arguments that fit it. A value of this type is the proof that the rules hold.
///
/// The [module](crate::fp8) has an example.
pub type CheckedQuantize = CheckedOperation<QuantizeProblem>;

/// The rules for sizes.
///
/// The [module](crate::fp8) has an example.
pub fn quantize_sizes(problem: &QuantizeProblem) -> Result<(), ProblemError> {
    let [batch, seqlen, ..] = problem.shape();
    let [heads, heads_k, head_dim] = problem.sizes();
    head_dim_in_range(head_dim)?;
    let both_none = heads == 0 && heads_k == 0;
    if !both_none && (heads_k == 0 || heads == 0 || !heads.is_multiple_of(heads_k)) {
        let heads_q = heads;
        return Err(ProblemError::HeadsNotMultiple { heads_q, heads_k });
    }
    countable(
        [problem.batch(), heads_k, problem.max_seqlen()],
        "batch · heads_k · max_seqlen",
    )?;
    countable([batch, seqlen, heads], "batch · seqlen · heads")
}

/// Checks the arguments of a rounding.
///
/// The [module](crate::fp8) has an example.
pub fn check_quantize(
    problem: &QuantizeProblem,
    arguments: Arguments,
) -> Result<CheckedQuantize, ProblemError> {
    quantize_sizes(problem)?;
    check_operation(problem, arguments)
}

/// Checks numbers on the host: sequences, and scales.
pub(crate) fn quantize_values(
    problem: &QuantizeProblem,
    operands: &Operands,
) -> Result<(), ProblemError> {
    of_quantize(problem, operands)?;
    let scales = operands.numbers(Argument::Descale).unwrap_or_default();
    are_scales(Argument::Descale, scales, 0..scales.len())
}

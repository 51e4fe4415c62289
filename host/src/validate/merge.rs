//! Merge × arguments → [`CheckedMerge`].

use super::operation::{CheckedOperation, check_operation};
use super::sizes::{countable, head_dim_in_range};
use crate::arguments::Arguments;
use crate::error::ProblemError;
use crate::problem::merge::MergeProblem;

/// A merge with arguments that fit it. A value of this type is the proof that the rules hold.
pub type CheckedMerge = CheckedOperation<MergeProblem>;

/// The rules for sizes.
pub fn merge_sizes(problem: &MergeProblem) -> Result<(), ProblemError> {
    let [batch, seqlen, heads, head_dim] = problem.shape();
    head_dim_in_range(head_dim)?;
    countable([batch, heads, seqlen], "batch · heads · seqlen")
}

/// Checks the arguments of a merge.
pub fn check_merge(
    problem: &MergeProblem,
    arguments: Arguments,
) -> Result<CheckedMerge, ProblemError> {
    merge_sizes(problem)?;
    check_operation(problem, arguments)
}

//! Merge × arguments → [`CheckedMerge`].

use super::sizes::{countable, head_dim_in_range};
use super::{all_fit, has_no_aliases, same_place, tensor_fits, vector_fits};
use crate::arguments::{Access, Argument, Arguments, Form, Given, Need, merge_need};
use crate::error::ProblemError;
use crate::problem::merge::MergeProblem;
use crate::tensor::Place;

/// A merge with arguments that fit it. Holding one is the proof that the rules hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CheckedMerge {
    problem: MergeProblem,
    place: Place,
    arguments: Arguments,
}

impl CheckedMerge {
    /// What is merged.
    pub fn problem(&self) -> &MergeProblem {
        &self.problem
    }

    /// What was given: all that a merge needs, and nothing that it does not take.
    pub fn arguments(&self) -> &Arguments {
        &self.arguments
    }

    /// In whose memory every argument lies.
    pub fn place(&self) -> Place {
        self.place
    }
}

/// The rules that concern the sizes alone.
pub fn merge_sizes(problem: &MergeProblem) -> Result<(), ProblemError> {
    let [batch, seqlen, heads, head_dim] = problem.shape();
    head_dim_in_range(head_dim)?;
    countable([batch, heads, seqlen], "batch · heads · seqlen")
}

/// Checks what a merge was given.
pub fn check_merge(
    problem: &MergeProblem,
    arguments: Arguments,
) -> Result<CheckedMerge, ProblemError> {
    merge_sizes(problem)?;
    let need = |argument| merge_need(problem, argument);
    let place = all_fit(
        &arguments,
        Argument::O1,
        need,
        |argument, need, given, place| fits(problem, argument, need, given, place),
    )?;
    Ok(CheckedMerge {
        problem: *problem,
        place,
        arguments,
    })
}

/// Whether an argument is what a merge needs.
fn fits(
    problem: &MergeProblem,
    argument: Argument,
    need: &Need,
    given: &Given,
    place: Place,
) -> Result<(), ProblemError> {
    let other_form = |needed| ProblemError::OtherForm { argument, needed };
    same_place(argument, given.place(), place)?;
    match (need.form, given) {
        (Form::Tensor(shape), Given::Tensor(tensor)) => {
            tensor_fits(argument, tensor, shape, problem.dtype())?;
            match need.access {
                Access::Written => has_no_aliases(argument, tensor),
                Access::Read => Ok(()),
            }
        }
        (Form::Vector { dtype, n_elems }, Given::Vector(vector)) => {
            vector_fits(argument, vector, dtype, n_elems)
        }
        (_, Given::Vector(_)) => Err(other_form("tensor")),
        (_, Given::Tensor(_)) => Err(other_form("vector")),
    }
}

//! Operations beside attention × arguments → [`CheckedOperation`].

use super::{all_fit, has_no_aliases, same_location, tensor_fits, vector_fits};
use crate::arguments::{Access, Argument, Arguments, Form, Given, Need, Operation};
use crate::error::ProblemError;
use crate::tensor::Location;

/// An operation with arguments that fit it. Holding one is the proof that the rules hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CheckedOperation<P> {
    problem: P,
    location: Location,
    arguments: Arguments,
}

impl<P> CheckedOperation<P> {
    /// What is to be done.
    pub fn problem(&self) -> &P {
        &self.problem
    }

    /// What was given: all that it needs, and nothing that it does not take.
    pub fn arguments(&self) -> &Arguments {
        &self.arguments
    }

    /// In whose memory every argument lies.
    pub fn location(&self) -> Location {
        self.location
    }
}

/// Checks what an operation was given; its sizes have been checked.
pub(super) fn check_operation<P: Operation>(
    problem: &P,
    arguments: Arguments,
) -> Result<CheckedOperation<P>, ProblemError> {
    let location = all_fit(
        &arguments,
        P::FIRST,
        |argument| problem.need(argument),
        fits,
    )?;
    Ok(CheckedOperation {
        problem: *problem,
        location,
        arguments,
    })
}

/// Whether an argument is what an operation needs.
fn fits(
    argument: Argument,
    need: &Need,
    given: &Given,
    location: Location,
) -> Result<(), ProblemError> {
    let other_form = |needed| ProblemError::OtherForm { argument, needed };
    same_location(argument, given.location(), location)?;
    match (need.form, given) {
        (Form::Tensor { shape, dtype }, Given::Tensor(tensor)) => {
            tensor_fits(argument, tensor, shape, dtype)?;
            match need.access {
                Access::Written | Access::Updated => has_no_aliases(argument, tensor),
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

/// Whether an output lies apart from an input, or is that input: of the same memory and, if they are tensors, the same layout. What lies
/// nowhere yet does not count.
pub(crate) fn apart_or_same(
    arguments: &Arguments,
    input: Argument,
    output: Argument,
) -> Result<(), ProblemError> {
    let (Some(from), Some(to)) = (arguments.get(input), arguments.get(output)) else {
        return Ok(());
    };
    let same = from.address() == to.address()
        && match (from, to) {
            (Given::Tensor(from), Given::Tensor(to)) => from.layout == to.layout,
            _ => false,
        };
    let range = |given: &Given| -> Result<_, ProblemError> {
        let n_bytes = given.extent_elems()? as u64 * given.dtype().size_bytes() as u64;
        Ok(given.address()..given.address().saturating_add(n_bytes))
    };
    let (read, written) = (range(from)?, range(to)?);
    let nowhere = from.address() == 0 || to.address() == 0;
    let overlap = read.start.max(written.start) < read.end.min(written.end);
    if same || nowhere || !overlap {
        return Ok(());
    }
    Err(ProblemError::SharesMemory {
        argument: output,
        with: input,
    })
}

//! Operations other than attention × arguments → [`CheckedOperation`].

use super::{all_fit, fits};
use crate::arguments::{Argument, Arguments, Given, Operation};
use crate::error::ProblemError;
use crate::tensor::Location;

/// An operation with arguments that fit it. A value of this type is the proof that the rules hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CheckedOperation<P> {
    problem: P,
    location: Location,
    arguments: Arguments,
}

impl<P> CheckedOperation<P> {
    /// The operation.
    pub fn problem(&self) -> &P {
        &self.problem
    }

    /// The arguments: all that it needs, and nothing that it does not take.
    pub fn arguments(&self) -> &Arguments {
        &self.arguments
    }

    /// The memory in which every argument is.
    pub fn location(&self) -> Location {
        self.location
    }
}

/// Checks the arguments of an operation; its sizes have been checked.
pub(super) fn check_operation<P: Operation>(
    problem: &P,
    arguments: Arguments,
) -> Result<CheckedOperation<P>, ProblemError> {
    let location = all_fit(
        &arguments,
        P::FIRST,
        |argument| problem.need(argument),
        |argument, need, given, location| fits(argument, need, given, None, location),
    )?;
    Ok(CheckedOperation {
        problem: *problem,
        location,
        arguments,
    })
}

/// Whether an output does not overlap an input, or is that input: in the same memory and, for tensors, with the same layout. Arguments without an
/// address are ignored.
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

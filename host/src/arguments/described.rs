//! Everything that a call was given, without its memory.

use super::{Argument, ArgumentSet, ByArgument};
use crate::dtype::ScalarType;
use crate::error::ProblemError;
use crate::tensor::{Description, Location, VectorDescription};

/// One argument without its memory.
///
/// [`Arguments`] holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    /// A tensor.
    Tensor(Description),
    /// A vector.
    Vector(VectorDescription),
}

impl Given {
    /// The memory in which it is.
    pub fn location(&self) -> Location {
        match self {
            Given::Tensor(tensor) => tensor.location,
            Given::Vector(vector) => vector.location,
        }
    }

    /// Type of its numbers.
    pub fn dtype(&self) -> ScalarType {
        match self {
            Given::Tensor(tensor) => tensor.dtype,
            Given::Vector(vector) => vector.dtype,
        }
    }

    /// Address of its first number.
    pub fn address(&self) -> u64 {
        match self {
            Given::Tensor(tensor) => tensor.address,
            Given::Vector(vector) => vector.address,
        }
    }

    /// Numbers from the first to the end of the last.
    pub fn extent_elems(&self) -> Result<usize, ProblemError> {
        match self {
            Given::Tensor(tensor) => tensor.layout.extent_elems(),
            Given::Vector(vector) => usize::try_from(vector.n_elems)
                .map_err(|_| ProblemError::SizeOverflow { what: "a vector" }),
        }
    }

    /// The same as it will be in another memory: aligned, with its strides.
    pub fn moved_to(self, location: Location) -> Given {
        match self {
            Given::Tensor(tensor) => Given::Tensor(tensor.moved_to(location)),
            Given::Vector(vector) => Given::Vector(vector.moved_to(location)),
        }
    }
}

impl From<Description> for Given {
    fn from(tensor: Description) -> Given {
        Given::Tensor(tensor)
    }
}

impl From<VectorDescription> for Given {
    fn from(vector: VectorDescription) -> Given {
        Given::Vector(vector)
    }
}

/// The arguments of a call without their memory. An argument that was not given is `None`.
///
/// [`check`](crate::validate::check) takes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arguments(ByArgument<Option<Given>>);

impl Arguments {
    /// `f` of each argument.
    pub(crate) fn from_fn(f: impl FnMut(Argument) -> Option<Given>) -> Arguments {
        Arguments(ByArgument::from_fn(f))
    }

    /// With this argument, which replaces an earlier one.
    #[must_use]
    pub fn with(mut self, argument: Argument, given: impl Into<Given>) -> Arguments {
        self.0[argument] = Some(given.into());
        self
    }

    /// Without this argument.
    #[must_use]
    pub fn without(mut self, argument: Argument) -> Arguments {
        self.0[argument] = None;
        self
    }

    /// The names of the given arguments.
    pub(crate) fn which(&self) -> ArgumentSet {
        let all = Argument::ALL.into_iter();
        all.filter(|&argument| self.0[argument].is_some()).collect()
    }

    /// The given arguments.
    pub fn get(&self, argument: Argument) -> Option<&Given> {
        self.0[argument].as_ref()
    }

    /// The tensor, if one was given.
    pub fn tensor(&self, argument: Argument) -> Option<&Description> {
        match self.get(argument) {
            Some(Given::Tensor(tensor)) => Some(tensor),
            _ => None,
        }
    }

    /// The vector, if one was given.
    pub fn vector(&self, argument: Argument) -> Option<&VectorDescription> {
        match self.get(argument) {
            Some(Given::Vector(vector)) => Some(vector),
            _ => None,
        }
    }

    /// Every tensor given.
    pub fn tensors(&self) -> impl Iterator<Item = (Argument, &Description)> {
        Argument::ALL
            .into_iter()
            .filter_map(|argument| Some((argument, self.tensor(argument)?)))
    }

    /// The same as they will be in another memory: aligned, with their strides.
    #[must_use]
    pub fn moved_to(&self, location: Location) -> Arguments {
        Arguments::from_fn(|argument| Some(self.get(argument)?.moved_to(location)))
    }
}

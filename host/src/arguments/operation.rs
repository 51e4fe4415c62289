//! What every operation beside attention says of itself: the rest follows from its table of needs.

use std::fmt;

use super::{Argument, ByArgument, Need};
use crate::dtype::Dtype;

/// An operation beside attention, such as a merge: one launch, without a workspace.
pub(crate) trait Operation: Copy + fmt::Display + 'static {
    /// What it does, as errors and plans have it: "merge".
    const VERB: &'static str;

    /// Where this one lies, all arguments do.
    const FIRST: Argument;

    /// Element type of the tensors.
    fn dtype(&self) -> Dtype;

    /// What it takes under a name; `None`: nothing. The problem's sizes have been checked.
    fn need(&self, argument: Argument) -> Option<Need>;

    /// What it takes under every name.
    fn needs(&self) -> ByArgument<Option<Need>> {
        ByArgument::from_fn(|argument| self.need(argument))
    }
}

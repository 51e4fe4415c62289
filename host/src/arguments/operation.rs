//! The description of every operation other than attention: the rest follows from its table of needs.

use std::fmt;

use super::{Argument, ByArgument, Need};
use crate::dtype::Dtype;

/// An operation other than attention, such as a merge.
pub(crate) trait Operation: Copy + fmt::Display + 'static {
    /// Its name in errors and plans: "merge".
    const VERB: &'static str;

    /// The argument whose memory decides where all arguments are.
    const FIRST: Argument;

    /// Element type of the tensors.
    fn dtype(&self) -> Dtype;

    /// The table's entry of a name; `None` if it does not take the argument. The problem's sizes have been checked.
    fn need(&self, argument: Argument) -> Option<Need>;

    /// The table's entry of every name.
    fn needs(&self) -> ByArgument<Option<Need>> {
        ByArgument::from_fn(|argument| self.need(argument))
    }
}

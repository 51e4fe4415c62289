//! How the tensors of a prepared call lie in memory.

use std::hash::{Hash, Hasher};

use crate::arguments::{Argument, ArgumentSet, Arguments, ByArgument, Given, Need, Presence, need};
use crate::error::ProblemError;
use crate::problem::Problem;
use crate::tensor::{Layout, Location};
use crate::validate::{Pass, unplaced};

/// What is known of a prepared call's arguments before they exist. Tensors are contiguous, `[batch, seqlen, heads, head_dim]`, unless a layout is given.
///
/// ```
/// use ferroflash::Layout;
/// use ferroflash::arguments::Argument;
/// use ferroflash::prepared::Layouts;
///
/// // Queries are [batch, heads, seqlen, head_dim]; all else is contiguous.
/// let layouts = Layouts::contiguous().with(Argument::Q, Layout::bhsd([2, 16, 4096, 128])?);
/// # Ok::<(), ferroflash::error::ProblemError>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Layouts {
    tensors: ByArgument<Option<Layout>>,
    asked: ByArgument<Asked>,
    /// The arguments of which something is known: the others have the defaults.
    which: ArgumentSet,
}

/// Equal if what is known is equal: a look-up compares only that.
impl PartialEq for Layouts {
    fn eq(&self, other: &Layouts) -> bool {
        self.which == other.which && self.known().eq(other.known())
    }
}

impl Eq for Layouts {}

impl Hash for Layouts {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.which.hash(state);
        self.known().for_each(|known| known.hash(state));
    }
}

/// Whether calls give an optional argument.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Asked {
    /// The default of the argument.
    #[default]
    Nothing,
    Given,
    LeftOut,
}

impl Layouts {
    /// All contiguous.
    pub fn contiguous() -> Layouts {
        Layouts::default()
    }

    /// With this layout of a tensor.
    #[must_use]
    pub fn with(mut self, argument: Argument, layout: Layout) -> Layouts {
        self.tensors[argument] = Some(layout);
        self.which.insert(argument);
        self
    }

    /// With an optional input: every call gives it. (A gradient of lse is not stated here: each call may give it or not.)
    #[must_use]
    pub fn giving(mut self, argument: Argument) -> Layouts {
        self.asked[argument] = Asked::Given;
        self.which.insert(argument);
        self
    }

    /// Without an optional output, lse or the gradients of sinks: no call gives it.
    #[must_use]
    pub fn without(mut self, argument: Argument) -> Layouts {
        self.asked[argument] = Asked::LeftOut;
        self.which.insert(argument);
        self
    }

    /// What is known.
    fn known(&self) -> impl Iterator<Item = (Option<Layout>, Asked)> {
        let known = |argument| (self.tensors[argument], self.asked[argument]);
        self.which.iter().map(known)
    }

    /// The required arguments of the pass, without addresses.
    pub(crate) fn arguments(
        &self,
        problem: &Problem,
        pass: Pass,
        location: Location,
    ) -> Result<Arguments, ProblemError> {
        let problem = &problem.with_given(self.given());
        let need = |argument| need(problem, pass, argument);
        self.needed(need, |need| unplaced(need, Some(problem), location))
    }

    /// The optional arguments that every call gives.
    pub(crate) fn given(&self) -> ArgumentSet {
        let which = self.which.iter();
        which
            .filter(|&argument| self.asked[argument] == Asked::Given)
            .collect()
    }

    /// The required arguments of a call by its table, without addresses.
    pub(crate) fn needed(
        &self,
        need: impl Fn(Argument) -> Option<Need>,
        unplaced: impl Fn(&Need) -> Result<Given, ProblemError>,
    ) -> Result<Arguments, ProblemError> {
        let mut arguments = Arguments::default();
        for (argument, layout) in self.tensors.iter() {
            let asked = self.asked[argument];
            let need = match (need(argument), asked) {
                (Some(need), Asked::LeftOut) if need.presence == Presence::Required => {
                    return Err(ProblemError::Missing { argument });
                }
                (Some(_), Asked::LeftOut) => continue,
                (Some(need), _) if need.presence.is_expected() || asked == Asked::Given => need,
                _ if asked == Asked::Given || layout.is_some() => {
                    return Err(ProblemError::NotTaken { argument });
                }
                _ => continue,
            };
            let given = match (unplaced(&need)?, layout) {
                (Given::Tensor(tensor), Some(layout)) => {
                    Given::Tensor(crate::tensor::Description {
                        layout: *layout,
                        ..tensor
                    })
                }
                (Given::Vector(_), Some(_)) => return Err(ProblemError::NotTaken { argument }),
                (given, None) => given,
            };
            arguments = arguments.with(argument, given);
        }
        Ok(arguments)
    }
}

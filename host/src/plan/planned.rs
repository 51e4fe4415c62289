//! What a backend needs to know of a plan, whether it is attention's or that of an operation beside it.

use ferroflash_kernels::params::{Params, bind};

use super::{Plan, PlannedLaunch, WorkspaceLayout};
use crate::arguments::{Argument, Need, need};
use crate::dtype::Dtype;

/// A plan to be launched.
pub(crate) trait Planned {
    /// The launches, one after another on one stream.
    fn planned_launches(&self) -> &[PlannedLaunch];

    /// Memory beside the arguments.
    fn workspace_layout(&self) -> &WorkspaceLayout;

    /// Element type of the tensors.
    fn dtype(&self) -> Dtype;

    /// What the call takes under a name.
    fn need(&self, argument: Argument) -> Option<Need>;

    /// The parameters of a launch with every address filled in: see [`Plan::params`].
    fn bound(
        &self,
        launch: &PlannedLaunch,
        workspace: u64,
        address: impl Fn(Argument) -> u64,
    ) -> Params {
        let mut params = launch.params;
        let lies_at = |argument| match self.need(argument) {
            None => 0,
            // Nobody reads or writes there, but a tensor map must be of memory that is there.
            Some(need) if need.form.is_empty() => workspace,
            Some(_) => address(argument),
        };
        bind(&mut params, workspace, lies_at);
        params
    }
}

impl Planned for Plan {
    fn planned_launches(&self) -> &[PlannedLaunch] {
        &self.launches
    }

    fn workspace_layout(&self) -> &WorkspaceLayout {
        &self.workspace
    }

    fn dtype(&self) -> Dtype {
        self.problem.dtype()
    }

    fn need(&self, argument: Argument) -> Option<Need> {
        need(&self.problem, self.pass, argument)
    }
}

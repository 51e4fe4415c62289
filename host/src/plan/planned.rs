//! A plan as a backend sees it, of attention or of another operation.

use ferroflash_kernels::params::{DropoutParams, Params, Scale, ScoreParams, bind};

use super::views::scale_log2;
use super::{Plan, PlannedLaunch, WorkspaceLayout};
use crate::arguments::{Argument, Need, Values, need};
use crate::dtype::Dtype;

/// A plan to be launched.
pub(crate) trait Planned {
    /// The launches, one after another on one stream.
    fn planned_launches(&self) -> &[PlannedLaunch];

    /// Memory in addition to the arguments.
    fn workspace_layout(&self) -> &WorkspaceLayout;

    /// Element type of the tensors.
    fn dtype(&self) -> Dtype;

    /// The table's entry for an argument of the call.
    fn need(&self, argument: Argument) -> Option<Need>;

    /// The parameters of a launch with every address filled in, as [`Plan::params`], and with the values that the call gives.
    fn bound(
        &self,
        launch: &PlannedLaunch,
        workspace: u64,
        address: impl Fn(Argument) -> u64,
        values: Option<&Values>,
    ) -> Params {
        let mut params = launch.params;
        give(&mut params, launch, values);
        let lies_at = |argument| self.lies(argument).at(workspace, || address(argument));
        bind(&mut params, workspace, lies_at);
        params
    }

    /// The address of an argument of the call, by name.
    fn lies(&self, argument: Argument) -> Lies {
        match self.need(argument) {
            None => Lies::Nowhere,
            Some(need) if need.form.is_empty() => Lies::InWorkspace,
            Some(_) => Lies::AtItsAddress,
        }
    }
}

/// The source of an argument's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lies {
    /// The call does not take this argument.
    Nowhere,
    /// It is empty: nothing is read or written there, but a tensor map must have a valid address.
    InWorkspace,
    /// The caller's address.
    AtItsAddress,
}

impl Lies {
    /// Its address.
    pub(crate) fn at(self, workspace: u64, address: impl FnOnce() -> u64) -> u64 {
        match self {
            Lies::Nowhere => 0,
            Lies::InWorkspace => workspace,
            Lies::AtItsAddress => address(),
        }
    }
}

/// Puts the values that the call gives into the parameters of a launch.
pub(crate) fn give(params: &mut Params, launch: &PlannedLaunch, values: Option<&Values>) {
    let Some(values) = values else {
        return;
    };
    let reads_score = launch.edit.is_some() || matches!(params, Params::MaskMap(_));
    if reads_score && let Some((place, scale)) = places_of_score(params) {
        *place = values.score;
        if let Some(scale) = scale {
            scale.scale_log2 = scale_log2(values.score.unit);
        }
    }
    if let Some(place) = place_of_dropout(params) {
        [place.seed, place.offset] = values.dropout;
    }
}

/// The parameters' fields for the inputs of score expressions, and for the scale of kernels that edit scores.
fn places_of_score(params: &mut Params) -> Option<(&mut ScoreParams, Option<&mut Scale>)> {
    match params {
        Params::Forward(params) => Some((&mut params.score, Some(&mut params.scale))),
        Params::TmaForward(params) => Some((&mut params.score, Some(&mut params.scale))),
        Params::Backward(params) => Some((&mut params.score, Some(&mut params.scale))),
        Params::TmaBackward(params) => {
            let pass = &mut params.pass;
            Some((&mut pass.score, Some(&mut pass.scale)))
        }
        Params::Standard(params) => Some((&mut params.score, Some(&mut params.scale))),
        Params::TensorGradient(params) => {
            let pass = &mut params.pass;
            Some((&mut pass.score, Some(&mut pass.scale)))
        }
        Params::MaskMap(params) => Some((&mut params.score, None)),
        // Each by its name: a kernel that is added has to say whether it edits scores.
        Params::Flash1Forward(_)
        | Params::Clear(_)
        | Params::TileList(_)
        | Params::BlockList(_)
        | Params::Combine(_)
        | Params::Merge(_)
        | Params::Append(_)
        | Params::Quantize(_)
        | Params::Dequantize(_)
        | Params::SinkGradient(_) => None,
    }
}

/// The parameters' fields for dropout.
pub(super) fn place_of_dropout(params: &mut Params) -> Option<&mut DropoutParams> {
    match params {
        Params::Forward(params) => Some(&mut params.dropout),
        Params::TmaForward(params) => Some(&mut params.dropout),
        Params::Backward(params) => Some(&mut params.dropout),
        Params::TmaBackward(params) => Some(&mut params.pass.dropout),
        Params::Standard(params) => Some(&mut params.dropout),
        Params::TensorGradient(params) => Some(&mut params.pass.dropout),
        _ => None,
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

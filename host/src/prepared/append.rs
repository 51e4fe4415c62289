//! An append prepared once and enqueued often.

use super::{Enqueue, Prepared, enqueue};
use crate::arguments::{AppendInputs, AppendOutputs, Operands};
use crate::backend::cuda::Queue;
use crate::error::Error;
use crate::plan::AppendPlan;
use crate::validate::rotary::append_lies_apart;

/// An append on a GPU, ready to be enqueued: see [`crate::Append::prepare`].
#[derive(Debug)]
pub struct PreparedAppend {
    prepared: Prepared<AppendPlan>,
}

impl PreparedAppend {
    pub(crate) fn new(prepared: Prepared<AppendPlan>) -> PreparedAppend {
        PreparedAppend { prepared }
    }

    /// The plan.
    pub fn plan(&self) -> &AppendPlan {
        self.prepared.launches.plan()
    }

    /// Enqueues the append, as [`PreparedForward::forward`](super::PreparedForward::forward) does a forward pass. It needs no workspace, so a queue
    /// never grows for it. The kernel reads lengths when it runs: one call, or one captured graph, serves every step.
    pub fn append(
        &self,
        queue: &mut Queue,
        inputs: &AppendInputs,
        outputs: &mut AppendOutputs,
    ) -> Result<(), Error> {
        self.enqueue(queue, &mut Operands::append(inputs, outputs))
    }
}

enqueue!(PreparedAppend, |_: &AppendPlan, operands: &mut Operands| {
    append_lies_apart(&operands.describe())
});

//! A merge prepared once and enqueued often.

use super::{Enqueue, Prepared, enqueue};
use crate::arguments::{MergeInputs, Operands, Outputs};
use crate::backend::cuda::Queue;
use crate::error::Error;
use crate::plan::MergePlan;

/// A merge on a GPU, ready to be enqueued: see [`crate::Merge::prepare`].
#[derive(Debug)]
pub struct PreparedMerge {
    prepared: Prepared<MergePlan>,
}

impl PreparedMerge {
    pub(crate) fn new(prepared: Prepared<MergePlan>) -> PreparedMerge {
        PreparedMerge { prepared }
    }

    /// The plan.
    pub fn plan(&self) -> &MergePlan {
        self.prepared.launches.plan()
    }

    /// Enqueues o and lse over the keys of both parts, as [`PreparedForward::forward`](super::PreparedForward::forward) does those of a
    /// forward pass. It needs no workspace, so a queue never grows for it.
    pub fn merge(
        &self,
        queue: &mut Queue,
        inputs: &MergeInputs,
        outputs: &mut Outputs,
    ) -> Result<(), Error> {
        self.enqueue(queue, &mut Operands::merge(inputs, outputs))
    }
}

enqueue!(PreparedMerge, |_: &MergePlan, _: &mut Operands| {
    Ok::<(), Error>(())
});

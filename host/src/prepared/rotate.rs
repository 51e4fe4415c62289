//! A rotation prepared once and enqueued often.

use super::{Enqueue, Prepared, enqueue};
use crate::arguments::{Operands, RotateInputs};
use crate::backend::cuda::Queue;
use crate::error::Error;
use crate::plan::RotatePlan;
use crate::tensor::TensorMut;
use crate::validate::rotary::rotate_lies_apart;

/// A rotation on a GPU, ready to be enqueued: see [`crate::Rotate::prepare`].
#[derive(Debug)]
pub struct PreparedRotate {
    prepared: Prepared<RotatePlan>,
}

impl PreparedRotate {
    pub(crate) fn new(prepared: Prepared<RotatePlan>) -> PreparedRotate {
        PreparedRotate { prepared }
    }

    /// The plan.
    pub fn plan(&self) -> &RotatePlan {
        self.prepared.launches.plan()
    }

    /// Enqueues the rotation, in the direction that it was prepared for. It needs no workspace, so a queue never grows for it.
    pub fn rotate(
        &self,
        queue: &mut Queue,
        inputs: &RotateInputs,
        y: &mut TensorMut,
    ) -> Result<(), Error> {
        self.enqueue(queue, &mut Operands::rotate(inputs, y))
    }
}

enqueue!(PreparedRotate, |_: &RotatePlan, operands: &mut Operands| {
    rotate_lies_apart(&operands.describe())
});

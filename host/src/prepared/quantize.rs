//! A rounding to 8 bits prepared once and enqueued often.

use super::{Enqueue, Prepared, enqueue};
use crate::arguments::{Operands, QuantizeInputs, QuantizeOutputs};
use crate::backend::cuda::Queue;
use crate::error::Error;
use crate::plan::QuantizePlan;

/// A rounding to 8 bits on a GPU, ready to be enqueued: see [`crate::Quantize::prepare`].
#[derive(Debug)]
pub struct PreparedQuantize {
    prepared: Prepared<QuantizePlan>,
}

impl PreparedQuantize {
    pub(crate) fn new(prepared: Prepared<QuantizePlan>) -> PreparedQuantize {
        PreparedQuantize { prepared }
    }

    /// The plan.
    pub fn plan(&self) -> &QuantizePlan {
        self.prepared.launches.plan()
    }

    /// Enqueues the rounding, as [`PreparedForward::forward`](super::PreparedForward::forward) does a forward pass. A queue that has not reserved the plan's workspace
    /// grows first, which waits and allocates.
    pub fn quantize(
        &self,
        queue: &mut Queue,
        inputs: &QuantizeInputs,
        outputs: &mut QuantizeOutputs,
    ) -> Result<(), Error> {
        self.enqueue(queue, &mut Operands::quantize(inputs, outputs))
    }
}

enqueue!(PreparedQuantize, |_: &QuantizePlan, _: &mut Operands| {
    Ok::<(), Error>(())
});

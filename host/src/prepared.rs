//! Calls prepared once and enqueued often. The plan, the kernels and the checks are done; only addresses are left to fill in.
//!
//! A call is enqueued on a [`Queue`], which owns a stream and a workspace. Once the queue has reserved the plan's workspace, enqueueing neither
//! waits nor allocates: the host goes on while the work runs. Overwrite a buffer in the order of that queue, or after its work is done.
//!
//! [`Queue::capture`] makes a graph of such calls, which a single driver call launches again.
//!
//! ```no_run
//! use ferroflash::backend::cuda::{DeviceBuffer, Queue};
//! use ferroflash::prepared::Layouts;
//! use ferroflash::{Attention, Device, Dtype, Inputs, Layout, Outputs, Problem, Tensor, TensorMut};
//! use half::bf16;
//!
//! let device = Device::cuda(0)?;
//! let gpu = device.as_cuda().expect("a CUDA device");
//! let problem = Problem::builder(Dtype::Bf16).seqlen(4096).heads(16).head_dim(128).build()?;
//! let prepared = Attention::new(&device, problem)?.prepare_forward(&Layouts::contiguous())?;
//!
//! let mut queue = Queue::new(gpu)?;
//! queue.reserve(prepared.plan())?;
//! let layout = Layout::bshd([1, 4096, 16, 128])?;
//! let [q, k, v] = [1, 2, 3].map(|_| DeviceBuffer::<bf16>::new(gpu, 4096 * 16 * 128));
//! let (q, k, v) = (q?, k?, v?);
//! let mut o = DeviceBuffer::<bf16>::new(gpu, 4096 * 16 * 128)?;
//! let mut lse = DeviceBuffer::<f32>::new(gpu, 16 * 4096)?;
//! for _step in 0..100 {
//!     let inputs = Inputs::new(
//!         &Tensor::device(q.slice(), layout)?,
//!         &Tensor::device(k.slice(), layout)?,
//!         &Tensor::device(v.slice(), layout)?,
//!     );
//!     let mut outputs = Outputs::new(TensorMut::device(o.slice_mut(), layout)?, lse.slice_mut());
//!     prepared.forward(&mut queue, &inputs, &mut outputs)?;
//! }
//! queue.synchronize()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod append;
mod layouts;
mod merge;
mod profiled;
mod quantize;
mod rotate;

use std::fmt;
use std::sync::Arc;

pub use append::PreparedAppend;
pub use layouts::Layouts;
pub use merge::PreparedMerge;
pub use profiled::NotStamped;
pub use quantize::PreparedQuantize;
pub use rotate::PreparedRotate;

use crate::arguments::{
    Argument, ArgumentSet, Arguments, ByArgument, Form, Given, Gradients, Inputs, Operands,
    OutputGradients, Outputs, Saved,
};
use crate::backend::cuda::launch::Launches;
use crate::backend::cuda::{CudaDevice, Queue};
use crate::error::{DriverError, Error, ProblemError};
use crate::plan::{Plan, Planned};
use crate::tensor::{Description, Location};
use crate::validate::{bind, vector_fits};

/// The kernels read and write 16 bytes at a time.
const ALIGNMENT_BYTES: u64 = 16;

/// A forward pass on a GPU, ready to be enqueued: see [`crate::Attention::prepare_forward`].
#[derive(Debug)]
pub struct PreparedForward {
    prepared: Prepared<Plan>,
}

/// A backward pass on a GPU, ready to be enqueued: see [`crate::Attention::prepare_backward`].
#[derive(Debug)]
pub struct PreparedBackward {
    prepared: Prepared<Plan>,
}

/// The parts of every prepared call.
#[derive(Debug)]
pub(crate) struct Prepared<P> {
    launches: Launches<P>,
    arguments: Arguments,
    /// The names in `arguments`.
    which: ArgumentSet,
    /// What the call takes for each name.
    forms: ByArgument<Option<Form>>,
}

impl PreparedForward {
    pub(crate) fn new(prepared: Prepared<Plan>) -> PreparedForward {
        PreparedForward { prepared }
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        self.prepared.launches.plan()
    }

    /// Enqueues o = softmax(q·kᵀ · softmax_scale, masked) · v, and lse. The tensors have the layouts that the call was prepared for; their addresses
    /// may differ at each call. A queue that has not reserved enough grows first, which waits and allocates. After an error nothing of this call runs.
    pub fn forward(
        &self,
        queue: &mut Queue,
        inputs: &Inputs,
        outputs: &mut Outputs,
    ) -> Result<(), Error> {
        self.enqueue(queue, &mut Operands::forward(inputs, outputs))
    }
}

impl PreparedBackward {
    pub(crate) fn new(prepared: Prepared<Plan>) -> PreparedBackward {
        PreparedBackward { prepared }
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        self.prepared.launches.plan()
    }

    /// Enqueues the gradients, as [`PreparedForward::forward`] does o. A gradient of lse in addition to that of o ([`OutputGradients`]) may be given
    /// in one call and not in the next.
    pub fn backward(
        &self,
        queue: &mut Queue,
        inputs: &Inputs,
        saved: &Saved,
        of_output: &OutputGradients,
        gradients: &mut Gradients,
    ) -> Result<(), Error> {
        let mut operands = Operands::backward(inputs, saved, of_output, gradients);
        self.enqueue(queue, &mut operands)
    }
}

/// A prepared call of any operation.
pub(crate) trait Enqueue: fmt::Debug + Send + Sync {
    /// Checks its arguments, and enqueues it.
    fn enqueue(&self, queue: &mut Queue, operands: &mut Operands) -> Result<(), Error>;

    /// Bytes of its workspace.
    fn workspace_bytes(&self) -> u64;
}

/// [`Enqueue`] of a prepared call: the checks of its arguments that [`Prepared`] does not make for all calls.
macro_rules! enqueue {
    ($prepared:ty, $check:expr) => {
        impl $crate::prepared::Enqueue for $prepared {
            fn enqueue(&self, queue: &mut Queue, operands: &mut Operands) -> Result<(), Error> {
                $check(self.plan(), operands)?;
                self.prepared.enqueue(operands, queue)
            }

            fn workspace_bytes(&self) -> u64 {
                self.prepared.workspace_bytes()
            }
        }
    };
}
use enqueue;

enqueue!(PreparedForward, |plan: &Plan, operands: &mut Operands| {
    bind(&plan.problem, operands)
});
enqueue!(PreparedBackward, |plan: &Plan, operands: &mut Operands| {
    bind(&plan.problem, operands)
});

impl<P: Planned> Prepared<P> {
    pub(crate) fn new(
        device: &Arc<CudaDevice>,
        arguments: Arguments,
        plan: P,
    ) -> Result<Prepared<P>, DriverError> {
        Ok(Prepared {
            which: arguments.which(),
            forms: ByArgument::from_fn(|argument| Some(plan.need(argument)?.form)),
            launches: Launches::new(device, plan)?,
            arguments,
        })
    }

    fn workspace_bytes(&self) -> u64 {
        self.launches.plan().workspace_layout().n_bytes()
    }

    fn enqueue(&self, operands: &Operands, queue: &mut Queue) -> Result<(), Error> {
        let mut addresses = ByArgument::<u64>::default();
        for argument in operands.which().union(self.which).iter() {
            let given = operands.given(argument);
            self.fits(argument, given.as_ref())?;
            addresses[argument] = given.as_ref().map_or(0, Given::address);
        }
        queue.enqueue(&self.launches, operands, |argument| addresses[argument])
    }

    /// Whether an argument is what the call was prepared for. A gradient of lse may be given in one call and not in the next. So may dropout's seed
    /// and offset, which may be given by value instead.
    fn fits(&self, argument: Argument, given: Option<&Given>) -> Result<(), ProblemError> {
        let location = self.location();
        match (given, self.arguments.get(argument)) {
            (Some(Given::Tensor(given)), Some(Given::Tensor(prepared))) => {
                as_prepared(argument, given, prepared)?;
            }
            (None, Some(_)) => return Err(ProblemError::Missing { argument }),
            (None, None) => return Ok(()),
            // The plan depends on which lengths there are, and on whether lse is wanted.
            (Some(Given::Vector(_)), None)
                if !matches!(argument, Argument::DLse | Argument::DropoutState) =>
            {
                return Err(ProblemError::NotTaken { argument });
            }
            (Some(Given::Vector(vector)), _) => match self.forms[argument] {
                Some(Form::Vector { dtype, n_elems }) => {
                    vector_fits(argument, vector, dtype, n_elems)?;
                }
                Some(Form::Elements { dtype }) => {
                    vector_fits(argument, vector, dtype, vector.n_elems)?;
                }
                _ => return Err(ProblemError::NotTaken { argument }),
            },
            (Some(Given::Tensor(_)), _) => return Err(ProblemError::NotTaken { argument }),
        }
        match given.map(Given::location) {
            Some(given) if given != location => Err(ProblemError::OtherDevice {
                given,
                needed: location,
            }),
            _ => Ok(()),
        }
    }

    fn location(&self) -> Location {
        Location::Cuda(self.launches.device().ordinal())
    }
}

/// Whether a tensor has the layout, the type and the alignment that its call was prepared for.
fn as_prepared(
    argument: Argument,
    given: &Description,
    prepared: &Description,
) -> Result<(), ProblemError> {
    if given.layout != prepared.layout {
        return Err(ProblemError::NotAsPrepared {
            argument,
            given: given.layout,
            prepared: prepared.layout,
        });
    }
    if given.dtype != prepared.dtype {
        return Err(ProblemError::DtypeMismatch {
            argument,
            given: given.dtype,
            needed: prepared.dtype,
        });
    }
    if !given.address.is_multiple_of(ALIGNMENT_BYTES) && !given.layout.shape().contains(&0) {
        return Err(ProblemError::Misaligned {
            argument,
            address: given.address,
            alignment: ALIGNMENT_BYTES,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;
    use crate::tensor::Layout;

    #[test]
    fn a_tensor_is_aligned_unless_it_is_empty() {
        let prepared =
            Description::contiguous([1, 2, 3, 8], Dtype::Bf16, Location::Cuda(0)).unwrap();
        let at = |address| Description {
            address,
            ..prepared
        };
        for address in [0x1000, 0x1010] {
            assert_eq!(as_prepared(Argument::K, &at(address), &prepared), Ok(()));
        }
        for address in [0x1002, 0x1008] {
            let refused = ProblemError::Misaligned {
                argument: Argument::K,
                address,
                alignment: 16,
            };
            assert_eq!(
                as_prepared(Argument::K, &at(address), &prepared),
                Err(refused)
            );
        }
        let empty = Description {
            layout: Layout::bshd([0, 2, 3, 8]).unwrap(),
            ..prepared
        };
        let odd = Description {
            address: 2,
            ..empty
        };
        assert_eq!(as_prepared(Argument::K, &odd, &empty), Ok(()));
    }
}

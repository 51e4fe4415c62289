//! Calls prepared once and enqueued often: plan, kernels and checks are done; what is left is to fill addresses in.
//!
//! Nothing here waits or allocates: the work runs on the caller's stream, in the caller's workspace, while the host
//! goes on. Whoever overwrites a buffer does so in the order of that stream, or after it.
//!
//! ```no_run
//! use ferroflash::backend::cuda::{DeviceBuffer, Stream};
//! use ferroflash::prepared::Layouts;
//! use ferroflash::{Attention, Device, Dtype, Inputs, Layout, Outputs, Problem, Tensor, TensorMut};
//! use half::bf16;
//!
//! let device = Device::cuda(0)?;
//! let gpu = device.as_cuda().expect("a CUDA device");
//! let problem = Problem::builder(Dtype::Bf16).seqlen(4096).heads(16).head_dim(128).build()?;
//! let prepared = Attention::new(&device, problem)?.prepare_forward(&Layouts::contiguous())?;
//! let mut workspace = prepared.workspace()?;
//!
//! let stream = Stream::new(gpu)?;
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
//!     prepared.forward(&stream, &inputs, &mut outputs, &mut workspace)?;
//! }
//! stream.synchronize()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod layouts;

use std::fmt;
use std::sync::Arc;

pub use layouts::Layouts;

use crate::arguments::{
    Argument, Arguments, Form, Given, Gradients, Inputs, Operands, OutputGradients, Outputs, Saved,
    need,
};
use crate::backend::cuda::launch::Launches;
use crate::backend::cuda::memory::Memory;
use crate::backend::cuda::{CudaDevice, Stream, StreamRef};
use crate::dtype::ScalarType;
use crate::error::{DriverError, Error, ProblemError};
use crate::plan::Plan;
use crate::plan::workspace::COUNTER_BYTES;
use crate::tensor::{Description, Place};
use crate::validate::{Checked, vector_fits};

/// The kernels read and write 16 bytes at a time.
const ALIGNMENT_BYTES: u64 = 16;

/// Device memory for intermediate results. It serves the calls of one stream at a time; calls on one stream may
/// share it, the largest they need.
///
/// Its first bytes hold counters that are 0 between calls: a new workspace is cleared there once, and every kernel that
/// counts leaves 0 behind, so that no call has to clear them ([`crate::plan::workspace::COUNTER_BYTES`]).
pub struct Workspace {
    memory: Memory,
}

impl Workspace {
    /// Allocates this many bytes, clears the counters among them, and waits until that is done: work on any stream may
    /// use it from then on.
    pub fn new(device: &Arc<CudaDevice>, n_bytes: u64) -> Result<Workspace, DriverError> {
        let mut memory = Memory::new(device, n_bytes)?;
        if n_bytes > 0 {
            let stream = Stream::new(device)?;
            memory.clear_first(COUNTER_BYTES, (&stream).into())?;
            stream.synchronize()?;
        }
        Ok(Workspace { memory })
    }

    /// Its length.
    pub fn n_bytes(&self) -> u64 {
        self.memory.n_bytes()
    }
}

impl fmt::Debug for Workspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workspace")
            .field("n_bytes", &self.n_bytes())
            .finish_non_exhaustive()
    }
}

/// A forward pass on a GPU, ready to be enqueued: see [`crate::Attention::prepare_forward`].
#[derive(Debug)]
pub struct PreparedForward {
    prepared: Prepared,
}

/// A backward pass on a GPU, ready to be enqueued: see [`crate::Attention::prepare_backward`].
#[derive(Debug)]
pub struct PreparedBackward {
    prepared: Prepared,
}

/// What both passes hold.
#[derive(Debug)]
pub(crate) struct Prepared {
    launches: Launches,
    arguments: Arguments,
}

impl PreparedForward {
    pub(crate) fn new(prepared: Prepared) -> PreparedForward {
        PreparedForward { prepared }
    }

    /// What runs.
    pub fn plan(&self) -> &Plan {
        self.prepared.launches.plan()
    }

    /// A workspace of the size that the plan asks for.
    pub fn workspace(&self) -> Result<Workspace, Error> {
        self.prepared.workspace()
    }

    /// Enqueues o = softmax(q·kᵀ · softmax_scale, masked) · v, and lse, on a stream. The tensors have the layouts that
    /// the call was prepared for; their addresses may be others each time.
    pub fn forward<'a>(
        &self,
        stream: impl Into<StreamRef<'a>>,
        inputs: &Inputs,
        outputs: &mut Outputs,
        workspace: &mut Workspace,
    ) -> Result<(), Error> {
        let operands = Operands::forward(inputs, outputs);
        self.prepared.enqueue(&operands, workspace, stream.into())
    }
}

impl PreparedBackward {
    pub(crate) fn new(prepared: Prepared) -> PreparedBackward {
        PreparedBackward { prepared }
    }

    /// What runs.
    pub fn plan(&self) -> &Plan {
        self.prepared.launches.plan()
    }

    /// A workspace of the size that the plan asks for.
    pub fn workspace(&self) -> Result<Workspace, Error> {
        self.prepared.workspace()
    }

    /// Enqueues the gradients on a stream. The tensors have the layouts that the call was prepared for; their
    /// addresses may be others each time. A gradient of lse beside that of o ([`OutputGradients`]) may be there in one
    /// call and not in the next.
    pub fn backward<'a>(
        &self,
        stream: impl Into<StreamRef<'a>>,
        inputs: &Inputs,
        saved: &Saved,
        of_output: &OutputGradients,
        gradients: &mut Gradients,
        workspace: &mut Workspace,
    ) -> Result<(), Error> {
        let operands = Operands::backward(inputs, saved, of_output, gradients);
        self.prepared.enqueue(&operands, workspace, stream.into())
    }
}

impl Prepared {
    pub(crate) fn new(
        device: &Arc<CudaDevice>,
        checked: &Checked,
        plan: Plan,
    ) -> Result<Prepared, DriverError> {
        Ok(Prepared {
            launches: Launches::new(device, plan)?,
            arguments: *checked.arguments(),
        })
    }

    fn workspace(&self) -> Result<Workspace, Error> {
        let n_bytes = self.launches.plan().workspace.n_bytes();
        Ok(Workspace::new(self.launches.device(), n_bytes)?)
    }

    fn enqueue(
        &self,
        operands: &Operands,
        workspace: &mut Workspace,
        stream: StreamRef,
    ) -> Result<(), Error> {
        let given = operands.describe();
        let plan = self.launches.plan();
        for argument in Argument::ALL {
            self.fits(argument, given.get(argument))?;
        }
        let (given_bytes, needed_bytes) = (workspace.n_bytes(), plan.workspace.n_bytes());
        if given_bytes < needed_bytes {
            let (given, needed) = (given_bytes, needed_bytes);
            return Err(ProblemError::WorkspaceTooSmall { given, needed }.into());
        }
        if 0 < needed_bytes && !Arc::ptr_eq(workspace.memory.device(), self.launches.device()) {
            return Err(ProblemError::WorkspaceElsewhere.into());
        }
        let address = |argument| given.get(argument).map_or(0, Given::address);
        Ok(self
            .launches
            .enqueue(workspace.memory.address(), address, stream)?)
    }

    /// Whether an argument is what the call was prepared for. A gradient of lse may be there in one call and not in the next.
    fn fits(&self, argument: Argument, given: Option<&Given>) -> Result<(), ProblemError> {
        let plan = self.launches.plan();
        let place = self.place();
        match (given, self.arguments.get(argument)) {
            (Some(Given::Tensor(given)), Some(Given::Tensor(prepared))) => {
                as_prepared(argument, given, prepared)?;
            }
            (None, Some(_)) => return Err(ProblemError::Missing { argument }),
            (None, None) => return Ok(()),
            // The plan depends on which lengths there are.
            (Some(Given::Vector(vector)), None) if vector.dtype == ScalarType::I32 => {
                return Err(ProblemError::NotTaken { argument });
            }
            (Some(Given::Vector(vector)), _) => {
                let need = need(&plan.problem, plan.pass, argument);
                match need.map(|need| need.form) {
                    Some(Form::Vector { dtype, n_elems }) => {
                        vector_fits(argument, vector, dtype, n_elems)?;
                    }
                    _ => return Err(ProblemError::NotTaken { argument }),
                }
            }
            (Some(Given::Tensor(_)), _) => return Err(ProblemError::NotTaken { argument }),
        }
        match given.map(Given::place) {
            Some(given) if given != place => Err(ProblemError::OtherDevice {
                given,
                needed: place,
            }),
            _ => Ok(()),
        }
    }

    fn place(&self) -> Place {
        Place::Cuda(self.launches.device().ordinal())
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
        let prepared = Description::contiguous([1, 2, 3, 8], Dtype::Bf16, Place::Cuda(0)).unwrap();
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

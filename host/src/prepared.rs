//! Calls prepared once and enqueued often: plan, kernels and checks are done; what is left is to fill addresses in.
//!
//! Nothing here waits or allocates: the work runs on the caller's stream, in the caller's workspace, while the host
//! goes on. Whoever overwrites a buffer does so in the order of that stream, or after it.
//!
//! ```no_run
//! use ferroflash::backend::cuda::{DeviceBuffer, Stream};
//! use ferroflash::prepared::ForwardLayouts;
//! use ferroflash::{Attention, Device, Dtype, Layout, LseMut, Problem, Tensor, TensorMut};
//! use half::bf16;
//!
//! let device = Device::cuda(0)?;
//! let gpu = device.as_cuda().expect("a CUDA device");
//! let problem = Problem::builder(Dtype::Bf16).seqlen(4096).heads(16).head_dim(128).build()?;
//! let prepared = Attention::new(&device, problem)?.prepare_forward(&ForwardLayouts::contiguous(&problem)?)?;
//! let mut workspace = prepared.workspace()?;
//!
//! let stream = Stream::new(gpu)?;
//! let layout = Layout::bshd([1, 4096, 16, 128])?;
//! let [q, k, v] = [1, 2, 3].map(|_| DeviceBuffer::<bf16>::new(gpu, 4096 * 16 * 128));
//! let (q, k, v) = (q?, k?, v?);
//! let mut o = DeviceBuffer::<bf16>::new(gpu, 4096 * 16 * 128)?;
//! let mut lse = DeviceBuffer::<f32>::new(gpu, 16 * 4096)?;
//! for _step in 0..100 {
//!     prepared.forward(
//!         &stream,
//!         &Tensor::device(q.slice(), layout)?,
//!         &Tensor::device(k.slice(), layout)?,
//!         &Tensor::device(v.slice(), layout)?,
//!         &mut TensorMut::device(o.slice_mut(), layout)?,
//!         &mut LseMut::Device(lse.slice_mut()),
//!         &mut workspace,
//!     )?;
//! }
//! stream.synchronize()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod layouts;

use std::fmt;
use std::sync::Arc;

pub use layouts::{ForwardLayouts, GradientLayouts};

use crate::backend::cuda::launch::Launches;
use crate::backend::cuda::memory::Memory;
use crate::backend::cuda::{CudaDevice, Stream, StreamRef};
use crate::error::{Argument, DriverError, Error, ProblemError};
use crate::plan::workspace::COUNTER_BYTES;
use crate::plan::{Addresses, Plan};
use crate::tensor::{
    Description, Gradients, LseDescription, LseMut, OutputGradients, Saved, Tensor, TensorMut,
};
use crate::validate::{Checked, ForwardTensors, GradientTensors, rows_fit};

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
    gradients: GradientTensors,
}

/// What both passes hold.
#[derive(Debug)]
struct Prepared {
    launches: Launches,
    forward: ForwardTensors,
}

impl PreparedForward {
    pub(crate) fn new(
        device: &Arc<CudaDevice>,
        checked: &Checked,
        plan: Plan,
    ) -> Result<PreparedForward, Error> {
        Ok(PreparedForward {
            prepared: Prepared::new(device, checked, plan)?,
        })
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
    #[allow(clippy::too_many_arguments)]
    pub fn forward<'a>(
        &self,
        stream: impl Into<StreamRef<'a>>,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        o: &mut TensorMut,
        lse: &mut LseMut,
        workspace: &mut Workspace,
    ) -> Result<(), Error> {
        let at = self
            .prepared
            .addresses(&ForwardTensors::of(q, k, v, o, lse))?;
        self.prepared.enqueue(at, workspace, stream.into())
    }
}

impl PreparedBackward {
    pub(crate) fn new(
        device: &Arc<CudaDevice>,
        checked: &Checked,
        gradients: GradientTensors,
        plan: Plan,
    ) -> Result<PreparedBackward, Error> {
        Ok(PreparedBackward {
            prepared: Prepared::new(device, checked, plan)?,
            gradients,
        })
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
    pub fn backward<'a, 'd>(
        &self,
        stream: impl Into<StreamRef<'a>>,
        saved: &Saved,
        of_output: impl Into<OutputGradients<'d>>,
        gradients: &mut Gradients,
        workspace: &mut Workspace,
    ) -> Result<(), Error> {
        let at = self.prepared.addresses(&ForwardTensors::saved(saved))?;
        let given = GradientTensors::of(&of_output.into(), gradients);
        let lse = &self.prepared.forward.lse;
        let at = Addresses {
            d_o: address(Argument::DO, &given.d_o, &self.gradients.d_o)?,
            d_lse: match &given.d_lse {
                Some(d_lse) => lse_address(Argument::DLse, d_lse, lse)?,
                None => 0,
            },
            d_q: address(Argument::DQ, &given.d_q, &self.gradients.d_q)?,
            d_k: address(Argument::DK, &given.d_k, &self.gradients.d_k)?,
            d_v: address(Argument::DV, &given.d_v, &self.gradients.d_v)?,
            ..at
        };
        self.prepared.enqueue(at, workspace, stream.into())
    }
}

impl Prepared {
    fn new(device: &Arc<CudaDevice>, checked: &Checked, plan: Plan) -> Result<Prepared, Error> {
        Ok(Prepared {
            launches: Launches::new(device, plan)?,
            forward: *checked.forward(),
        })
    }

    fn workspace(&self) -> Result<Workspace, Error> {
        let n_bytes = self.launches.plan().workspace.n_bytes();
        Ok(Workspace::new(self.launches.device(), n_bytes)?)
    }

    fn addresses(&self, given: &ForwardTensors) -> Result<Addresses, ProblemError> {
        Ok(Addresses {
            q: address(Argument::Q, &given.q, &self.forward.q)?,
            k: address(Argument::K, &given.k, &self.forward.k)?,
            v: address(Argument::V, &given.v, &self.forward.v)?,
            o: address(Argument::O, &given.o, &self.forward.o)?,
            lse: lse_address(Argument::Lse, &given.lse, &self.forward.lse)?,
            ..Addresses::default()
        })
    }

    fn enqueue(
        &self,
        at: Addresses,
        workspace: &mut Workspace,
        stream: StreamRef,
    ) -> Result<(), Error> {
        let (given, needed) = (
            workspace.n_bytes(),
            self.launches.plan().workspace.n_bytes(),
        );
        if given < needed {
            return Err(ProblemError::WorkspaceTooSmall { given, needed }.into());
        }
        if 0 < needed && !Arc::ptr_eq(workspace.memory.device(), self.launches.device()) {
            return Err(ProblemError::WorkspaceElsewhere.into());
        }
        let at = Addresses {
            workspace: workspace.memory.address(),
            ..at
        };
        Ok(self.launches.enqueue(&at, stream)?)
    }
}

/// The tensor's address, if all else is as prepared.
fn address(
    argument: Argument,
    given: &Description,
    prepared: &Description,
) -> Result<u64, ProblemError> {
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
    if given.place != prepared.place {
        return Err(ProblemError::OtherDevice {
            given: given.place,
            needed: prepared.place,
        });
    }
    if !given.address.is_multiple_of(ALIGNMENT_BYTES) && !given.layout.shape().contains(&0) {
        return Err(ProblemError::Misaligned {
            argument,
            address: given.address,
            alignment: ALIGNMENT_BYTES,
        });
    }
    Ok(given.address)
}

/// The same for row statistics, or their gradient.
fn lse_address(
    argument: Argument,
    given: &LseDescription,
    prepared: &LseDescription,
) -> Result<u64, ProblemError> {
    rows_fit(argument, given, prepared.n_elems)?;
    if given.place != prepared.place {
        return Err(ProblemError::OtherDevice {
            given: given.place,
            needed: prepared.place,
        });
    }
    Ok(given.address)
}

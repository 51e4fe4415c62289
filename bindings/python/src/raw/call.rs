//! A pass on a device, planned; and run on addresses.

use std::sync::{Arc, LazyLock};

use ferroflash::arguments::Argument;
use ferroflash::plan::Plan;
use ferroflash::plan::workspace::ALIGNMENT_BYTES;
use ferroflash::prepared::{PreparedBackward, PreparedForward};
use ferroflash::{Error, Gradients, Layout, OutputGradients, Outputs, PlanCache, Saved};
use pyo3::prelude::*;

use super::beside::{Beside, Wanted};
use super::memory::{Location, queue};
use super::shape::{Lengths, Shape, Strides, strided};
use crate::error::to_py;
use crate::problem::Problem;

/// How many prepared calls are kept: a model has a few shapes for each of its kinds of layers.
const N_PLANS: usize = 1024;

/// Calls prepared before, of all devices.
pub(super) static PLANS: LazyLock<PlanCache> = LazyLock::new(|| PlanCache::new(N_PLANS));

/// Bytes of a plan's workspace: never none, since memory of no bytes has no address.
fn workspace_bytes(plan: Option<&Plan>) -> u64 {
    plan.map_or(0, |plan| plan.workspace.n_bytes().max(ALIGNMENT_BYTES))
}

/// The forward pass of a problem on a device, planned.
#[pyclass(frozen, module = "ferroflash._native")]
pub(crate) struct Forward {
    shape: Shape,
    /// `None` on the processor.
    prepared: Option<Arc<PreparedForward>>,
}

#[pymethods]
impl Forward {
    /// On the CUDA device of this ordinal, or on the processor. Strides are of q, k and v, in elements, without the last one, which is 1.
    /// `given` says which of cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, leftpad_k and page_table calls give.
    #[new]
    fn new(
        py: Python<'_>,
        problem: &Problem,
        ordinal: Option<u32>,
        strides: (Strides, Strides, Strides),
        given: [bool; 6],
    ) -> PyResult<Forward> {
        let (q, k, v) = &strides;
        py.detach(|| {
            let shape = Shape::new(problem, ordinal, [q, k, v], given)?;
            let prepared = match ordinal {
                Some(_) => Some(PLANS.forward(&shape.attention, &shape.layouts())?),
                None => None,
            };
            Ok(Forward { shape, prepared })
        })
        .map_err(|error: Error| to_py(error))
    }

    /// Bytes of device memory that a run needs beside its tensors, at a multiple of 256, and at least as many; 0 on the processor.
    #[getter]
    pub(super) fn workspace_bytes(&self) -> u64 {
        workspace_bytes(self.prepared.as_ref().map(|prepared| prepared.plan()))
    }

    /// Enqueues o and lse on a stream; on the processor, computes them. Addresses are of q, k, v, o and lse, and of the lengths in the
    /// order of `given`; those that are not given are not looked at. Nor is that of v, where values are in the keys. o and lse are contiguous.
    /// `beside` is a dict of what the problem wants beside them: `scales`, the addresses of those of k and v, where these are in 8 bits;
    /// `values`, numbers, and of tensors address, shape and strides, as the score and the mask take them; `sinks`, the address of f32
    /// `[heads_q]`; `dropout`, seed and offset, or the address of these as two u64.
    ///
    /// The caller answers for the addresses: that elements of the problem's shapes and types lie there, on this device, until the
    /// stream has done the work, and that nobody else uses the outputs and the workspace meanwhile.
    #[pyo3(signature = (stream, workspace, addresses, lengths, beside=None))]
    fn run(
        &self,
        py: Python<'_>,
        stream: u64,
        workspace: (u64, u64),
        addresses: [u64; 5],
        lengths: [u64; 6],
        beside: Option<Beside>,
    ) -> PyResult<()> {
        let beside = beside.unwrap_or_default();
        // SAFETY: as the caller promises.
        py.detach(|| unsafe { self.enqueue(stream, workspace, addresses, lengths, &beside) })
            .map_err(to_py)
    }
}

impl Forward {
    /// # Safety
    /// As [`Forward::run`] says.
    pub(super) unsafe fn enqueue(
        &self,
        stream: u64,
        workspace: (u64, u64),
        [q, k, v, o, lse]: [u64; 5],
        lengths: Lengths,
        beside: &Beside,
    ) -> Result<(), Error> {
        let location = self.shape.location();
        let o = self.shape.span_o(Argument::O, o)?;
        let n_rows = self.shape.n_rows();
        // SAFETY: as the caller promises.
        let (inputs, mut outputs) = unsafe {
            let inputs = self.shape.inputs(location, [q, k, v], lengths, beside)?;
            let lse = location.statistics_mut(Argument::Lse, lse, n_rows)?;
            (inputs, Outputs::new(location.tensor_mut(o)?, lse))
        };
        match (&self.prepared, location) {
            (Some(prepared), Location::Cuda(device)) => {
                // SAFETY: as the caller promises.
                let mut queue = unsafe { queue(device, stream, workspace)? };
                prepared.forward(&mut queue, &inputs, &mut outputs)
            }
            _ => {
                let ran = self.shape.attention.forward(&inputs, &mut outputs);
                ran.map(|_ran| ())
            }
        }
    }
}

/// The backward pass of a problem on a device, planned.
#[pyclass(frozen, module = "ferroflash._native")]
pub(crate) struct Backward {
    shape: Shape,
    d_o: Layout,
    wanted: Wanted,
    /// `None` on the processor.
    prepared: Option<Arc<PreparedBackward>>,
}

#[pymethods]
impl Backward {
    /// As a forward pass; the fourth strides are of the gradient of o. All else is contiguous. `giving` names the gradients of
    /// optional inputs that runs give, too; `d_tensors` says it for each tensor that the score and the mask take.
    #[new]
    #[pyo3(signature = (problem, ordinal, strides, given, *, giving=Vec::new(), d_tensors=Vec::new()))]
    fn new(
        py: Python<'_>,
        problem: &Problem,
        ordinal: Option<u32>,
        strides: (Strides, Strides, Strides, Strides),
        given: [bool; 6],
        giving: Vec<String>,
        d_tensors: Vec<bool>,
    ) -> PyResult<Backward> {
        let (q, k, v, d_o) = &strides;
        py.detach(|| {
            let shape = Shape::new(problem, ordinal, [q, k, v], given)?;
            let sizes = &problem.problem;
            let wanted = Wanted::of(
                sizes,
                &shape.taken,
                giving.iter().any(|name| name == "d_sinks"),
                &d_tensors,
            )?;
            let d_o = strided(sizes.shape_o(), d_o);
            let layouts = wanted.asked(sizes, shape.layouts().with(Argument::DO, d_o));
            let prepared = match ordinal {
                Some(_) => Some(PLANS.backward(&shape.attention, &layouts)?),
                None => None,
            };
            Ok(Backward {
                shape,
                d_o,
                wanted,
                prepared,
            })
        })
        .map_err(|error: Error| to_py(error))
    }

    /// Bytes of device memory that a run needs beside its tensors, at a multiple of 256, and at least as many; 0 on the processor.
    #[getter]
    pub(super) fn workspace_bytes(&self) -> u64 {
        workspace_bytes(self.prepared.as_ref().map(|prepared| prepared.plan()))
    }

    /// Enqueues the gradients, or computes them, as a forward pass does o. Addresses are of q, k, v, o and lse, of the gradients of o and,
    /// or 0, of lse, and of those of q, k and v, which are written. `beside` has those of the others that are wanted, too: `d_sinks`, f32
    /// `[heads_q]`, and of each tensor `d_tensors`, contiguous and of the tensor's type, of the shape that the problem says.
    #[pyo3(signature = (stream, workspace, addresses, lengths, beside=None))]
    fn run(
        &self,
        py: Python<'_>,
        stream: u64,
        workspace: (u64, u64),
        addresses: [u64; 10],
        lengths: [u64; 6],
        beside: Option<Beside>,
    ) -> PyResult<()> {
        let beside = beside.unwrap_or_default();
        // SAFETY: as the caller promises.
        py.detach(|| unsafe { self.enqueue(stream, workspace, addresses, lengths, &beside) })
            .map_err(to_py)
    }
}

impl Backward {
    /// # Safety
    /// As [`Forward::run`] says.
    pub(super) unsafe fn enqueue(
        &self,
        stream: u64,
        workspace: (u64, u64),
        [q, k, v, o, lse, d_o, d_lse, d_q, d_k, d_v]: [u64; 10],
        lengths: Lengths,
        beside: &Beside,
    ) -> Result<(), Error> {
        let (shape, location) = (&self.shape, self.shape.location());
        let (o, n_rows) = (shape.span_o(Argument::O, o)?, shape.n_rows());
        let d_o = shape.span(Argument::DO, self.d_o, d_o);
        let [d_q, d_k, d_v] = [
            shape.span_q(Argument::DQ, d_q)?,
            shape.span_k(Argument::DK, d_k)?,
            shape.span_v(Argument::DV, d_v)?,
        ];
        // SAFETY: as the caller promises.
        let (inputs, saved, of_output, mut gradients) = unsafe {
            let inputs = shape.inputs(location, [q, k, v], lengths, beside)?;
            let lse = location.statistics(Argument::Lse, lse, n_rows)?;
            let saved = Saved::new(&location.tensor(o)?, lse);
            let mut of_output = OutputGradients::new(&location.tensor(d_o)?);
            if d_lse != 0 {
                of_output = of_output.d_lse(location.statistics(Argument::DLse, d_lse, n_rows)?);
            }
            let [d_q, d_k, d_v] = [
                location.tensor_mut(d_q)?,
                location.tensor_mut(d_k)?,
                location.tensor_mut(d_v)?,
            ];
            let gradients = Gradients::new(d_q, d_k, d_v);
            let problem = shape.attention.problem();
            let gradients = self.wanted.give(gradients, location, problem, beside)?;
            (inputs, saved, of_output, gradients)
        };
        match (&self.prepared, location) {
            (Some(prepared), Location::Cuda(device)) => {
                // SAFETY: as the caller promises.
                let mut queue = unsafe { queue(device, stream, workspace)? };
                prepared.backward(&mut queue, &inputs, &saved, &of_output, &mut gradients)
            }
            _ => {
                let attention = &shape.attention;
                let ran = attention.backward(&inputs, &saved, &of_output, &mut gradients);
                ran.map(|_ran| ())
            }
        }
    }
}

//! A planned pass or operation on a device, run on addresses, each under its argument's name.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use ferroflash::arguments::Argument;
use ferroflash::backend::cuda::sys::CUstream;
use ferroflash::backend::cuda::{CudaDevice, Queue};
use ferroflash::expression::{ParamValue, Type};
use ferroflash::prepared::Layouts;
use ferroflash::raw::{self, Addresses, ScoreTensor, Values};
use ferroflash::rotary::Direction;
use ferroflash::{Error, Layout, PlanCache};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::argument::argument;
use crate::device::device;
use crate::error::to_py;
use crate::operation::{Rotary, append_problem, quantize_problem, rotate_problem};
use crate::problem::{Problem, Taken, fp8_kv_of};

/// How many prepared calls are kept: a model has a few shapes for each kind of layer.
const N_PLANS: usize = 1024;

/// The prepared calls of all devices.
static PLANS: LazyLock<PlanCache> = LazyLock::new(|| PlanCache::new(N_PLANS));

/// Strides in elements, without the last one, which is 1: for `[batch, seqlen, heads, head_dim]`, or of `[total, heads, head_dim]`.
type Strides = Vec<usize>;

fn arguments(names: &[String]) -> PyResult<Vec<Argument>> {
    names.iter().map(|name| argument(name)).collect()
}

/// Addresses by the names of arguments: a dict.
struct Named(Addresses);

impl<'py> FromPyObject<'_, 'py> for Named {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Named> {
        let mut addresses = Addresses::default();
        for (name, address) in &*given.cast::<PyDict>()? {
            addresses.set(argument(name.extract::<&str>()?)?, address.extract()?);
        }
        Ok(Named(addresses))
    }
}

/// The address, the shape and the strides in elements of a tensor that an expression reads.
type Read = (u64, Vec<usize>, Vec<i64>);

/// A planned pass or operation on a device.
#[pyclass(frozen, module = "ferroflash._native")]
pub(crate) struct Call {
    call: raw::Call,
    /// The inputs of expressions.
    taken: Taken,
}

#[pymethods]
impl Call {
    /// A pass of a problem, "forward" or "backward", on the CUDA device of this ordinal, or on the processor. Strides are of tensors by name, in
    /// elements, without the last one, which is 1; the others are contiguous. `giving` names the optional arguments that runs give, and `without`
    /// the default ones that they leave out.
    #[new]
    #[pyo3(signature = (problem, kind, ordinal, strides, giving=Vec::new(), without=Vec::new()))]
    fn new(
        py: Python<'_>,
        problem: &Problem,
        kind: &str,
        ordinal: Option<u32>,
        strides: HashMap<String, Strides>,
        giving: Vec<String>,
        without: Vec<String>,
    ) -> PyResult<Call> {
        let sizes = &problem.problem;
        let layouts = layouts(&strides, &giving, |argument| match argument {
            Argument::Q => sizes.shape_q(),
            Argument::K => sizes.shape_k(),
            Argument::V => sizes.shape_v(),
            _ => sizes.shape_o(),
        })?;
        let without = arguments(&without)?.into_iter();
        let layouts = without.fold(layouts, |layouts, argument| layouts.without(argument));
        let call = py.detach(|| {
            let attention = problem.attention(ordinal)?;
            match kind {
                "backward" => raw::Call::backward(&attention, &layouts, &PLANS),
                _ => raw::Call::forward(&attention, &layouts, &PLANS),
            }
        });
        Ok(Call {
            call: call.map_err(to_py)?,
            taken: problem.taken.clone(),
        })
    }

    /// New rows of k and v written to a cache, k and q rotated by their positions. New rows are `[batch, seqlen, heads_k, head_dim]`, or packed; each
    /// cache is `[batch, seqlen_cache, heads_k, head_dim]`, with `columns` a pool, `[n_pages, page_size, heads_k, head_dim]`. There are as many
    /// queries, of `heads_q` heads, as new rows. They have the positions of these rows, or all the first one's. With `fp8_kv`, "per_sequence" or
    /// "per_page", the cache is in 8 bits with such scales.
    #[staticmethod]
    #[pyo3(signature = (dtype, shape_new, shape_cache, ordinal, strides, giving, *, batch, heads_q=0, columns=None, rotary=None, queries_at_first=false, fp8_kv=None))]
    #[expect(clippy::too_many_arguments, reason = "Python names them")]
    fn append(
        py: Python<'_>,
        dtype: &str,
        shape_new: Vec<usize>,
        shape_cache: Vec<usize>,
        ordinal: Option<u32>,
        strides: HashMap<String, Strides>,
        giving: Vec<String>,
        batch: usize,
        heads_q: usize,
        columns: Option<usize>,
        rotary: Option<Rotary>,
        queries_at_first: bool,
        fp8_kv: Option<&str>,
    ) -> PyResult<Call> {
        let problem = append_problem(
            dtype,
            batch,
            [&shape_new, &shape_cache],
            (columns, fp8_kv.map(fp8_kv_of).transpose()?),
            (heads_q, queries_at_first),
            rotary,
        )?;
        let layouts = layouts(&strides, &giving, |argument| match argument {
            Argument::Q => problem.shape_q(),
            Argument::KCache | Argument::VCache => problem.shape_cache(),
            _ => problem.shape_new(),
        })?;
        Call::of(py, || {
            let append = ferroflash::Append::new(&device(ordinal)?, problem)?;
            raw::Call::append(&append, &layouts, &PLANS)
        })
    }

    /// Rows rotated by their positions, `[batch, seqlen, heads, head_dim]`, or packed.
    #[staticmethod]
    #[pyo3(signature = (dtype, shape, ordinal, strides, giving, *, batch, rotary))]
    #[expect(clippy::too_many_arguments, reason = "Python names them")]
    fn rotate(
        py: Python<'_>,
        dtype: &str,
        shape: Vec<usize>,
        ordinal: Option<u32>,
        strides: HashMap<String, Strides>,
        giving: Vec<String>,
        batch: usize,
        rotary: Rotary,
    ) -> PyResult<Call> {
        let problem = rotate_problem(dtype, batch, &shape, rotary)?;
        let layouts = layouts(&strides, &giving, |_| problem.shape())?;
        Call::of(py, || {
            let rotate = ferroflash::Rotate::new(&device(ordinal)?, problem)?;
            raw::Call::rotate(&rotate, Direction::Forth, &layouts, &PLANS)
        })
    }

    /// A tensor `[batch, seqlen, heads, head_dim]` rounded to 8 bits, with a scale for each sequence and head of keys, a power of 2, or with given ones; with
    /// `hadamard` rotated first. With `packed`, the number of sequences and the most rows of one, it is `[total, heads, head_dim]`.
    #[staticmethod]
    #[pyo3(signature = (dtype, shape, ordinal, strides, giving, *, heads_k, hadamard, giving_descale=false, packed=None))]
    #[expect(clippy::too_many_arguments, reason = "Python names them")]
    fn quantize(
        py: Python<'_>,
        dtype: &str,
        shape: Vec<usize>,
        ordinal: Option<u32>,
        strides: HashMap<String, Strides>,
        giving: Vec<String>,
        heads_k: usize,
        hadamard: bool,
        giving_descale: bool,
        packed: Option<(usize, usize)>,
    ) -> PyResult<Call> {
        let problem = quantize_problem(dtype, &shape, heads_k, hadamard, packed)?;
        let problem = match giving_descale {
            true => problem.giving_descale(),
            false => problem,
        };
        let layouts = layouts(&strides, &giving, |_| problem.shape())?;
        Call::of(py, || {
            let quantize = ferroflash::Quantize::new(&device(ordinal)?, problem)?;
            raw::Call::quantize(&quantize, &layouts, &PLANS)
        })
    }

    /// Bytes of the workspace: device memory that a run needs in addition to its tensors, at a multiple of 256; 0 on the processor.
    #[getter]
    pub(super) fn workspace_bytes(&self) -> u64 {
        self.call.workspace_bytes()
    }

    /// Enqueues it on a stream; on the processor, computes it. `at` are addresses by name, of the types and shapes in the library's table and the
    /// layouts of the call. `params` are the numbers and `read` the tensors that the score and the mask take, `d_read` the addresses for gradients
    /// of these, 0 for those that are not wanted; `rng` is seed and offset of dropout if they are not in memory.
    ///
    /// The caller guarantees for the addresses that elements of the problem's shapes and types are there, on this device, until the stream has done
    /// the work, and that nothing else uses the outputs and the workspace meanwhile.
    #[pyo3(signature = (stream, workspace, at, params=Vec::new(), read=Vec::new(), d_read=Vec::new(), rng=None))]
    #[expect(clippy::too_many_arguments, reason = "Python names them")]
    fn run(
        &self,
        py: Python<'_>,
        stream: u64,
        workspace: (u64, u64),
        at: Named,
        params: Vec<f64>,
        read: Vec<Read>,
        d_read: Vec<u64>,
        rng: Option<[u64; 2]>,
    ) -> PyResult<()> {
        let named = self.taken.params.iter().zip(&params);
        let params = named.map(|(&(name, ty), &number)| match ty {
            Type::I32 => (name, ParamValue::I32(number as i32)),
            Type::F32 | Type::Bool => (name, ParamValue::F32(number as f32)),
        });
        let params = params.collect::<Vec<_>>();
        let tensors = self.taken.tensors.iter().copied();
        let score_tensors = tensors.clone().zip(&read);
        let score_tensors = score_tensors.map(|(name, (address, shape, strides))| ScoreTensor {
            name,
            address: *address,
            shape,
            strides,
        });
        let score_tensors = score_tensors.collect::<Vec<_>>();
        let written = tensors.zip(d_read).filter(|&(_, address)| address != 0);
        let written = written.collect::<Vec<_>>();
        let values = Values {
            dropout: rng,
            score_params: &params,
            score_tensors: &score_tensors,
            d_score_tensors: &written,
        };
        // SAFETY: as the caller promises.
        py.detach(|| unsafe { self.enqueue(stream, workspace, &at.0, &values) })
            .map_err(to_py)
    }
}

impl Call {
    /// A call without expressions.
    fn of(
        py: Python<'_>,
        plan: impl Send + FnOnce() -> Result<raw::Call, Error>,
    ) -> PyResult<Call> {
        Ok(Call {
            call: py.detach(plan).map_err(to_py)?,
            taken: Taken::default(),
        })
    }

    /// # Safety
    /// As [`Call::run`] says.
    pub(super) unsafe fn enqueue(
        &self,
        stream: u64,
        workspace: (u64, u64),
        addresses: &Addresses,
        values: &Values<'_>,
    ) -> Result<(), Error> {
        let Some(cuda) = self.call.device().as_cuda() else {
            // SAFETY: as the caller promises.
            return unsafe { self.call.run(addresses, values, None) };
        };
        // SAFETY: as the caller promises.
        unsafe {
            let mut queue = queue(cuda, stream, workspace)?;
            self.call.run(addresses, values, Some(&mut queue))
        }
    }
}

/// A queue on the caller's stream, in a workspace of this address and length.
///
/// # Safety
/// The stream belongs to the device and lives until the queue is dropped; nothing else uses the workspace until the work is done.
unsafe fn queue(
    device: &Arc<CudaDevice>,
    stream: u64,
    (address, n_bytes): (u64, u64),
) -> Result<Queue, Error> {
    let stream: CUstream = std::ptr::with_exposed_provenance_mut(stream as usize);
    // SAFETY: as the caller promises.
    unsafe { Queue::with_workspace(device, stream, address, n_bytes) }
}

/// Layouts of tensors with these strides, for calls that give these arguments. Packed rows are one batch entry.
fn layouts(
    strides: &HashMap<String, Strides>,
    giving: &[String],
    shape_of: impl Fn(Argument) -> [usize; 4],
) -> PyResult<Layouts> {
    let mut layouts = Layouts::contiguous();
    for (name, strides) in strides {
        let argument = argument(name)?;
        let strides = match **strides {
            [batch, row, head] => [batch, row, head],
            [row, head] => [0, row, head],
            _ => [0; 3],
        };
        layouts = layouts.with(argument, Layout::strided(shape_of(argument), strides));
    }
    let giving = arguments(giving)?.into_iter();
    Ok(giving.fold(layouts, |layouts, argument| layouts.giving(argument)))
}

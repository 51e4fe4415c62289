//! Rows rotated by their positions: planned, and run on addresses.

use std::sync::Arc;

use ferroflash::arguments::Argument;
use ferroflash::prepared::{Layouts, PreparedRotate};
use ferroflash::rotary::{Direction, Pairs, Turns};
use ferroflash::{Error, Layout, RotateInputs, RotateProblem};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::call::PLANS;
use super::memory::{Location, Span, queue};
use super::shape::{Strides, strided};
use crate::device::device;
use crate::error::to_py;
use crate::problem::dtype_of;

/// Whether the elements of pairs are interleaved, rotary_dim, and the positions of the tables.
#[derive(Clone, Copy, FromPyObject)]
pub(crate) struct Turned(pub(crate) bool, pub(crate) usize, pub(crate) usize);

impl Turned {
    pub(crate) fn pairs(interleaved: bool) -> Pairs {
        match interleaved {
            true => Pairs::Interleaved,
            false => Pairs::Halves,
        }
    }
}

/// Rotations of one shape and type on a device, planned.
#[pyclass(frozen, module = "ferroflash._native")]
pub(crate) struct Rotate {
    rotate: ferroflash::Rotate,
    is_packed: bool,
    x: Layout,
    y: Layout,
    /// `None` on the processor.
    prepared: Option<Arc<PreparedRotate>>,
}

#[pymethods]
impl Rotate {
    /// On the CUDA device of this ordinal, or on the processor. Rows are `[batch, seqlen, heads, head_dim]`, or packed; strides are of x, in
    /// elements, without the last one, which is 1. `rotary` is as that of an append.
    #[new]
    #[pyo3(signature = (dtype, shape, ordinal, strides, *, batch, rotary))]
    fn new(
        py: Python<'_>,
        dtype: &str,
        shape: Vec<usize>,
        ordinal: Option<u32>,
        strides: Strides,
        batch: usize,
        rotary: Turned,
    ) -> PyResult<Rotate> {
        let dtype = dtype_of(dtype)?;
        let Turned(interleaved, rotary_dim, n_positions) = rotary;
        let turns = Turns {
            pairs: Turned::pairs(interleaved),
            rotary_dim,
            n_positions,
        };
        let problem = match *shape {
            [batch, seqlen, heads, head_dim] => {
                RotateProblem::new(dtype, [batch, seqlen, heads, head_dim], turns)
            }
            [total, heads, head_dim] => {
                RotateProblem::packed(dtype, batch, [total, heads, head_dim], turns)
            }
            _ => {
                return Err(PyValueError::new_err(format!(
                    "x has the shape {shape:?}; allowed: [batch, seqlen, heads, head_dim], or packed [total, heads, head_dim]"
                )));
            }
        };
        let is_packed = shape.len() == 3;
        py.detach(|| Rotate::prepared(problem, is_packed, ordinal, &strides))
            .map_err(to_py)
    }

    /// Enqueues y on a stream; on the processor, computes it. Addresses are of x and of y, which is contiguous; and of the first position of
    /// each sequence, of cu_seqlens of packed rows, of cos and of sin.
    ///
    /// The caller answers for the addresses as with a forward pass.
    fn run(
        &self,
        py: Python<'_>,
        stream: u64,
        tensors: [u64; 2],
        vectors: [u64; 4],
    ) -> PyResult<()> {
        // SAFETY: as the caller promises.
        py.detach(|| unsafe { self.enqueue(stream, tensors, vectors) })
            .map_err(to_py)
    }
}

impl Rotate {
    fn prepared(
        problem: RotateProblem,
        is_packed: bool,
        ordinal: Option<u32>,
        strides: &Strides,
    ) -> Result<Rotate, Error> {
        let rotate = ferroflash::Rotate::new(&device(ordinal)?, problem)?;
        let x = strided(problem.shape(), strides);
        let layouts = Layouts::contiguous()
            .with(Argument::X, x)
            .giving(Argument::SeqlenOffsets);
        let prepared = match ordinal {
            Some(_) => Some(PLANS.rotate(&rotate, Direction::Forth, &layouts)?),
            None => None,
        };
        Ok(Rotate {
            rotate,
            is_packed,
            x,
            y: Layout::bshd(problem.shape())?,
            prepared,
        })
    }

    /// # Safety
    /// As [`Rotate::run`] says.
    unsafe fn enqueue(
        &self,
        stream: u64,
        [x, y]: [u64; 2],
        [offsets, cu_seqlens, cos, sin]: [u64; 4],
    ) -> Result<(), Error> {
        let problem = self.rotate.problem();
        let location = Location::of(self.rotate.device().as_cuda());
        let span = |argument, address, layout| Span {
            argument,
            address,
            layout,
            dtype: problem.dtype(),
        };
        let (batch, n_elems) = (problem.batch(), problem.turns().table_elems() as usize);
        // SAFETY: as the caller promises.
        let (inputs, mut y) = unsafe {
            let x = location.tensor(span(Argument::X, x, self.x))?;
            let table = |argument, address| location.statistics(argument, address, n_elems);
            let (cos, sin) = (table(Argument::Cos, cos)?, table(Argument::Sin, sin)?);
            let offsets = location.integers(Argument::SeqlenOffsets, offsets, batch)?;
            let mut inputs = RotateInputs::new(&x, cos, sin).seqlen_offsets(offsets);
            if self.is_packed {
                inputs = inputs.cu_seqlens(location.integers(
                    Argument::CuSeqlens,
                    cu_seqlens,
                    batch + 1,
                )?);
            }
            (inputs, location.tensor_mut(span(Argument::Y, y, self.y))?)
        };
        match (&self.prepared, location) {
            (Some(prepared), Location::Cuda(device)) => {
                // SAFETY: as the caller promises. A rotation has no workspace.
                let mut queue = unsafe { queue(device, stream, (0, 0))? };
                prepared.rotate(&mut queue, &inputs, &mut y)
            }
            _ => self.rotate.forward(&inputs, &mut y).map(drop),
        }
    }
}

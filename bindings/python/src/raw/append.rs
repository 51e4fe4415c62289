//! New rows of k and v written to a cache, with k and q rotated by their positions: planned, and run on addresses.

use std::sync::Arc;

use ferroflash::arguments::Argument;
use ferroflash::prepared::{Layouts, PreparedAppend};
use ferroflash::rotary::QueryPositions;
use ferroflash::{AppendInputs, AppendOutputs, AppendProblem, Dtype, Error, Layout, Pages};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::call::PLANS;
use super::memory::{Location, Span, queue};
use super::rotate::Turned;
use super::shape::{Strides, strided};
use crate::device::device;
use crate::error::to_py;
use crate::problem::{dtype_of, pages_of};

/// The tensors of a call, in the order of their addresses.
const TENSORS: [Argument; 6] = [
    Argument::KNew,
    Argument::VNew,
    Argument::KCache,
    Argument::VCache,
    Argument::Q,
    Argument::QOut,
];

/// Appends of one shape and type on a device, planned.
#[pyclass(frozen, module = "ferroflash._native")]
pub(crate) struct Append {
    append: ferroflash::Append,
    is_packed: bool,
    /// Of k_new, v_new, k_cache, v_cache, q and q_out.
    layouts: [Layout; 6],
    /// `None` on the processor.
    prepared: Option<Arc<PreparedAppend>>,
}

#[pymethods]
impl Append {
    /// On the CUDA device of this ordinal, or on the processor. New rows are `[batch, seqlen, heads_k, head_dim]`, or packed; each cache is
    /// `[batch, seqlen_cache, heads_k, head_dim]`, with `columns` a pool, `[n_pages, page_size, heads_k, head_dim]`. `rotary` is (whether pairs
    /// are interleaved, rotary_dim, positions of the tables). Queries, of `heads_q` heads, are as many as new rows, and stand at the positions
    /// of these, or all at the first one's. Strides are of k_new, v_new, k_cache, v_cache and q, in elements, without the last one, which is 1.
    #[new]
    #[pyo3(signature = (dtype, shape_new, shape_cache, ordinal, strides, *, batch, heads_q=0, columns=None, rotary=None, queries_at_first=false))]
    #[expect(clippy::too_many_arguments, reason = "Python names them")]
    fn new(
        py: Python<'_>,
        dtype: &str,
        shape_new: Vec<usize>,
        shape_cache: Vec<usize>,
        ordinal: Option<u32>,
        strides: [Strides; 5],
        batch: usize,
        heads_q: usize,
        columns: Option<usize>,
        rotary: Option<Turned>,
        queries_at_first: bool,
    ) -> PyResult<Append> {
        let dtype = dtype_of(dtype)?;
        let pages = columns
            .map(|columns| pages_of("k_cache", &shape_cache, columns))
            .transpose()?;
        let of_queries = (heads_q, queries_at_first);
        let problem = problem(
            dtype,
            batch,
            &shape_new,
            &shape_cache,
            pages,
            of_queries,
            rotary,
        )?;
        let is_packed = shape_new.len() == 3;
        py.detach(|| Append::prepared(problem, is_packed, ordinal, &strides))
            .map_err(to_py)
    }

    /// Enqueues the append on a stream; on the processor, does it. Addresses are of k_new, v_new, k_cache, v_cache, q and q_out, which is
    /// contiguous; and of seqused_k, seqused_out, cu_seqlens_new, page_table, cos and sin. What the append was not made for is not looked at.
    ///
    /// The caller answers for the addresses as with a forward pass.
    fn run(
        &self,
        py: Python<'_>,
        stream: u64,
        tensors: [u64; 6],
        vectors: [u64; 6],
    ) -> PyResult<()> {
        // SAFETY: as the caller promises.
        py.detach(|| unsafe { self.enqueue(stream, tensors, vectors) })
            .map_err(to_py)
    }
}

impl Append {
    fn prepared(
        problem: AppendProblem,
        is_packed: bool,
        ordinal: Option<u32>,
        strides: &[Strides; 5],
    ) -> Result<Append, Error> {
        let append = ferroflash::Append::new(&device(ordinal)?, problem)?;
        let [new, cache, q] = [
            problem.shape_new(),
            problem.shape_cache(),
            problem.shape_q(),
        ];
        let [k_new, v_new, k_cache, v_cache, of_q] = strides;
        let layouts = [
            strided(new, k_new),
            strided(new, v_new),
            strided(cache, k_cache),
            strided(cache, v_cache),
            strided(q, of_q),
            Layout::bshd(q)?,
        ];
        let mut known = Layouts::contiguous().giving(Argument::SeqUsedOut);
        let n_tensors = if problem.heads_q() > 0 { 5 } else { 4 };
        for (argument, layout) in TENSORS.into_iter().zip(layouts).take(n_tensors) {
            known = known.with(argument, layout);
        }
        let prepared = match ordinal {
            Some(_) => Some(PLANS.append(&append, &known)?),
            None => None,
        };
        Ok(Append {
            append,
            is_packed,
            layouts,
            prepared,
        })
    }

    /// # Safety
    /// As [`Append::run`] says.
    unsafe fn enqueue(
        &self,
        stream: u64,
        tensors: [u64; 6],
        [seqused_k, seqused_out, cu_seqlens_new, page_table, cos, sin]: [u64; 6],
    ) -> Result<(), Error> {
        let problem = self.append.problem();
        let location = Location::of(self.append.device().as_cuda());
        let span = |at: usize| Span {
            argument: TENSORS[at],
            address: tensors[at],
            layout: self.layouts[at],
            dtype: problem.dtype(),
        };
        let batch = problem.batch();
        // SAFETY: as the caller promises.
        let (inputs, mut outputs) = unsafe {
            let mut inputs = AppendInputs::new(
                &location.tensor(span(0))?,
                &location.tensor(span(1))?,
                location.integers(Argument::SeqUsedK, seqused_k, batch)?,
            );
            let caches = [location.tensor_mut(span(2))?, location.tensor_mut(span(3))?];
            let [k_cache, v_cache] = caches;
            let mut outputs = AppendOutputs::new(k_cache, v_cache)
                .seqused_out(location.integers_mut(Argument::SeqUsedOut, seqused_out, batch)?);
            if problem.heads_q() > 0 {
                inputs = inputs.q(&location.tensor(span(4))?);
                outputs = outputs.q_out(location.tensor_mut(span(5))?);
            }
            if self.is_packed {
                let cu_seqlens =
                    location.integers(Argument::CuSeqlensNew, cu_seqlens_new, batch + 1)?;
                inputs = inputs.cu_seqlens_new(cu_seqlens);
            }
            if let Some(pages) = problem.pages() {
                // That the product can be counted has been checked.
                let n_entries = batch * pages.n_columns(problem.seqlen_cache());
                let table = location.integers(Argument::PageTable, page_table, n_entries)?;
                inputs = inputs.page_table(table);
            }
            if let Some(turns) = problem.turns() {
                let n_elems = turns.table_elems() as usize;
                let table = |argument, address| location.statistics(argument, address, n_elems);
                inputs = inputs.rotary(table(Argument::Cos, cos)?, table(Argument::Sin, sin)?);
            }
            (inputs, outputs)
        };
        match (&self.prepared, location) {
            (Some(prepared), Location::Cuda(device)) => {
                // SAFETY: as the caller promises. An append has no workspace.
                let mut queue = unsafe { queue(device, stream, (0, 0))? };
                prepared.append(&mut queue, &inputs, &mut outputs)
            }
            _ => self.append.run(&inputs, &mut outputs).map(drop),
        }
    }
}

fn problem(
    dtype: Dtype,
    batch: usize,
    shape_new: &[usize],
    shape_cache: &[usize],
    pages: Option<Pages>,
    (heads_q, queries_at_first): (usize, bool),
    rotary: Option<Turned>,
) -> PyResult<AppendProblem> {
    let [_, rows, heads_k, head_dim] = *shape_cache else {
        return Err(PyValueError::new_err(format!(
            "k_cache has the shape {shape_cache:?}; allowed: [batch, seqlen, heads, head_dim]"
        )));
    };
    let builder = AppendProblem::builder(dtype)
        .batch(batch)
        .heads_q(heads_q)
        .heads_k(heads_k)
        .head_dim(head_dim);
    let builder = match *shape_new {
        [_, seqlen, _, _] => builder.seqlen_new(seqlen),
        [total, _, _] => builder.packed_new(total),
        _ => {
            return Err(PyValueError::new_err(format!(
                "k has the shape {shape_new:?}; allowed: [batch, seqlen, heads, head_dim], or packed [total, heads, head_dim]"
            )));
        }
    };
    let builder = match pages {
        Some(pages) => {
            let most = pages.n_columns(0).saturating_mul(pages.page_size());
            builder.seqlen_cache(most).pages(pages)
        }
        None => builder.seqlen_cache(rows),
    };
    let builder = match rotary {
        Some(Turned(interleaved, rotary_dim, n_positions)) => {
            builder.rotary(Turned::pairs(interleaved), rotary_dim, n_positions)
        }
        None => builder,
    };
    let builder = builder.query_positions(match queries_at_first {
        true => QueryPositions::First,
        false => QueryPositions::Ascending,
    });
    let problem = builder.build().map_err(to_py)?;
    let rows = match *shape_new {
        [total, heads, head_dim] => vec![1, total, heads, head_dim],
        _ => shape_new.to_vec(),
    };
    agree("k", &rows, problem.shape_new())?;
    agree("k_cache", shape_cache, problem.shape_cache())?;
    Ok(problem)
}

/// Whether a shape is what the others say.
fn agree(argument: &str, given: &[usize], needed: [usize; 4]) -> PyResult<()> {
    if given == needed {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "{argument} has the shape {given:?}; needed: {needed:?}"
    )))
}

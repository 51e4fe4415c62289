//! Operations other than attention: appends, rotations and roundings to 8 bits, from shapes.

use ferroflash::rotary::{Pairs, QueryPositions, Turns};
use ferroflash::{AppendProblem, Fp8, Fp8Kv, QuantizeProblem, RotateProblem};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::to_py;
use crate::problem::{dtype_of, pages_of};

/// Whether the elements of pairs are interleaved, rotary_dim, and the positions of the tables.
#[derive(Clone, Copy, FromPyObject)]
pub(crate) struct Rotary(bool, usize, usize);

impl Rotary {
    fn turns(self) -> Turns {
        let Rotary(interleaved, rotary_dim, n_positions) = self;
        Turns {
            pairs: match interleaved {
                true => Pairs::Interleaved,
                false => Pairs::Halves,
            },
            rotary_dim,
            n_positions,
        }
    }
}

/// New rows for caches of these shapes; with `columns` a cache is a pool of pages, with scales in 8 bits. `heads_q`, and whether all queries have the first position.
pub(crate) fn append_problem(
    dtype: &str,
    batch: usize,
    [shape_new, shape_cache]: [&[usize]; 2],
    (columns, scales): (Option<usize>, Option<Fp8Kv>),
    (heads_q, queries_at_first): (usize, bool),
    rotary: Option<Rotary>,
) -> PyResult<AppendProblem> {
    let [_, rows, heads_k, head_dim] = *shape_cache else {
        return Err(PyValueError::new_err(format!(
            "k_cache has the shape {shape_cache:?}; allowed: [batch, seqlen, heads, head_dim]"
        )));
    };
    let builder = AppendProblem::builder(dtype_of(dtype)?)
        .batch(batch)
        .heads_q(heads_q)
        .heads_k(heads_k)
        .head_dim(head_dim);
    let builder = match *shape_new {
        [_, seqlen, _, _] => builder.seqlen_new(seqlen),
        [total, _, _] => builder.packed_new(total),
        _ => return Err(refused("k", shape_new)),
    };
    let builder = match columns {
        Some(columns) => {
            let pages = pages_of("k_cache", shape_cache, columns)?;
            let most = columns.saturating_mul(pages.page_size());
            builder.seqlen_cache(most).pages(pages)
        }
        None => builder.seqlen_cache(rows),
    };
    let builder = match scales {
        Some(scales) => builder.fp8_kv(scales),
        None => builder,
    };
    let builder = match rotary.map(Rotary::turns) {
        Some(turns) => builder.rotary(turns.pairs, turns.rotary_dim, turns.n_positions),
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

/// Rows of this shape to be rotated.
pub(crate) fn rotate_problem(
    dtype: &str,
    batch: usize,
    shape: &[usize],
    rotary: Rotary,
) -> PyResult<RotateProblem> {
    let (dtype, turns) = (dtype_of(dtype)?, rotary.turns());
    match *shape {
        [batch, seqlen, heads, head_dim] => Ok(RotateProblem::new(
            dtype,
            [batch, seqlen, heads, head_dim],
            turns,
        )),
        [total, heads, head_dim] => Ok(RotateProblem::packed(
            dtype,
            batch,
            [total, heads, head_dim],
            turns,
        )),
        _ => Err(refused("x", shape)),
    }
}

/// A tensor of this shape to be rounded to 8 bits, with a scale for each sequence and head of keys, a power of 2. With `hadamard` its rows are rotated first. Packed
/// sequences have their number and the most rows of one.
pub(crate) fn quantize_problem(
    dtype: &str,
    shape: &[usize],
    heads_k: usize,
    hadamard: bool,
    packed: Option<(usize, usize)>,
) -> PyResult<QuantizeProblem> {
    let (dtype, scales) = (dtype_of(dtype)?, Fp8::PerHead);
    let problem = match (shape, packed) {
        (&[batch, seqlen, heads, head_dim], None) => {
            QuantizeProblem::new(dtype, [batch, seqlen, heads, head_dim], scales)
        }
        (&[total, heads, head_dim], Some((batch, max_seqlen))) => {
            let shape = [total, heads, head_dim];
            QuantizeProblem::packed(dtype, batch, max_seqlen, shape, scales)
        }
        _ => return Err(refused("x", shape)),
    };
    let problem = problem.heads_k(heads_k).power_of_2();
    Ok(match hadamard {
        true => problem.hadamard(Some(0)),
        false => problem,
    })
}

fn refused(argument: &str, shape: &[usize]) -> PyErr {
    PyValueError::new_err(format!(
        "{argument} has the shape {shape:?}; allowed: [batch, seqlen, heads, head_dim], or packed [total, heads, head_dim]"
    ))
}

/// Checks a shape against the others.
fn agree(argument: &str, given: &[usize], needed: [usize; 4]) -> PyResult<()> {
    if given == needed {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "{argument} has the shape {given:?}; needed: {needed:?}"
    )))
}

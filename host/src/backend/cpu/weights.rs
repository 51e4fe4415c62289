//! Chosen rows of the weights of one head: their scores, block of keys by block, then the softmax of each row at once.
//!
//! The result holds the scores until they are weights, so a thread's only other memory is a block of keys and a panel of rows. Each row is a task;
//! its result does not depend on which other rows are asked for.

use std::ops::Range;

use float8::F8E4M3;
use half::{bf16, f16};
use rayon::prelude::*;

use super::buffer::{Panel, Tile};
use super::edit::{Editor, Lanes};
use super::machine::Machine;
use super::rows::{HeadRows, Scales, View};
use super::sequences::Sequences;
use super::sizes::Location;
use super::{pool, vector};
use crate::arguments::{Argument, Operand, Operands};
use crate::backend::fetch::{Fetch, Run};
use crate::dtype::{Dtype, Element, Scalar, Widen};
use crate::error::{Error, ProblemError};
use crate::lengths::{Paged, Span};
use crate::problem::{Fp8Kv, Problem};
use crate::tensor::{Layout, Memory, Tensor};
use crate::terms::WeightsOf;

/// Keys of a block.
const BLOCK_K: usize = 128;

/// Writes the rows, each of `seqlen_k` of the problem, and says how many keys the sequence has. Vectors are on the host; q and k may be on a device.
pub(crate) fn run(
    problem: &Problem,
    operands: &mut Operands,
    of: &WeightsOf,
    fetch: &Fetch,
    out: &mut [f32],
) -> Result<usize, Error> {
    match problem.dtype() {
        Dtype::Bf16 => typed::<bf16>(problem, operands, of, fetch, out),
        Dtype::F16 => typed::<f16>(problem, operands, of, fetch, out),
        Dtype::F32 => typed::<f32>(problem, operands, of, fetch, out),
    }
}

fn typed<T: Element>(
    problem: &Problem,
    operands: &mut Operands,
    of: &WeightsOf,
    fetch: &Fetch,
    out: &mut [f32],
) -> Result<usize, Error> {
    match problem.fp8_kv() {
        Some(_) => rows::<T, F8E4M3>(problem, operands, of, fetch, out),
        None => rows::<T, T>(problem, operands, of, fetch, out),
    }
}

/// With queries of type `T` and keys of type `K`.
fn rows<T: Element, K: Scalar + Widen>(
    problem: &Problem,
    operands: &mut Operands,
    of: &WeightsOf,
    fetch: &Fetch,
    out: &mut [f32],
) -> Result<usize, Error> {
    let sequences = Sequences::new(problem, operands)?;
    let sequence = sequences.ungrouped(of.batch);
    let at = sequences.location_of_head(&sequence, of.batch, of.head);
    let seqlen_q = sequence.sizes.seqlen_q;
    if of.rows.end > seqlen_q {
        return Err(ProblemError::WeightsOfRows {
            given: of.rows.clone(),
            sequence: of.batch,
            seqlen_q,
        }
        .into());
    }
    let pages = Paged::of(problem, |argument| operands.numbers(argument))?;
    let scales = problem.fp8_kv().and_then(|of| {
        let values = vector::<f32>(operands, Argument::KDescale)?;
        Some(Scales { values, of })
    });
    let sinks = vector::<f32>(operands, Argument::Sinks);
    let factors = super::query_factors(operands);
    let (q, k) = (
        tensor(operands, Argument::Q)?,
        tensor(operands, Argument::K)?,
    );
    let queries = Span {
        first: sequence.q.first + of.rows.start,
        len: of.rows.len(),
        ..sequence.q
    };
    let (mut copy_of_q, mut copy_of_k) = (Copied::<T>::default(), Copied::<K>::default());
    let plain = Stored {
        pages: None,
        scales: None,
    };
    let inputs = Inputs {
        q: plain
            .head_rows(&q, (queries, of.head), fetch, &mut copy_of_q)?
            .times(factors.map(|factors| factors[of.head])),
        first_query: of.rows.start,
        k: Stored { pages, scales }.head_rows(
            &k,
            (sequence.k, at.head_k),
            fetch,
            &mut copy_of_k,
        )?,
        sink: sinks.map_or(f32::NEG_INFINITY, |sinks| sinks[of.head]),
    };
    pool::install(|| compute(&sequences, at, &inputs, of.rows.clone(), out));
    Ok(sequence.sizes.seqlen_k)
}

fn tensor<'a>(operands: &mut Operands<'a>, argument: Argument) -> Result<Tensor<'a>, ProblemError> {
    match operands.take(argument) {
        Some(Operand::Tensor(tensor)) => Ok(tensor),
        _ => Err(super::missing(argument)),
    }
}

/// The pages and the scales of a tensor, if it has some.
#[derive(Clone, Copy)]
struct Stored<'a> {
    pages: Option<Paged<'a>>,
    scales: Option<Scales<'a>>,
}

/// The rows of a head, copied from a device: packed; of one in pages, each of its pages as a whole, with a table that names them in their
/// order.
struct Copied<T> {
    elements: Vec<T>,
    table: Vec<i32>,
    scales: Vec<f32>,
}

impl<T> Default for Copied<T> {
    fn default() -> Copied<T> {
        Copied {
            elements: Vec::new(),
            table: Vec::new(),
            scales: Vec::new(),
        }
    }
}

impl<'a> Stored<'a> {
    /// The rows of a sequence and one head of the tensor; `copied` gets them where they lie on a device.
    fn head_rows<'r, T: Scalar + Widen>(
        self,
        tensor: &Tensor<'a>,
        (span, head): (Span, usize),
        fetch: &Fetch,
        copied: &'r mut Copied<T>,
    ) -> Result<HeadRows<'r, T>, Error>
    where
        'a: 'r,
    {
        let layout = tensor.layout();
        let Memory::Device(slice) = tensor.memory() else {
            let data = tensor.host::<T>().unwrap_or_default();
            let view = View::new(data, layout).in_pages(self.pages);
            return Ok(view.scaled(self.scales).head_rows(span, head, 1));
        };
        let run = |first_row: usize, n_rows: usize| Run {
            first: first_row + head * layout.head_stride,
            stride: layout.row_stride,
            n_rows,
            n_columns: layout.head_dim,
        };
        // Where the first row is among the copies, and how many rows a piece of them has.
        let (mut first, mut n_rows) = (0, span.len);
        let scale_of = |entry: usize| {
            self.scales
                .map(|Scales { values, .. }| values[entry * layout.heads + head])
        };
        if let Some(Fp8Kv::PerSequence) = self.scales.map(|scales| scales.of) {
            copied.scales.extend(scale_of(span.batch_idx));
        }
        match self.pages {
            None => {
                let first_row =
                    span.batch_idx * layout.batch_stride + span.first * layout.row_stride;
                fetch.rows(slice, run(first_row, span.len), &mut copied.elements)?;
            }
            Some(pages) => {
                n_rows = pages.page_size();
                first = span.first % n_rows;
                let slots = span.first / n_rows..(span.first + span.len).div_ceil(n_rows);
                for &page in &pages.entries(span.batch_idx)[slots] {
                    let page = page as usize;
                    let of_page = run(page * layout.batch_stride, n_rows);
                    fetch.rows(slice, of_page, &mut copied.elements)?;
                    copied.table.push(copied.table.len() as i32);
                    if let Some(Fp8Kv::PerPage) = self.scales.map(|scales| scales.of) {
                        copied.scales.extend(scale_of(page));
                    }
                }
            }
        }
        let copied: &'r Copied<T> = copied;
        let head_dim = layout.head_dim;
        let shape = [copied.table.len().max(1), n_rows, 1, head_dim];
        let packed = Layout::strided(shape, [n_rows * head_dim, head_dim, head_dim]);
        let table = self.pages.map(|_| Paged::of_copies(&copied.table, n_rows));
        let scales = self.scales.map(|Scales { of, .. }| Scales {
            values: &copied.scales,
            of,
        });
        let span = Span {
            batch_idx: 0,
            first,
            len: span.len,
        };
        let view = View::new(&copied.elements, packed).in_pages(table);
        Ok(view.scaled(scales).head_rows(span, 0, 1))
    }
}

/// The inputs of the weights.
struct Inputs<'a, T, K> {
    /// The queries that are asked for.
    q: HeadRows<'a, T>,
    /// Which row of the sequence the first is.
    first_query: usize,
    k: HeadRows<'a, K>,
    /// −∞: there is none.
    sink: f32,
}

fn compute<T: Element, K: Widen>(
    sequences: &Sequences,
    at: Location,
    inputs: &Inputs<T, K>,
    rows: Range<usize>,
    out: &mut [f32],
) {
    if out.is_empty() {
        return;
    }
    let machine = Machine::detect();
    let (seqlen, per_task) = (sequences.longest.seqlen_k, machine.wide_lanes());
    let tasks = out.par_chunks_mut(per_task * seqlen).enumerate();
    tasks.for_each_init(
        || Workspace::new(machine, at.sequence.sizes.head_dim, sequences.editor()),
        |workspace, (task, out)| {
            let first = rows.start + task * per_task;
            let rows = first..first + out.len() / seqlen;
            workspace.scores(at, inputs, rows, (out, seqlen));
            for row in out.chunks_exact_mut(seqlen) {
                let (keys, beyond) = row.split_at_mut(at.sequence.sizes.seqlen_k);
                softmax(keys, at.sequence.sizes.exponent_scale, inputs.sink);
                beyond.fill(0.0);
            }
        },
    );
}

/// What one thread works in.
struct Workspace<'e> {
    machine: Machine,
    editor: Option<Editor<'e>>,
    /// Queries, then blocks of keys.
    rows: Tile,
    q: Panel,
    s: Panel,
}

impl<'e> Workspace<'e> {
    fn new(machine: Machine, head_dim: usize, editor: Option<Editor<'e>>) -> Workspace<'e> {
        let lanes = machine.wide_lanes();
        let block_k = BLOCK_K.max(lanes);
        Workspace {
            machine,
            editor,
            rows: Tile::new(block_k, head_dim),
            q: Panel::new(head_dim, lanes),
            s: Panel::new(block_k, lanes),
        }
    }

    /// Writes the scores of some queries, −∞ where a key is hidden, into rows of `seqlen` elements.
    fn scores<T: Element, K: Widen>(
        &mut self,
        at: Location,
        inputs: &Inputs<T, K>,
        queries: Range<usize>,
        (out, seqlen): (&mut [f32], usize),
    ) {
        let given = queries.start - inputs.first_query..queries.end - inputs.first_query;
        let lanes = self.machine.lanes_for(queries.len());
        inputs.q.load(given, &mut self.rows);
        self.q.transpose(&self.rows, 0..queries.len(), lanes);
        let n_keys = at.sequence.sizes.seqlen_k;
        for first in (0..n_keys).step_by(BLOCK_K) {
            let block = first..n_keys.min(first + BLOCK_K);
            let keys = at.keys_of_step(&queries, &block);
            if !keys.is_empty() {
                inputs.k.load(keys.clone(), &mut self.rows);
                let all = 0..keys.len();
                self.machine
                    .multiply_rows(&self.rows, all, &self.q, &mut self.s); // S = K Qᵀ
                if let Some(editor) = &mut self.editor {
                    let pairs = (&queries, &keys);
                    editor.edit(&at, Lanes::Queries, pairs, &mut self.s, None);
                }
                at.hide_keys(&mut self.s, &queries, keys.clone());
            }
            for (lane, row) in out.chunks_exact_mut(seqlen).enumerate() {
                for key in keys.clone() {
                    row[key] = self.s.row(key - keys.start)[lane];
                }
                // Of a block whose keys are all hidden the end may lie in front of it.
                row[keys.end.max(block.start)..block.end].fill(f32::NEG_INFINITY);
            }
        }
    }
}

/// Scores of a row → weights: exp(s · scale − m) / Σ, with the sink's term in the sum. A row that sees no key gives 0.
fn softmax(row: &mut [f32], scale: f32, sink: f32) {
    let largest = row.iter().fold(sink, |m, s| m.max(s * scale));
    let m = match largest {
        f32::NEG_INFINITY => 0.0,
        _ => largest,
    };
    let mut sum = f64::from((sink - m).exp());
    for s in &mut *row {
        *s = (*s * scale - m).exp();
        sum += f64::from(*s);
    }
    if sum != 0.0 {
        row.iter_mut()
            .for_each(|p| *p = (f64::from(*p) / sum) as f32);
    }
}

//! Gradients of tensors that a score reads at its own position: `dT = Σ P ∘ (dP − Δ) ∘ ∂f/∂t` over the batch entries and heads that read an
//! element. A task is a run of queries, and goes through the keys, of one head or of all that share the tensor's.

use std::ops::Range;

use ferroflash_expression::{Index, ReadDims};
use half::{bf16, f16};
use rayon::prelude::*;

use super::queries::{self, Workspace};
use super::{Inputs, RowStatistics};
use crate::backend::cpu::machine::Machine;
use crate::backend::cpu::sequences::Sequences;
use crate::backend::cpu::sizes::Sizes;
use crate::dtype::Element;

/// Queries of a task.
const QUERIES: usize = 16;

/// A wanted gradient: contiguous, with a dimension for each of the score's read.
pub(in crate::backend::cpu) struct TensorGradient<'a> {
    /// The tensor's index among those of the expressions.
    pub(in crate::backend::cpu) place: usize,
    pub(in crate::backend::cpu) read: ReadDims,
    /// The extent of each dimension.
    pub(in crate::backend::cpu) extents: Vec<usize>,
    pub(in crate::backend::cpu) elements: Elements<'a>,
}

/// Its output.
pub(in crate::backend::cpu) enum Elements<'a> {
    F32(&'a mut [f32]),
    F16(&'a mut [f16]),
    Bf16(&'a mut [bf16]),
}

/// A run of queries of a batch entry of the gradient, and of one KV head or, if the tensor has no dimension of heads, of all.
struct Task {
    batch: usize,
    group: usize,
    queries: Range<usize>,
}

impl TensorGradient<'_> {
    fn has(&self, index: Index) -> bool {
        self.read.dim_of(index).is_some()
    }

    /// The element for these values of the indices.
    fn offset(&self, value_of: impl Fn(Index) -> usize) -> usize {
        let dims = self.read.dims().iter().zip(&self.extents);
        dims.fold(0, |offset, (index, extent)| {
            offset * extent + index.map_or(0, &value_of)
        })
    }

    fn set(&mut self, offset: usize, sum: f32) {
        match &mut self.elements {
            Elements::F32(elements) => elements[offset] = sum,
            Elements::F16(elements) => elements[offset] = f16::from_f32(sum),
            Elements::Bf16(elements) => elements[offset] = bf16::from_f32(sum),
        }
    }
}

/// Writes one gradient.
pub(super) fn d_tensor<T: Element>(
    machine: Machine,
    sequences: &Sequences,
    inputs: &Inputs<T>,
    rows: &RowStatistics,
    gradient: &mut TensorGradient,
) {
    let sizes = sequences.longest.with_derivative();
    let groups = match gradient.has(Index::Head) || gradient.has(Index::KvHead) {
        true => sizes.heads_k,
        false => 1,
    };
    let heads = match gradient.has(Index::Head) {
        true => sizes.group_size,
        false => 1,
    };
    let batches = match gradient.has(Index::Batch) {
        true => sequences.len(),
        false => 1,
    };
    let mut tasks = Vec::new();
    for (batch, group) in
        (0..batches).flat_map(|batch| (0..groups).map(move |group| (batch, group)))
    {
        tasks.extend((0..sizes.seqlen_q).step_by(QUERIES).map(|first| Task {
            batch,
            group,
            queries: first..sizes.seqlen_q.min(first + QUERIES),
        }));
    }
    let place = gradient.place;
    let workspace = || {
        let editor = sequences.editor_of_tensor(place);
        Workspace::new(machine, &sizes, n_panels(machine, &sizes), editor)
    };
    // As many sums as threads lie in memory at a time.
    for tasks in tasks.chunks(rayon::current_num_threads().max(1)) {
        let sums: Vec<Vec<f32>> = tasks
            .par_iter()
            .map_init(workspace, |workspace, task| {
                let of_all = |all: usize, each: usize, n: usize| match n {
                    1 => 0..all,
                    _ => each..each + 1,
                };
                let mut sums = vec![0.0; heads * task.queries.len() * sizes.seqlen_k];
                for sequence_idx in of_all(sequences.len(), task.batch, batches) {
                    for head_k in of_all(sizes.heads_k, task.group, groups) {
                        let at = sequences.location(sequence_idx, head_k);
                        let own = &at.sequence.sizes;
                        let end = task.queries.end.min(own.seqlen_q);
                        let all_rows =
                            task.queries.start.min(end) * own.group_size..end * own.group_size;
                        let most = workspace.most_rows();
                        for first in all_rows.clone().step_by(most) {
                            let run = first..all_rows.end.min(first + most);
                            workspace.visit(inputs, rows, at, run, |panel_rows, keys, (p, d_s)| {
                                for (lane, row) in panel_rows.enumerate() {
                                    let head = (row % own.group_size) % heads;
                                    let query = row / own.group_size - task.queries.start;
                                    let row = (head * task.queries.len() + query) * sizes.seqlen_k;
                                    for (key_idx, key) in keys.clone().enumerate() {
                                        // Where nothing is seen dP may be anything.
                                        if p.row(key_idx)[lane] != 0.0 {
                                            sums[row + key] += d_s.row(key_idx)[lane];
                                        }
                                    }
                                }
                            });
                        }
                    }
                }
                sums
            })
            .collect();
        for (task, sums) in tasks.iter().zip(&sums) {
            write(gradient, task, heads, sizes.seqlen_k, sums);
        }
    }
}

/// Writes the sums of a task: of each head, query and key.
fn write(gradient: &mut TensorGradient, task: &Task, heads: usize, seqlen_k: usize, sums: &[f32]) {
    for (idx, &sum) in sums.iter().enumerate() {
        let (row, key) = (idx / seqlen_k, idx % seqlen_k);
        let (head, query) = (row / task.queries.len(), row % task.queries.len());
        let offset = gradient.offset(|index| match index {
            Index::Batch => task.batch,
            Index::Head => task.group * heads + head,
            Index::KvHead => task.group,
            Index::Query => task.queries.start + query,
            Index::Key => key,
            Index::SeqlenQ | Index::SeqlenK => 0,
        });
        gradient.set(offset, sum);
    }
}

fn n_panels(machine: Machine, sizes: &Sizes) -> usize {
    (QUERIES * sizes.group_size)
        .div_ceil(machine.wide_lanes())
        .clamp(1, super::MAX_PANELS)
}

/// Bytes of one thread's working memory, including its sums.
pub(in crate::backend::cpu) fn bytes_per_thread(machine: Machine, sizes: &Sizes) -> u64 {
    let sizes = sizes.with_derivative();
    let sums = QUERIES * sizes.group_size * sizes.seqlen_k * size_of::<f32>();
    queries::bytes_of_panels(machine, &sizes, n_panels(machine, &sizes)) + sums as u64
}

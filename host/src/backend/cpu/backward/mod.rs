//! Algorithm 2 of FlashAttention-2, in two passes: dQ with queries in the lanes, dK and dV with keys in the lanes.
//!
//! Each pass computes S and dP again (7 products instead of 5), and in return every task owns its sums: nothing is shared between threads or added
//! in an order that depends on them, and a single head keeps all cores busy. As in the forward pass, the results of a row or a key do not depend on
//! its panel or task.

mod differentiate;
mod keys;
mod queries;
mod sinks;
pub(super) mod tensors;

use std::ops::Range;

use rayon::prelude::*;

use self::tensors::TensorGradient;
use super::buffer::Panel;
use super::cut::Rows;
use super::machine::Machine;
use super::rows::View;
use super::sequences::Sequences;
use super::sizes::{Location, Sizes};
use crate::dtype::Element;
use crate::lengths::Span;
use differentiate::Statistics;

/// Rows of a block that meet the lanes: keys in the pass over dQ, rows of q in the pass over dK and dV.
const BLOCK: usize = 64;

/// Panels of a task at most: enough that widening the tiles costs little, few enough that the panels stay in the second
/// level of the cache.
const MAX_PANELS: usize = 6;

/// The inputs.
pub(super) struct Inputs<'a, T> {
    pub(super) q: View<'a, T>,
    pub(super) k: View<'a, T>,
    pub(super) v: View<'a, T>,
    pub(super) o: View<'a, T>,
    pub(super) d_o: View<'a, T>,
    /// In the order of lse: (batch entry, head, position).
    pub(super) d_lse: Option<&'a [f32]>,
    /// A sink for each head of q, if there are some.
    pub(super) sinks: Option<&'a [f32]>,
}

/// S and dP of one panel and its rows in one step.
struct Scores {
    s: Panel,
    d_p: Panel,
    /// The derivatives of an expression that has edited S.
    gradient: Option<Panel>,
}

impl Scores {
    fn new(sizes: &Sizes, n_rows: usize, lanes: usize) -> Scores {
        let panel = || Panel::new(n_rows, lanes);
        Scores {
            s: panel(),
            d_p: panel(),
            gradient: sizes.has_derivative.then(panel),
        }
    }

    fn n_bytes(sizes: &Sizes, n_rows: usize, lanes: usize) -> u64 {
        (2 + u64::from(sizes.has_derivative)) * Panel::n_bytes(n_rows, lanes)
    }
}

/// The outputs: rows in the order (batch entry, group, row).
pub(super) struct Outputs<'q, 'k, 'v, 'o, T> {
    pub(super) d_q: &'o mut [&'q mut [T]],
    pub(super) d_k: &'o mut [&'k mut [T]],
    pub(super) d_v: &'o mut [&'v mut [T]],
    /// Gradients of sinks of each head of q, if they are wanted.
    pub(super) d_sinks: Option<&'o mut [f32]>,
    /// The wanted gradients of tensors that the score reads.
    pub(super) d_tensors: Vec<TensorGradient<'o>>,
}

/// Bytes of one thread's working memory, in the pass that takes more.
pub(super) fn bytes_per_thread(machine: Machine, sizes: &Sizes, n_sequences: usize) -> u64 {
    let of_queries = queries::bytes_per_thread(machine, sizes, n_sequences);
    of_queries.max(keys::bytes_per_thread(machine, sizes, n_sequences))
}

/// The statistics of each row of q for both passes, in the order (batch entry, group, row).
struct RowStatistics {
    /// Their order.
    rows: Rows,
    /// lse · log₂ e; +∞ for a row that saw no key, so that its probabilities come out as 0.
    lse_log2: Vec<f32>,
    /// Δ = rowsum(dO ∘ O) − dL, where dL is the gradient of lse: 0 unless given, and for a row that saw no key.
    delta: Vec<f32>,
}

impl RowStatistics {
    /// The index of the first row of this sequence and head.
    fn first(&self, at: Location) -> usize {
        self.rows.first(at.sequence.q, at.head_k)
    }

    /// The statistics of some rows of one group, which are the rows of a panel.
    fn of(&self, at: Location, rows: Range<usize>) -> Statistics<'_> {
        let first = self.first(at);
        let rows = first + rows.start..first + rows.end;
        Statistics::PerRow {
            lse_log2: &self.lse_log2[rows.clone()],
            delta: &self.delta[rows],
        }
    }
}

/// Writes d_q, d_k and d_v. `lse` is in the order (batch entry, group, row).
pub(super) fn backward<T: Element>(
    machine: Machine,
    sequences: &Sequences,
    inputs: &Inputs<T>,
    lse: Vec<f32>,
    outputs: Outputs<T>,
) {
    let lse_log2 = to_base_2(lse);
    let delta = delta(sequences, inputs, &lse_log2);
    let rows = RowStatistics {
        rows: sequences.rows_q,
        lse_log2,
        delta,
    };
    if let (Some(d_sinks), Some(sinks)) = (outputs.d_sinks, inputs.sinks) {
        sinks::d_sinks(sequences, sinks, &rows, d_sinks);
    }
    for mut d_tensor in outputs.d_tensors {
        tensors::d_tensor(machine, sequences, inputs, &rows, &mut d_tensor);
    }
    queries::d_q(machine, sequences, inputs, &rows, outputs.d_q);
    keys::d_k_and_d_v(machine, sequences, inputs, &rows, outputs.d_k, outputs.d_v);
}

fn to_base_2(mut lse: Vec<f32>) -> Vec<f32> {
    for lse in &mut lse {
        *lse = if *lse == f32::NEG_INFINITY {
            f32::INFINITY
        } else {
            *lse * std::f32::consts::LOG2_E
        };
    }
    lse
}

/// Δ of every row. It is undefined, and not read, for a row outside every sequence.
fn delta<T: Element>(sequences: &Sequences, inputs: &Inputs<T>, lse_log2: &[f32]) -> Vec<f32> {
    /// Partial sums per row, in a fixed order on any machine.
    const WAYS: usize = 16;
    /// Rows of a task.
    const ROWS: usize = 256;
    let (sizes, rows) = (&sequences.longest, sequences.rows_q);
    let rows_per_group = rows.per_group();
    let mut delta = vec![0.0; rows.len()];
    let d_lse = |group: usize, row: usize| match inputs.d_lse {
        Some(d_lse) if lse_log2[group * rows_per_group + row] != f32::INFINITY => {
            d_lse[group * rows_per_group + rows.place_in_lse(row)]
        }
        _ => 0.0,
    };
    let scratch = || (vec![0.0; sizes.head_dim_v], vec![0.0; sizes.head_dim_v]);
    delta.par_chunks_mut(ROWS).enumerate().for_each_init(
        scratch,
        |(o_row, d_o_row), (task, delta)| {
            for (index, delta) in delta.iter_mut().enumerate() {
                let row = task * ROWS + index;
                let (group, row) = (row / rows_per_group, row % rows_per_group);
                let entry = Span {
                    batch_idx: group / rows.groups,
                    first: 0,
                    len: rows.seqlen,
                };
                let head_k = group % rows.groups;
                let o = inputs.o.head_rows(entry, head_k, rows.group_size);
                let d_o = inputs.d_o.head_rows(entry, head_k, rows.group_size);
                T::widen(o.row(row), o_row);
                T::widen(d_o.row(row), d_o_row);
                let mut sums = [0.0f32; WAYS];
                for (o, d_o) in o_row.chunks(WAYS).zip(d_o_row.chunks(WAYS)) {
                    for (sum, (o, d_o)) in sums.iter_mut().zip(o.iter().zip(d_o)) {
                        *sum += o * d_o;
                    }
                }
                *delta = sums.iter().sum::<f32>() - d_lse(group, row);
            }
        },
    );
    delta
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::buffer::tests::TAKEN_BYTES;
    use crate::backend::cpu::forward;
    use crate::dtype::Dtype;
    use crate::problem::Problem;

    #[test]
    fn a_thread_takes_the_bytes_that_are_reported() {
        type Bytes = fn(Machine, &Sizes, usize) -> u64;
        type Make = fn(Machine, &Sizes, usize);
        let passes: [(Bytes, Make); 3] = [
            (forward::bytes_per_thread, forward::make_workspace),
            (queries::bytes_per_thread, queries::make_workspace),
            (keys::bytes_per_thread, keys::make_workspace),
        ];
        let sizes = [
            (1, 7, 7),
            (300, 64, 64),
            (300, 64, 128),
            (100_000, 200, 200),
            (5, 576, 512),
        ];
        for (seqlen, head_dim, head_dim_v) in sizes {
            let problem = Problem::builder(Dtype::F32)
                .heads(3)
                .seqlen(seqlen)
                .head_dim(head_dim)
                .head_dim_v(head_dim_v);
            let sizes = Sizes::of(&problem.build().unwrap());
            for machine in Machine::all() {
                for (bytes, make) in passes {
                    let before = TAKEN_BYTES.get();
                    make(machine, &sizes, 2);
                    assert_eq!(TAKEN_BYTES.get() - before, bytes(machine, &sizes, 2));
                }
            }
        }
    }
}

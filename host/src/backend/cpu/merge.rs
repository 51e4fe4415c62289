//! Two parts of the keys merged, a row at a time.
//!
//! A row is computed from its own two rows alone, so the results do not depend on the number of threads. Products are rounded before
//! they are added, so neither do they depend on the order of the parts.

use half::{bf16, f16};
use rayon::prelude::*;

use super::rows::View;
use super::{missing, on_host, output, output_rows, pool, vector, view};
use crate::arguments::{Argument, Operand, Operands};
use crate::dtype::{Dtype, Element};
use crate::error::ProblemError;
use crate::lengths::Span;
use crate::problem::merge::MergeProblem;
use crate::validate::merge::check_merge;

/// Elements that a task writes at least: enough to be worth a thread's while.
const TASK_ELEMS: usize = 1 << 14;

/// Writes o and lse over the keys of both parts. The arguments have passed [`crate::validate`] for this problem and lie on the host; an
/// error says which one has not or does not.
pub(crate) fn run(problem: &MergeProblem, operands: &mut Operands) -> Result<(), ProblemError> {
    on_host(check_merge(problem, operands.describe())?.location())?;
    pool::install(|| match problem.dtype() {
        Dtype::Bf16 => typed::<bf16>(problem, operands),
        Dtype::F16 => typed::<f16>(problem, operands),
        Dtype::F32 => typed::<f32>(problem, operands),
    })
}

fn typed<T: Element>(problem: &MergeProblem, operands: &mut Operands) -> Result<(), ProblemError> {
    let parts = [
        (Argument::O1, Argument::Lse1),
        (Argument::O2, Argument::Lse2),
    ];
    let [first, second] = parts.map(|(o, lse)| {
        let lse = vector::<f32>(operands, lse).ok_or(missing(lse))?;
        Ok::<_, ProblemError>((view::<T>(operands, o)?, lse))
    });
    let [(o_1, lse_1), (o_2, lse_2)] = [first?, second?];
    let mut o = output(operands, Argument::O)?;
    let mut o = output_rows::<T>(Argument::O, &mut o, 1)?;
    let mut lse = operands.take(Argument::Lse);
    let lse = match &mut lse {
        Some(Operand::VectorMut(lse)) => Some(lse.host().ok_or(missing(Argument::Lse))?),
        _ => None,
    };
    let parts = Parts {
        shape: problem.shape(),
        o: [o_1, o_2],
        lse: [lse_1, lse_2],
    };
    let [.., head_dim] = problem.shape();
    let task_rows = TASK_ELEMS.div_ceil(head_dim);
    // A run of rows of lse, or none where nobody wants them, for each run of rows of o.
    let mut lse = lse.map(|lse| lse.chunks_mut(task_rows));
    let tasks = o.chunks_mut(task_rows).enumerate().map(|(task, o)| Task {
        first_row: task * task_rows,
        o,
        lse: lse.as_mut().and_then(Iterator::next).unwrap_or_default(),
    });
    let mut tasks: Vec<Task<T>> = tasks.collect();
    tasks.par_iter_mut().for_each(|task| task.run(&parts));
    Ok(())
}

/// Both parts, to read.
struct Parts<'a, T> {
    shape: [usize; 4],
    o: [View<'a, T>; 2],
    lse: [&'a [f32]; 2],
}

impl<'a, T: Element> Parts<'a, T> {
    /// A row of o, by its place in lse, `[batch, heads, seqlen]`.
    fn row(&self, idx: usize) -> [&'a [T]; 2] {
        let [_, seqlen, heads, _] = self.shape;
        let (head, row) = (idx / seqlen, idx % seqlen);
        let span = Span {
            batch_idx: head / heads,
            first: 0,
            len: seqlen,
        };
        self.o.map(|o| o.head_rows(span, head % heads, 1).row(row))
    }
}

/// A run of rows, and their outputs.
struct Task<'o, 'a, T> {
    first_row: usize,
    o: &'o mut [&'a mut [T]],
    lse: &'o mut [f32],
}

impl<T: Element> Task<'_, '_, T> {
    fn run(&mut self, parts: &Parts<T>) {
        let [.., head_dim] = parts.shape;
        let mut scratch = [vec![0.0; head_dim], vec![0.0; head_dim]];
        for (in_task, o) in self.o.iter_mut().enumerate() {
            let idx = self.first_row + in_task;
            let merged = Merged::new(parts.lse[0][idx], parts.lse[1][idx]);
            merged.write(parts.row(idx), &mut scratch, o);
            if let Some(lse) = self.lse.get_mut(in_task) {
                *lse = merged.lse;
            }
        }
    }
}

/// The weights of the two parts in a row, exp(L_i − L), and the merged L.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Merged {
    pub(super) weights: [f32; 2],
    pub(super) lse: f32,
}

impl Merged {
    pub(super) fn new(lse_1: f32, lse_2: f32) -> Merged {
        let most = lse_1.max(lse_2);
        let weights = [lse_1, lse_2].map(|lse| match lse {
            f32::NEG_INFINITY => 0.0,
            // An infinite sum outweighs every finite one.
            f32::INFINITY => 1.0,
            lse => (lse - most).exp(),
        });
        let sum = weights[0] + weights[1];
        if sum == 0.0 {
            return Merged {
                weights: [0.0; 2],
                lse: f32::NEG_INFINITY,
            };
        }
        Merged {
            weights: weights.map(|weight| weight / sum),
            lse: most + sum.ln(),
        }
    }

    /// `o ← w_1 O_1 + w_2 O_2`. The row of a part whose weight is 0 is not read.
    fn write<T: Element>(&self, parts: [&[T]; 2], scratch: &mut [Vec<f32>; 2], o: &mut [T]) {
        let [sum, other] = scratch;
        // A number to which another can be added without a change, unless it is all there is.
        let nothing = match self.lse {
            f32::NEG_INFINITY => 0.0,
            _ => -0.0,
        };
        sum.fill(nothing);
        for (weight, part) in self.weights.into_iter().zip(parts) {
            if weight == 0.0 {
                continue;
            }
            T::widen(part, other);
            for (sum, x) in sum.iter_mut().zip(&*other) {
                *sum += weight * x;
            }
        }
        T::narrow(sum, o);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_add_up_to_one_and_no_order_is_special() {
        for (lse_1, lse_2) in [(0.0, 0.0), (1.0, -3.5), (-1e30, 1e30), (80.0, 70.0)] {
            let merged = Merged::new(lse_1, lse_2);
            let [first, second] = merged.weights;
            assert!((first + second - 1.0).abs() < 1e-6, "{merged:?}");
            let swapped = Merged {
                weights: [second, first],
                ..merged
            };
            assert_eq!(Merged::new(lse_2, lse_1), swapped);
        }
    }

    #[test]
    fn a_part_has_all_the_weight_or_none() {
        let infinite = f32::INFINITY;
        for (lse_1, lse_2, weights, lse) in [
            (-infinite, 3.0, [0.0, 1.0], 3.0),
            (3.0, -infinite, [1.0, 0.0], 3.0),
            (-infinite, -infinite, [0.0, 0.0], -infinite),
            (infinite, 3.0, [1.0, 0.0], infinite),
            (infinite, infinite, [0.5, 0.5], infinite),
            (1e30, -1e30, [1.0, 0.0], 1e30),
        ] {
            assert_eq!(Merged::new(lse_1, lse_2), Merged { weights, lse });
        }
    }

    #[test]
    fn not_a_number_stays_one() {
        for other in [0.0, f32::NEG_INFINITY, f32::INFINITY, f32::NAN] {
            let merged = Merged::new(f32::NAN, other);
            assert!(merged.lse.is_nan() && merged.weights[0].is_nan());
        }
    }
}

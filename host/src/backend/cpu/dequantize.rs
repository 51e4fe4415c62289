//! q, k and v out of 8 bits, for the backward pass: what they stand for, rounded to the problem's type, as a GPU's kernel has it.

use float8::F8E4M3;

use super::{missing, vector, view};
use crate::arguments::{Argument, Operands};
use crate::dtype::{Element, Widen};
use crate::error::ProblemError;
use crate::lengths::Side;
use crate::problem::Problem;

/// A tensor out of 8 bits: dense, in its shape.
pub(super) struct Values<T> {
    pub(super) data: Vec<T>,
    pub(super) shape: [usize; 4],
}

impl<T: Element> Values<T> {
    /// Takes a tensor and its scales from the arguments. Rows of no sequence are 0.
    pub(super) fn take(
        problem: &Problem,
        operands: &mut Operands,
        argument: Argument,
    ) -> Result<Values<T>, ProblemError> {
        let (scales, side) = match argument {
            Argument::Q => (Argument::QDescale, Side::Queries),
            Argument::K => (Argument::KDescale, Side::Keys),
            _ => (Argument::VDescale, Side::Keys),
        };
        let spans = side.spans(problem, |argument| operands.numbers(argument))?;
        let scales: &[f32] = vector(operands, scales).ok_or(missing(scales))?;
        let heads_k = problem.heads_k();
        let codes = view::<F8E4M3>(operands, argument)?;
        let shape @ [_, rows, heads, columns] = codes.shape();
        let [of_q, of_k] = problem.scale_layouts().ok_or(missing(argument))?;
        let of_scales = match side {
            Side::Queries => of_q,
            Side::Keys => of_k,
        };
        let group_size = heads.checked_div(heads_k).unwrap_or(0);
        let mut data = vec![T::default(); shape.iter().product()];
        let mut numbers = vec![0.0; columns];
        for (sequence, span) in spans.into_iter().enumerate() {
            for head_k in 0..heads_k {
                let own = codes.head_rows(span, head_k, group_size);
                for at in 0..span.len * group_size {
                    let (position, in_group) = (at / group_size, at % group_size);
                    let scale = scales[of_scales.place(sequence, head_k, position)];
                    F8E4M3::widen(own.row(at), &mut numbers);
                    numbers.iter_mut().for_each(|x| *x *= scale);
                    let row = span.batch_idx * rows + span.first + position;
                    let to = (row * heads + head_k * group_size + in_group) * columns;
                    T::narrow(&numbers, &mut data[to..][..columns]);
                }
            }
        }
        Ok(Values { data, shape })
    }
}

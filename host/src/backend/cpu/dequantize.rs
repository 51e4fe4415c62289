//! q, k and v out of 8 bits, for the backward pass: what they stand for, rounded to the problem's type, as a GPU's kernel has it.

use float8::F8E4M3;

use super::{missing, vector};
use crate::arguments::{Argument, Operand, Operands};
use crate::dtype::{Element, Widen};
use crate::error::ProblemError;
use crate::lengths::{Side, Span};
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
        let Some(Operand::Tensor(tensor)) = operands.take(argument) else {
            return Err(missing(argument));
        };
        let codes = tensor.host::<F8E4M3>().ok_or(missing(argument))?;
        let layout = tensor.layout();
        let shape @ [_, rows, heads, columns] = layout.shape();
        let [of_q, of_k] = problem.scale_layouts().ok_or(missing(argument))?;
        let of_scales = match side {
            Side::Queries => of_q,
            Side::Keys => of_k,
        };
        let group_size = heads.checked_div(problem.heads_k()).unwrap_or(1).max(1);
        let mut data = vec![T::default(); layout.n_elems()?];
        let mut numbers = vec![0.0; columns];
        for (sequence, span) in spans.into_iter().enumerate() {
            let Span {
                batch_idx,
                first,
                len,
            } = span;
            for (row, head) in
                (first..first + len).flat_map(|row| (0..heads).map(move |head| (row, head)))
            {
                let scale = scales[of_scales.place(sequence, head / group_size, row - first)];
                let from = batch_idx * layout.batch_stride
                    + row * layout.row_stride
                    + head * layout.head_stride;
                F8E4M3::widen(&codes[from..][..columns], &mut numbers);
                numbers.iter_mut().for_each(|x| *x *= scale);
                let to = ((batch_idx * rows + row) * heads + head) * columns;
                T::narrow(&numbers, &mut data[to..][..columns]);
            }
        }
        Ok(Values { data, shape })
    }
}

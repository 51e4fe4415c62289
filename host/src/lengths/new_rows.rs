//! The new rows of sequences, and their positions.

use super::{LengthOf, Paged, Span, room};
use crate::arguments::{Argument, Operands};
use crate::error::ProblemError;
use crate::problem::append::AppendProblem;
use crate::problem::new_rows::NewRows;
use crate::problem::quantize::QuantizeProblem;
use crate::problem::rotate::RotateProblem;

/// The new rows of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NewSpan {
    /// The index of the sequence.
    pub(crate) sequence: usize,
    /// The rows in the tensor.
    pub(crate) rows: Span,
    /// The number of rows it already has: the position of the first new one.
    pub(crate) before: usize,
}

/// Of an append; an error says which length contradicts which. The lengths are on the host.
pub(crate) fn of_append(
    problem: &AppendProblem,
    operands: &Operands,
) -> Result<Vec<NewSpan>, ProblemError> {
    let given = |argument| (argument, operands.numbers(argument));
    let spans = spans(
        problem.rows(),
        problem.batch(),
        problem.room(),
        given(Argument::CuSeqlensNew),
        given(Argument::SeqUsedK),
    )?;
    if let Some(paged) = Paged::of_append(problem, operands)? {
        for span in spans.iter().filter(|span| span.rows.len > 0) {
            paged.check(span.sequence, span.before..span.before + span.rows.len)?;
        }
    }
    Ok(spans)
}

impl<'a> Paged<'a> {
    /// Of a cache; `None` where there are no pages.
    pub(crate) fn of_append(
        problem: &AppendProblem,
        operands: &Operands<'a>,
    ) -> Result<Option<Paged<'a>>, ProblemError> {
        let sizes = (problem.seqlen_cache(), problem.n_table_entries());
        Paged::new(problem.pages(), sizes, |argument| {
            operands.numbers(argument)
        })
    }
}

/// Of a rotation; an error says which length contradicts which. The lengths are on the host.
pub(crate) fn of_rotate(
    problem: &RotateProblem,
    operands: &Operands,
) -> Result<Vec<NewSpan>, ProblemError> {
    let given = |argument| (argument, operands.numbers(argument));
    spans(
        problem.rows(),
        problem.batch(),
        problem.turns().n_positions,
        given(Argument::CuSeqlens),
        given(Argument::SeqlenOffsets),
    )
}

/// Of a rounding to 8 bits; an error says which length contradicts which. The lengths are on the host.
pub(crate) fn of_quantize(
    problem: &QuantizeProblem,
    operands: &Operands,
) -> Result<Vec<NewSpan>, ProblemError> {
    let cu_seqlens = (Argument::CuSeqlens, operands.numbers(Argument::CuSeqlens));
    spans(
        problem.rows(),
        problem.batch(),
        problem.max_seqlen(),
        cu_seqlens,
        (Argument::SeqlenOffsets, None),
    )
}

/// The numbers of an argument, if it was given.
type Lengths<'a> = (Argument, Option<&'a [i32]>);

/// The new rows of every sequence, in their order. Together with its earlier rows a sequence has at most `most`.
fn spans(
    rows: NewRows,
    batch: usize,
    most: usize,
    cu_seqlens: Lengths,
    before: Lengths,
) -> Result<Vec<NewSpan>, ProblemError> {
    let of_sequence = |sequence: usize| {
        let rows = match rows {
            NewRows::Padded { seqlen } => Span {
                batch_idx: sequence,
                first: 0,
                len: seqlen,
            },
            NewRows::Packed { total } => {
                let (argument, numbers) = cu_seqlens;
                let numbers = numbers.ok_or(ProblemError::Missing { argument })?;
                let rows = room(argument, numbers, sequence, most, total)?;
                Span {
                    batch_idx: 0,
                    first: rows.start,
                    len: rows.len(),
                }
            }
        };
        let before = match before {
            (argument, Some(numbers)) => {
                let allowed = 0..=most.saturating_sub(rows.len);
                LengthOf { argument, sequence }.within(numbers, sequence, allowed)?
            }
            (_, None) => 0,
        };
        Ok(NewSpan {
            sequence,
            rows,
            before,
        })
    };
    (0..batch).map(of_sequence).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rows: NewRows, ends: &[i32], before: &[i32]) -> Result<Vec<NewSpan>, ProblemError> {
        spans(
            rows,
            before.len(),
            8,
            (Argument::CuSeqlensNew, Some(ends)),
            (Argument::SeqUsedK, Some(before)),
        )
    }

    #[test]
    fn packed_rows_are_a_sequences_own() {
        let packed = NewRows::Packed { total: 6 };
        let spans = of(packed, &[1, 4, 4, 5], &[5, 8, 0]).unwrap();
        let expected = [(1, 3, 5), (4, 0, 8), (4, 1, 0)];
        for (sequence, (span, (first, len, before))) in spans.iter().zip(expected).enumerate() {
            let rows = Span {
                batch_idx: 0,
                first,
                len,
            };
            let expected = NewSpan {
                sequence,
                rows,
                before,
            };
            assert_eq!(*span, expected);
        }
    }

    #[test]
    fn a_length_that_does_not_fit_is_named() {
        let refused = |rows, ends: &[i32], before: &[i32], argument, sequence, given, min, max| {
            let length = ProblemError::Length {
                argument,
                sequence,
                given,
                min,
                max,
            };
            assert_eq!(of(rows, ends, before), Err(length));
        };
        let (padded, packed) = (NewRows::Padded { seqlen: 3 }, NewRows::Packed { total: 20 });
        let (ends, used) = (Argument::CuSeqlensNew, Argument::SeqUsedK);
        refused(padded, &[], &[5, 6], used, 1, 6, 0, 5);
        refused(padded, &[], &[-1], used, 0, -1, 0, 5);
        refused(packed, &[-1, 4], &[0], ends, 0, -1, 0, 20);
        refused(packed, &[3, 2], &[0], ends, 0, 2, 3, 11);
        refused(packed, &[3, 12], &[0], ends, 0, 12, 3, 11);
        refused(packed, &[0, 4, 21], &[0, 0], ends, 1, 21, 4, 12);
        refused(packed, &[0, 4], &[5], used, 0, 5, 0, 4);
    }
}

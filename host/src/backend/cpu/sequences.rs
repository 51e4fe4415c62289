//! The sequences of a problem: with the problem's lengths, or with those that the call gives.

use super::blocks::BlockMap;
use super::cut::{Piece, Rows};
use super::dropout;
use super::edit::{Editor, Edits};
use super::sizes::{Location, Sequence, Sizes};
use crate::arguments::{Argument, Operands};
use crate::error::ProblemError;
use crate::lengths::{Side, Span};
use crate::problem::Problem;
use crate::problem::philox::Dropper;

/// Every sequence, and how the tensors' rows are ordered.
#[derive(Debug)]
pub(super) struct Sequences<'m> {
    sequences: Vec<Sequence>,
    blocks: Option<BlockMap<'m>>,
    edits: Option<Edits<'m>>,
    dropper: Option<Dropper>,
    spans_q: Vec<Span>,
    spans_k: Vec<Span>,
    /// Sizes of the longest sequence.
    pub(super) longest: Sizes,
    /// Rows of q, o and lse.
    pub(super) rows_q: Rows,
    /// Rows of k and v.
    pub(super) rows_k: Rows,
}

impl<'m> Sequences<'m> {
    /// From the lengths that were given; an error says which contradict each other.
    pub(super) fn new(
        problem: &Problem,
        operands: &Operands<'m>,
    ) -> Result<Sequences<'m>, ProblemError> {
        let vector = |argument: Argument| operands.numbers(argument);
        let spans_q = Side::Queries.spans(problem, vector)?;
        let spans_k = Side::Keys.spans(problem, vector)?;
        let longest = Sizes::of(problem);
        let both = spans_q.iter().zip(&spans_k);
        let ([batch_q, n_q, ..], [batch_k, n_k, ..]) = (problem.shape_q(), problem.shape_k());
        Ok(Sequences {
            blocks: BlockMap::of(problem, operands),
            edits: Edits::of(problem, operands)?,
            dropper: dropout::of(problem, operands)?,
            sequences: both.map(|(&q, &k)| longest.sequence(q, k)).collect(),
            spans_q,
            spans_k,
            longest,
            rows_q: Rows {
                batch: batch_q,
                seqlen: n_q,
                groups: longest.heads_k,
                group_size: longest.group_size,
            },
            rows_k: Rows {
                batch: batch_k,
                seqlen: n_k,
                groups: longest.heads_k,
                group_size: 1,
            },
        })
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.sequences.len()
    }

    /// One thread's editor of scores, if the problem has expressions.
    pub(super) fn editor(&self) -> Option<Editor<'_>> {
        self.edits.as_ref().map(Edits::editor)
    }

    /// The same with the derivative by the elements of a tensor, which has a gradient.
    pub(super) fn editor_of_tensor(&self, place: usize) -> Option<Editor<'_>> {
        let edits = self.edits.as_ref();
        edits.map(|edits| edits.editor_of_tensor(place))
    }

    /// A key and value head of a sequence.
    pub(super) fn location(&self, sequence_idx: usize, head_k: usize) -> Location<'_> {
        Location {
            sequence: &self.sequences[sequence_idx],
            sequence_idx,
            head_k,
            first_head: head_k * self.longest.group_size,
            blocks: self.blocks,
            dropper: self.dropper,
        }
    }

    /// A sequence whose groups have one query head each: for rows of a single head.
    pub(super) fn ungrouped(&self, sequence_idx: usize) -> Sequence {
        let sequence = self.sequences[sequence_idx];
        Sequence {
            sizes: sequence.sizes.ungrouped(),
            ..sequence
        }
    }

    /// One query head of such a sequence.
    pub(super) fn location_of_head<'s>(
        &'s self,
        ungrouped: &'s Sequence,
        sequence_idx: usize,
        head: usize,
    ) -> Location<'s> {
        Location {
            sequence: ungrouped,
            sequence_idx,
            head_k: head / self.longest.group_size,
            first_head: head,
            blocks: self.blocks,
            dropper: self.dropper,
        }
    }

    /// Rows of q, o or lse: those of each sequence and group. `clear` gets the rows outside every sequence.
    pub(super) fn cut_q<'o, R>(
        &self,
        rows: &'o mut [R],
        clear: impl FnMut(&mut R),
    ) -> Vec<Piece<'o, R>> {
        self.rows_q.cut(rows, &self.spans_q, clear)
    }

    /// Rows of k or v: those of each sequence and head. `clear` gets the rows outside every sequence.
    pub(super) fn cut_k<'o, R>(
        &self,
        rows: &'o mut [R],
        clear: impl FnMut(&mut R),
    ) -> Vec<Piece<'o, R>> {
        self.rows_k.cut(rows, &self.spans_k, clear)
    }
}

//! The rows of a tensor and of lse, cut into those of each sequence and head.

use crate::lengths::Span;

/// Rows in the order (batch entry, group of heads, position, head within the group), as the tensor has them: of every sequence,
/// and those that belong to none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    /// Batch entries of the tensor.
    pub(super) batch: usize,
    /// Positions of a batch entry.
    pub(super) seqlen: usize,
    /// Groups of heads.
    pub(super) groups: usize,
    /// Heads of a group.
    pub(super) group_size: usize,
}

/// The rows of one sequence and group.
pub(super) struct Piece<'o, R> {
    pub(super) sequence_idx: usize,
    pub(super) group_idx: usize,
    pub(super) rows: &'o mut [R],
}

impl Rows {
    /// Rows of one group of a batch entry.
    pub(super) fn per_group(&self) -> usize {
        self.seqlen * self.group_size
    }

    /// All of them.
    pub(super) fn len(&self) -> usize {
        self.batch * self.groups * self.per_group()
    }

    /// The index of the first row of a sequence and group.
    pub(super) fn first(&self, span: Span, group_idx: usize) -> usize {
        (span.batch_idx * self.groups + group_idx) * self.per_group() + span.first * self.group_size
    }

    /// Cuts out the rows of every sequence that has some; `clear` gets the rows outside every sequence. Sequences are in the order of their rows.
    pub(super) fn cut<'o, R>(
        &self,
        rows: &'o mut [R],
        spans: &[Span],
        mut clear: impl FnMut(&mut R),
    ) -> Vec<Piece<'o, R>> {
        let mut pieces = Vec::new();
        if self.len() == 0 {
            return pieces;
        }
        let mut next = 0;
        for (entry, rows) in rows.chunks_mut(self.groups * self.per_group()).enumerate() {
            let first = next;
            while spans.get(next).is_some_and(|span| span.batch_idx == entry) {
                next += 1;
            }
            for (group_idx, mut rest) in rows.chunks_mut(self.per_group()).enumerate() {
                let mut passed = 0;
                for (nth, span) in spans[first..next].iter().enumerate() {
                    if span.len == 0 {
                        continue;
                    }
                    let (gap, from) = rest.split_at_mut((span.first - passed) * self.group_size);
                    let (rows, behind) = from.split_at_mut(span.len * self.group_size);
                    gap.iter_mut().for_each(&mut clear);
                    pieces.push(Piece {
                        sequence_idx: first + nth,
                        group_idx,
                        rows,
                    });
                    rest = behind;
                    passed = span.first + span.len;
                }
                rest.iter_mut().for_each(&mut clear);
            }
        }
        pieces
    }

    /// The index of a row in a group's part of lse, in the order (head, position).
    pub(super) fn place_in_lse(&self, row: usize) -> usize {
        row % self.group_size * self.seqlen + row / self.group_size
    }

    /// From the order of a group's rows (position, head within the group) to that of lse (head, position), group by
    /// group.
    pub(super) fn ungroup(&self, lse: &mut [f32]) {
        if self.group_size > 1 && self.seqlen > 1 {
            for lse in lse.chunks_exact_mut(self.per_group()) {
                let by_row = lse.to_vec();
                for (row, value) in by_row.into_iter().enumerate() {
                    lse[self.place_in_lse(row)] = value;
                }
            }
        }
    }

    /// The inverse of [`Rows::ungroup`].
    pub(super) fn grouped(&self, lse: &[f32]) -> Vec<f32> {
        let mut by_row = lse.to_vec();
        if self.group_size > 1 && self.seqlen > 1 {
            let groups = by_row
                .chunks_exact_mut(self.per_group())
                .zip(lse.chunks_exact(self.per_group()));
            for (by_row, lse) in groups {
                for (row, value) in by_row.iter_mut().enumerate() {
                    *value = lse[self.place_in_lse(row)];
                }
            }
        }
        by_row
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_a_sequences_or_cleared() {
        let span = |batch_idx, first, len| Span {
            batch_idx,
            first,
            len,
        };
        let rows = Rows {
            batch: 2,
            seqlen: 7,
            groups: 2,
            group_size: 3,
        };
        let spans = [
            span(0, 1, 2),
            span(0, 3, 0),
            span(0, 3, 1),
            span(0, 6, 1),
            span(1, 0, 0),
        ];
        let mut owners = vec![usize::MAX; rows.len()];
        let (mut n_pieces, none) = (0, usize::MAX - 1);
        for piece in rows.cut(&mut owners, &spans, |owner| *owner = none) {
            piece.rows.fill(10 * piece.sequence_idx + piece.group_idx);
            n_pieces += 1;
        }
        assert_eq!(n_pieces, 3 * 2);
        for (row, &owner) in owners.iter().enumerate() {
            let (entry, group_idx, position) = (row / 42, row / 21 % 2, row / 3 % 7);
            let of = spans.iter().position(|span| {
                span.batch_idx == entry && (span.first..span.first + span.len).contains(&position)
            });
            let expected = of.map_or(none, |sequence_idx| 10 * sequence_idx + group_idx);
            assert_eq!(owner, expected, "row {row}");
        }
        assert_eq!(rows.first(spans[3], 1), 21 + 18);
    }
}

//! The sizes of one sequence as the tasks of this backend see them, and which rows see which keys.

use super::blocks::BlockMap;
use crate::lengths::Span;
use crate::problem::Problem;
use crate::problem::philox::Dropper;

/// Sizes of a sequence, with the query heads that share a key and value head taken together: their rows, in the order (position,
/// head within the group), are the rows of one group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) heads_k: usize,
    pub(super) group_size: usize,
    pub(super) seqlen_q: usize,
    pub(super) seqlen_k: usize,
    pub(super) head_dim: usize,
    pub(super) head_dim_v: usize,
    pub(super) softmax_scale: f32,
    /// The factor of scores in their exponentials: 1 if an expression has replaced them.
    pub(super) exponent_scale: f32,
    /// Whether the gradients of scores are to be multiplied by the derivative of an expression.
    pub(super) has_derivative: bool,
    /// How many keys a query sees before and after its own position; `None`: all.
    window: (Option<usize>, Option<usize>),
    /// How many of the first keys every query sees.
    prefix: usize,
}

/// One sequence: its rows, and its sizes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sequence {
    pub(super) q: Span,
    pub(super) k: Span,
    pub(super) sizes: Sizes,
}

/// One key and value head of a sequence, and query heads that share it: as many as a group of the sequence's sizes has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Location<'s> {
    pub(super) sequence: &'s Sequence,
    /// Which sequence it is.
    pub(super) sequence_idx: usize,
    pub(super) head_k: usize,
    /// The first of the query heads.
    pub(super) first_head: usize,
    /// The block mask's map, if there is one.
    pub(super) blocks: Option<BlockMap<'s>>,
    /// Which weights are dropped, if there is dropout.
    pub(super) dropper: Option<Dropper>,
}

impl Sizes {
    /// The sizes of the longest sequence of this problem.
    pub(super) fn of(problem: &Problem) -> Sizes {
        Sizes {
            heads_k: problem.heads_k(),
            group_size: problem.group_size(),
            seqlen_q: problem.seqlen_q(),
            seqlen_k: problem.seqlen_k(),
            head_dim: problem.head_dim(),
            head_dim_v: problem.head_dim_v(),
            softmax_scale: problem.scale(),
            exponent_scale: match problem.score() {
                Some(_) => 1.0,
                None => problem.scale(),
            },
            has_derivative: problem.edit_parts().is_some_and(|edit| edit.has_gradient()),
            window: problem.mask().window(),
            prefix: problem.mask().prefix(),
        }
    }

    /// The sizes of a pass that multiplies by derivatives, whatever that by the score is.
    pub(super) fn with_derivative(self) -> Sizes {
        Sizes {
            has_derivative: true,
            ..self
        }
    }

    /// The sequence with these rows.
    pub(super) fn sequence(self, q: Span, k: Span) -> Sequence {
        let sizes = Sizes {
            seqlen_q: q.len,
            seqlen_k: k.len,
            ..self
        };
        Sequence { q, k, sizes }
    }

    /// The same with a group for each query head.
    pub(super) fn ungrouped(self) -> Sizes {
        Sizes {
            heads_k: self.heads_k * self.group_size,
            group_size: 1,
            ..self
        }
    }

    /// Rows of q and o that meet one key and value head.
    pub(super) fn rows_per_group(&self) -> usize {
        self.seqlen_q * self.group_size
    }

    /// The first key that the row of a group sees, if it sees any. Never shrinks from one row to the next.
    pub(super) fn first_key(&self, row: usize) -> usize {
        match self.window.0 {
            None => 0,
            Some(left) => (row / self.group_size + self.seqlen_k)
                .saturating_sub(self.seqlen_q.saturating_add(left))
                .min(self.seqlen_k),
        }
    }

    /// One past the last key that the row of a group sees. Never shrinks from one row to the next.
    pub(super) fn end_key(&self, row: usize) -> usize {
        match self.window.1 {
            None => self.seqlen_k,
            Some(right) => (row / self.group_size + 1 + self.seqlen_k)
                .saturating_add(right)
                .saturating_sub(self.seqlen_q)
                .max(self.prefix)
                .min(self.seqlen_k),
        }
    }

    /// The first row of a group that sees the key, if any does; `rows_per_group` where all see less.
    pub(super) fn first_row(&self, key: usize) -> usize {
        match self.window.1 {
            None => 0,
            Some(_) if key < self.prefix => 0,
            Some(right) => {
                (key + self.seqlen_q)
                    .saturating_sub(self.seqlen_k.saturating_add(right))
                    .min(self.seqlen_q)
                    * self.group_size
            }
        }
    }

    /// One past the last row of a group that sees the key.
    pub(super) fn end_row(&self, key: usize) -> usize {
        match self.window.0 {
            None => self.rows_per_group(),
            Some(left) => {
                (key + self.seqlen_q + 1)
                    .saturating_add(left)
                    .saturating_sub(self.seqlen_k)
                    .min(self.seqlen_q)
                    * self.group_size
            }
        }
    }

    /// How many panels one task should take so that every thread finds several tasks; at most `max`. Results do not
    /// depend on it.
    pub(super) fn panels_per_task(n_panels: usize, max: usize) -> usize {
        const TASKS_PER_THREAD: usize = 4;
        (n_panels / (TASKS_PER_THREAD * rayon::current_num_threads())).clamp(1, max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;
    use crate::problem::Mask;

    #[test]
    fn rows_and_keys_see_each_other_alike() {
        let windows = [
            (None, None),
            (None, Some(0)),
            (Some(0), Some(0)),
            (Some(2), Some(0)),
            (Some(1), None),
            (None, Some(3)),
            (Some(9), Some(1)),
            (Some(usize::MAX), Some(usize::MAX)),
        ];
        let windows = windows.map(|(left, right)| Mask::Window { left, right });
        let prefixes = [0, 1, 3, usize::MAX].map(|prefix| Mask::PrefixLm { prefix });
        for (seqlen_q, seqlen_k) in [(1, 1), (5, 5), (7, 3), (3, 7), (4, 0), (0, 4)] {
            for mask in windows.into_iter().chain(prefixes) {
                let problem = Problem::builder(Dtype::F32)
                    .heads_q(3)
                    .heads_k(1)
                    .head_dim(4);
                let problem = problem
                    .seqlen_q(seqlen_q)
                    .seqlen_k(seqlen_k)
                    .mask(mask)
                    .build()
                    .unwrap();
                let sizes = Sizes::of(&problem);
                let (left, right) = mask.window();
                for row in 0..sizes.rows_per_group() {
                    for key in 0..seqlen_k {
                        let place = (row / 3 + seqlen_k) as i128 - seqlen_q as i128;
                        let right = right.is_none_or(|n| key as i128 <= place + n as i128);
                        let left = left.is_none_or(|n| key as i128 >= place - n as i128);
                        let visible = left && right || key < mask.prefix();
                        let of_row = sizes.first_key(row)..sizes.end_key(row);
                        let of_key = sizes.first_row(key)..sizes.end_row(key);
                        assert_eq!(of_row.contains(&key), visible, "{mask} {row} {key}");
                        assert_eq!(of_key.contains(&row), visible, "{mask} {row} {key}");
                    }
                }
            }
        }
    }
}

//! The sizes of one problem as the tasks of this backend see them, and which rows see which keys.

use crate::problem::{Mask, Problem};

/// Sizes, with the query heads that share a key and value head taken together: their rows, in the order (position, head
/// within the group), are the rows of one group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) batch: usize,
    pub(super) heads_k: usize,
    pub(super) group_size: usize,
    pub(super) seqlen_q: usize,
    pub(super) seqlen_k: usize,
    pub(super) head_dim: usize,
    pub(super) softmax_scale: f32,
    mask: Mask,
}

/// One key and value head of one batch entry, and the query heads that share it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Location {
    pub(super) batch_idx: usize,
    pub(super) head_k: usize,
}

impl Sizes {
    /// Of this problem.
    pub(super) fn of(problem: &Problem) -> Sizes {
        Sizes {
            batch: problem.batch,
            heads_k: problem.heads_k,
            group_size: problem.group_size(),
            seqlen_q: problem.seqlen_q,
            seqlen_k: problem.seqlen_k,
            head_dim: problem.head_dim,
            softmax_scale: problem.scale(),
            mask: problem.mask,
        }
    }

    /// Number of (batch entry, key and value head) pairs.
    pub(super) fn n_groups(&self) -> usize {
        self.batch * self.heads_k
    }

    /// The `group`-th of these pairs.
    pub(super) fn location(&self, group: usize) -> Location {
        Location {
            batch_idx: group / self.heads_k,
            head_k: group % self.heads_k,
        }
    }

    /// How many rows of q the pairs before this one have.
    pub(super) fn first_row_of(&self, at: Location) -> usize {
        (at.batch_idx * self.heads_k + at.head_k) * self.rows_per_group()
    }

    /// Rows of q and o that meet one key and value head.
    pub(super) fn rows_per_group(&self) -> usize {
        self.seqlen_q * self.group_size
    }

    /// The row of a group sees the keys before this one. Never shrinks from one row to the next.
    pub(super) fn n_visible_keys(&self, row: usize) -> usize {
        match self.mask {
            Mask::Full => self.seqlen_k,
            Mask::Causal => (row / self.group_size + 1 + self.seqlen_k)
                .saturating_sub(self.seqlen_q)
                .min(self.seqlen_k),
        }
    }

    /// The first row of a group that sees the key; every later one sees it too. `rows_per_group` where none does.
    pub(super) fn first_row_that_sees(&self, key: usize) -> usize {
        match self.mask {
            Mask::Full => 0,
            Mask::Causal => {
                (key + self.seqlen_q)
                    .saturating_sub(self.seqlen_k)
                    .min(self.seqlen_q)
                    * self.group_size
            }
        }
    }

    /// Where the group's part of lse, in the order (head, position), holds a row.
    pub(super) fn place_in_lse(&self, row: usize) -> usize {
        row % self.group_size * self.seqlen_q + row / self.group_size
    }

    /// From the order of a group's rows (position, head within the group) to that of lse (head, position), group by
    /// group.
    pub(super) fn ungroup(&self, lse: &mut [f32]) {
        if self.group_size > 1 && self.seqlen_q > 1 {
            for lse in lse.chunks_exact_mut(self.rows_per_group()) {
                let by_row = lse.to_vec();
                for (row, value) in by_row.into_iter().enumerate() {
                    lse[self.place_in_lse(row)] = value;
                }
            }
        }
    }

    /// The inverse of [`Sizes::ungroup`].
    pub(super) fn grouped(&self, lse: &[f32]) -> Vec<f32> {
        let mut by_row = lse.to_vec();
        if self.group_size > 1 && self.seqlen_q > 1 {
            let groups = by_row
                .chunks_exact_mut(self.rows_per_group())
                .zip(lse.chunks_exact(self.rows_per_group()));
            for (by_row, lse) in groups {
                for (row, value) in by_row.iter_mut().enumerate() {
                    *value = lse[self.place_in_lse(row)];
                }
            }
        }
        by_row
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

    #[test]
    fn rows_and_keys_see_each_other_alike() {
        for (seqlen_q, seqlen_k) in [(1, 1), (5, 5), (7, 3), (3, 7), (4, 0), (0, 4)] {
            for mask in [Mask::Full, Mask::Causal] {
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
                for row in 0..sizes.rows_per_group() {
                    for key in 0..seqlen_k {
                        let sees = mask == Mask::Full || key + seqlen_q <= row / 3 + seqlen_k;
                        assert_eq!(key < sizes.n_visible_keys(row), sees);
                        assert_eq!(row >= sizes.first_row_that_sees(key), sees);
                    }
                }
            }
        }
    }
}

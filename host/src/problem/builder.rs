//! Collecting a problem.

use super::{BlockMask, Fp8, Fp8Kv, Fp8Sums, Mask, Number, Order, Pages, Problem, SplitKv};
use crate::error::ProblemError;

/// Collects a [`Problem`].
#[derive(Clone, Copy, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct ProblemBuilder {
    pub(super) problem: Problem,
    /// Which of [`SIZES`] were not set.
    unset: [bool; SIZES.len()],
}

/// The sizes that have no default.
const SIZES: [&str; 5] = ["heads_q", "heads_k", "seqlen_q", "seqlen_k", "head_dim"];

impl ProblemBuilder {
    /// Of a problem without sizes.
    pub(super) fn new(problem: Problem) -> ProblemBuilder {
        let unset = [true; SIZES.len()];
        ProblemBuilder { problem, unset }
    }

    /// Of a problem that has all.
    pub(super) fn of(problem: Problem) -> ProblemBuilder {
        let unset = [false; SIZES.len()];
        ProblemBuilder { problem, unset }
    }

    pub(super) fn with(mut self, set: impl FnOnce(&mut Problem)) -> Self {
        set(&mut self.problem);
        self
    }

    fn size(mut self, index: usize, set: impl FnOnce(&mut Problem)) -> Self {
        self.unset[index] = false;
        self.with(set)
    }

    /// Number of batch entries, or of packed sequences; 1 unless set.
    pub fn batch(self, batch: usize) -> Self {
        self.with(|problem| problem.batch = batch)
    }

    /// The same number of heads for q, k and v.
    pub fn heads(self, heads: usize) -> Self {
        self.heads_q(heads).heads_k(heads)
    }

    /// Heads of q: a multiple of the heads of k and v.
    pub fn heads_q(self, heads_q: usize) -> Self {
        self.size(0, |problem| problem.heads_q = heads_q)
    }

    /// Heads of k and v.
    pub fn heads_k(self, heads_k: usize) -> Self {
        self.size(1, |problem| problem.heads_k = heads_k)
    }

    /// The same number of rows for q, k and v.
    pub fn seqlen(self, seqlen: usize) -> Self {
        self.seqlen_q(seqlen).seqlen_k(seqlen)
    }

    /// Rows of q and o.
    pub fn seqlen_q(self, seqlen_q: usize) -> Self {
        self.size(2, |problem| problem.seqlen_q = seqlen_q)
    }

    /// Rows of k and v.
    pub fn seqlen_k(self, seqlen_k: usize) -> Self {
        self.size(3, |problem| problem.seqlen_k = seqlen_k)
    }

    /// The rows of q and o of all sequences are packed, one sequence after the other, `[total_q, heads_q, head_dim]`:
    /// [`crate::Inputs::cu_seqlens_q`] has the first row of each. `seqlen_q` is then the most that a sequence has.
    pub fn packed_q(self, total_q: usize) -> Self {
        self.with(|problem| problem.total_q = Some(total_q))
    }

    /// The rows of k and v of all sequences are packed, one sequence after the other, `[total_k, heads_k, head_dim]`:
    /// [`crate::Inputs::cu_seqlens_k`] has the first row of each. `seqlen_k` is then the most that a sequence has.
    pub fn packed_k(self, total_k: usize) -> Self {
        self.with(|problem| problem.total_k = Some(total_k))
    }

    /// Columns of q and k, and of v and o unless [`ProblemBuilder::head_dim_v`] is set.
    pub fn head_dim(self, head_dim: usize) -> Self {
        self.size(4, |problem| problem.head_dim = head_dim)
    }

    /// Which keys a query sees; all unless set.
    pub fn mask(self, mask: Mask) -> Self {
        self.with(|problem| problem.mask = mask)
    }

    /// A map of blocks in addition to the mask: [`crate::Inputs::block_mask`] says which blocks are hidden, which ones the mask decides, and which
    /// are visible regardless of the mask. Not with sequences of different lengths.
    pub fn block_mask(self, block_mask: BlockMask) -> Self {
        self.with(|problem| problem.block_mask = Some(block_mask))
    }

    /// How the forward pass divides the keys of a sequence on a GPU; [`SplitKv::Auto`] unless set. Splits run in parallel, and their results are
    /// merged in a fixed order. So a few queries over many keys keep the device busy (Flash-Decoding, Dao et al.
    /// 2023). A number means splits of this many keys. Only flash3 and, with padded queries, flash2 divide keys, and not under a block mask. It has
    /// no effect on the backward pass, nor on the CPU.
    pub fn split_kv(self, split_kv: impl Into<SplitKv>) -> Self {
        self.with(|problem| problem.split_kv = split_kv.into())
    }

    /// Keys and values are in pages: see [`Pages`]. Only in the forward pass, and not with packed keys or a block mask. `seqlen_k` is then
    /// the most rows that a sequence has.
    pub fn pages(self, pages: Pages) -> Self {
        self.with(|problem| problem.pages = Some(pages))
    }

    /// Keys and values are in 8 bits, with scales: see [`Fp8Kv`]. Only in the forward pass.
    pub fn fp8_kv(self, scales: Fp8Kv) -> Self {
        self.with(|problem| problem.fp8_kv = Some(scales))
    }

    /// Queries, keys and values are in 8 bits, with scales: see [`Fp8`]. Only in the forward pass.
    pub fn fp8(self, scales: Fp8) -> Self {
        self.with(|problem| problem.fp8 = Some(scales))
    }

    /// How P V is summed in 8 bits on a GPU; in two levels unless set: see [`Fp8Sums`]. It has no effect without [`ProblemBuilder::fp8`].
    pub fn fp8_sums(self, sums: Fp8Sums) -> Self {
        self.with(|problem| problem.fp8_sums = sums)
    }

    /// Factor of the scores; 1/√head_dim unless set.
    pub fn softmax_scale(self, softmax_scale: f32) -> Self {
        self.with(|problem| problem.softmax_scale = Some(Number::of(softmax_scale)))
    }

    /// Order of the sums of the backward pass; deterministic unless set.
    pub fn order(self, order: Order) -> Self {
        self.with(|problem| problem.order = order)
    }

    /// The problem; an error names a size that was not set. The calls that take the problem check its sizes: see [`crate::validate`].
    pub fn build(self) -> Result<Problem, ProblemError> {
        let mut unset = SIZES.into_iter().zip(self.unset);
        if let Some((field, _)) = unset.find(|(_, unset)| *unset) {
            return Err(ProblemError::Unset { field });
        }
        let problem = self.problem;
        Ok(Problem {
            // One way to say that they are alike.
            head_dim_v: problem
                .head_dim_v
                .filter(|&columns| columns != problem.head_dim),
            ..problem
        })
    }
}

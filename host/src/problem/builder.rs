//! Collecting a problem.

use super::{
    BlockMask, Expressions, Fp8Kv, Mask, Order, Pages, Precision, Problem, SplitKv, Values,
};
use crate::dtype::Dtype;
use crate::error::ProblemError;

/// Collects a [`Problem`].
#[derive(Clone, Copy, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct ProblemBuilder {
    pub(super) batch: usize,
    pub(super) heads_q: Option<usize>,
    pub(super) heads_k: Option<usize>,
    pub(super) seqlen_q: Option<usize>,
    pub(super) seqlen_k: Option<usize>,
    pub(super) head_dim: Option<usize>,
    pub(super) head_dim_v: Option<usize>,
    pub(super) values: Values,
    pub(super) dtype: Dtype,
    pub(super) mask: Mask,
    pub(super) softmax_scale: Option<f32>,
    pub(super) order: Order,
    pub(super) precision: Precision,
    pub(super) total_q: Option<usize>,
    pub(super) total_k: Option<usize>,
    pub(super) block_mask: Option<BlockMask>,
    pub(super) split_kv: SplitKv,
    pub(super) pages: Option<Pages>,
    pub(super) fp8_kv: Option<Fp8Kv>,
    pub(super) expressions: Expressions,
    pub(super) sinks: bool,
    pub(super) dropout: f32,
}

impl ProblemBuilder {
    /// Number of batch entries, or of sequences where they are packed; 1 unless set.
    pub fn batch(self, batch: usize) -> Self {
        ProblemBuilder { batch, ..self }
    }

    /// Heads of q, k and v alike.
    pub fn heads(self, heads: usize) -> Self {
        self.heads_q(heads).heads_k(heads)
    }

    /// Heads of q: a multiple of the heads of k and v.
    pub fn heads_q(self, heads_q: usize) -> Self {
        ProblemBuilder {
            heads_q: Some(heads_q),
            ..self
        }
    }

    /// Heads of k and v.
    pub fn heads_k(self, heads_k: usize) -> Self {
        ProblemBuilder {
            heads_k: Some(heads_k),
            ..self
        }
    }

    /// Rows of q, k and v alike.
    pub fn seqlen(self, seqlen: usize) -> Self {
        self.seqlen_q(seqlen).seqlen_k(seqlen)
    }

    /// Rows of q and o.
    pub fn seqlen_q(self, seqlen_q: usize) -> Self {
        ProblemBuilder {
            seqlen_q: Some(seqlen_q),
            ..self
        }
    }

    /// Rows of k and v.
    pub fn seqlen_k(self, seqlen_k: usize) -> Self {
        ProblemBuilder {
            seqlen_k: Some(seqlen_k),
            ..self
        }
    }

    /// The rows of q and o of all sequences lie one sequence behind the other, `[total_q, heads_q, head_dim]`:
    /// [`crate::Inputs::cu_seqlens_q`] says where each begins. `seqlen_q` is then the most that a sequence has.
    pub fn packed_q(self, total_q: usize) -> Self {
        ProblemBuilder {
            total_q: Some(total_q),
            ..self
        }
    }

    /// The rows of k and v of all sequences lie one sequence behind the other, `[total_k, heads_k, head_dim]`:
    /// [`crate::Inputs::cu_seqlens_k`] says where each begins. `seqlen_k` is then the most that a sequence has.
    pub fn packed_k(self, total_k: usize) -> Self {
        ProblemBuilder {
            total_k: Some(total_k),
            ..self
        }
    }

    /// Columns of q and k; of v and o, too, but for [`ProblemBuilder::head_dim_v`].
    pub fn head_dim(self, head_dim: usize) -> Self {
        ProblemBuilder {
            head_dim: Some(head_dim),
            ..self
        }
    }

    /// Which keys a query sees; all unless set.
    pub fn mask(self, mask: Mask) -> Self {
        ProblemBuilder { mask, ..self }
    }

    /// A map of blocks beside the mask: [`crate::Inputs::block_mask`] says which blocks are hidden, which the mask decides, and which
    /// are visible whatever it says. Not where sequences have lengths of their own.
    pub fn block_mask(self, block_mask: BlockMask) -> Self {
        ProblemBuilder {
            block_mask: Some(block_mask),
            ..self
        }
    }

    /// How the forward pass divides the keys of a sequence on a GPU; [`SplitKv::Auto`] unless set. Splits work side by side, and their
    /// results are merged in a fixed order. So a few queries over many keys keep the device busy (Flash-Decoding, Dao et al.
    /// 2023). A number means splits of so many keys. Only flash3 and, where queries are padded, flash2 divide keys, and not under a block mask. It makes no
    /// difference to the backward pass, nor on the CPU.
    pub fn split_kv(self, split_kv: impl Into<SplitKv>) -> Self {
        ProblemBuilder {
            split_kv: split_kv.into(),
            ..self
        }
    }

    /// Keys and values lie in pages: see [`Pages`]. In the forward pass alone, and not beside packed keys or a block mask. `seqlen_k` is then
    /// the most rows that a sequence has.
    pub fn pages(self, pages: Pages) -> Self {
        ProblemBuilder {
            pages: Some(pages),
            ..self
        }
    }

    /// Keys and values are in 8 bits, with scales: see [`Fp8Kv`]. In the forward pass alone.
    pub fn fp8_kv(self, scales: Fp8Kv) -> Self {
        ProblemBuilder {
            fp8_kv: Some(scales),
            ..self
        }
    }

    /// Factor of the scores; 1/√head_dim unless set.
    pub fn softmax_scale(self, softmax_scale: f32) -> Self {
        ProblemBuilder {
            softmax_scale: Some(softmax_scale),
            ..self
        }
    }

    /// Order of the sums of the backward pass; deterministic unless set.
    pub fn order(self, order: Order) -> Self {
        ProblemBuilder { order, ..self }
    }

    /// The problem; an error names a size that was not set. Whether the sizes make sense is checked by whoever uses
    /// the problem: see [`crate::validate`].
    pub fn build(self) -> Result<Problem, ProblemError> {
        let set = |value: Option<usize>, field| value.ok_or(ProblemError::Unset { field });
        Ok(Problem {
            batch: self.batch,
            heads_q: set(self.heads_q, "heads_q")?,
            heads_k: set(self.heads_k, "heads_k")?,
            seqlen_q: set(self.seqlen_q, "seqlen_q")?,
            seqlen_k: set(self.seqlen_k, "seqlen_k")?,
            head_dim: set(self.head_dim, "head_dim")?,
            // One way to say that they are alike.
            head_dim_v: self.head_dim_v.filter(|_| self.head_dim_v != self.head_dim),
            values: self.values,
            dtype: self.dtype,
            mask: self.mask,
            softmax_scale: self.softmax_scale,
            order: self.order,
            precision: self.precision,
            total_q: self.total_q,
            total_k: self.total_k,
            block_mask: self.block_mask,
            split_kv: self.split_kv,
            pages: self.pages,
            fp8_kv: self.fp8_kv,
            expressions: self.expressions,
            sinks: self.sinks,
            dropout: self.dropout,
        })
    }
}

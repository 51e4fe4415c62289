//! The sequence of a batch entry: its rows of the tensors, and its part of the scores and the weights.
//!
//! Scores and weights have the rows and columns of the longest sequences that there may be. A shorter one has the first of them.

use super::weights::{Head, weights_rows};
use crate::attention::mask::{Band, Rows};
use crate::kernels::block_sparse::map::MapRow;
use crate::kernels::common::sequence::band_of_lengths;
use crate::kernels::varlen;
use crate::params::{StandardParams, TensorView};
use crate::ptx::spec;
use crate::tile::global::{GlobalMatrix, GlobalRows, row_of_head};
use crate::tile::products::{self, Products};

/// Which rows are a sequence's.
#[derive(Clone, Copy)]
pub struct Sequence {
    /// Its rows of q, in their batch entry or the packed tensor.
    q: Rows,
    /// Its rows of k and v.
    k: Rows,
    /// The batch entry of q.
    batch_q: u32,
    /// The batch entry of k and v.
    batch_k: u32,
}

impl Sequence {
    /// That of a batch entry.
    ///
    /// # Safety
    /// The batch entry exists; lengths are as [`crate::params::Lengths`] says.
    #[inline(always)]
    pub unsafe fn of(p: &StandardParams, batch_idx: u32) -> Self {
        if !spec::lengths() {
            let rows = |len| Rows { first: 0, len };
            return Sequence {
                q: rows(p.shape.seqlen_q),
                k: rows(p.shape.seqlen_k),
                batch_q: batch_idx,
                batch_k: batch_idx,
            };
        }
        let entry = |cu_seqlens: u64| if cu_seqlens == 0 { batch_idx } else { 0 };
        // SAFETY: the caller's contract.
        unsafe {
            Sequence {
                q: varlen::rows_q(&p.lengths, &p.shape, batch_idx),
                k: varlen::rows_k(&p.lengths, &p.shape, batch_idx),
                batch_q: entry(p.lengths.cu_seqlens_q),
                batch_k: entry(p.lengths.cu_seqlens_k),
            }
        }
    }

    /// Rows of q.
    #[inline(always)]
    pub fn seqlen_q(&self) -> u32 {
        self.q.len
    }

    /// Rows of k and v.
    #[inline(always)]
    pub fn seqlen_k(&self) -> u32 {
        self.k.len
    }

    /// Columns of its scores and weights: those of its keys, and padding up to a whole 16-byte chunk of weights.
    #[inline(always)]
    pub fn padded_k(&self, p: &StandardParams) -> u64 {
        if spec::lengths() {
            u64::from(self.k.len.next_multiple_of(8))
        } else {
            p.padded_k
        }
    }

    /// Its mask.
    #[inline(always)]
    pub fn band(&self, p: &StandardParams) -> Band {
        band_of_lengths(p.window, self.q.len, self.k.len)
    }

    /// The row of the block mask's map that one of its queries has.
    #[inline(always)]
    pub(in crate::kernels) fn map_row(
        &self,
        p: &StandardParams,
        head_idx: u32,
        q_idx: u32,
    ) -> MapRow {
        MapRow::new(&p.blocks, self.batch_q, head_idx, q_idx)
    }

    /// Its rows of a head of q or its gradient.
    #[inline(always)]
    pub fn queries<E: Products>(
        &self,
        p: &StandardParams,
        tensor: &TensorView,
        head_idx: u32,
    ) -> GlobalMatrix {
        matrix::<E>(tensor, self.batch_q, head_idx, self.q, p.shape.head_dim)
    }

    /// Its rows of a head of k or its gradient.
    #[inline(always)]
    pub fn keys<E: Products>(
        &self,
        p: &StandardParams,
        tensor: &TensorView,
        head_idx: u32,
    ) -> GlobalMatrix {
        matrix::<E>(tensor, self.batch_k, head_idx, self.k, p.shape.head_dim)
    }

    /// Its rows of a head of v or its gradient.
    #[inline(always)]
    pub fn values<E: Products>(
        &self,
        p: &StandardParams,
        tensor: &TensorView,
        head_idx: u32,
    ) -> GlobalMatrix {
        matrix::<E>(tensor, self.batch_k, head_idx, self.k, p.shape.head_dim_v)
    }

    /// Its rows of a head of o or its gradient.
    #[inline(always)]
    pub fn outputs<E: Products>(
        &self,
        p: &StandardParams,
        tensor: &TensorView,
        head_idx: u32,
    ) -> GlobalMatrix {
        matrix::<E>(tensor, self.batch_q, head_idx, self.q, p.shape.head_dim_v)
    }

    /// Its weights of head `head` (`batch_idx · heads_q + head_idx`), padding columns included.
    #[inline(always)]
    pub fn weights(&self, p: &StandardParams, head: u32) -> GlobalMatrix {
        GlobalMatrix {
            rows: GlobalRows {
                len: self.q.len,
                ..weights_rows(p, head)
            },
            chunks: (self.padded_k(p) / 8) as u32,
        }
    }

    /// Address of a row's value in an array that lies as q does: `f32 [batch, heads_q, rows]`, packed `f32 [heads_q, rows]`.
    #[inline(always)]
    pub fn value(&self, p: &StandardParams, base: u64, head: Head, row: u32) -> u64 {
        if !spec::lengths() {
            return value_in_workspace(p, base, head.number(p.shape.heads_q), row);
        }
        let of_q = self.batch_q * p.shape.heads_q + head.head_idx;
        let rows = u64::from(p.lengths.rows_q);
        row_of_head(base, of_q, rows, self.q.first + row)
    }
}

/// Address of a row's value in an array `f32 [batch, heads_q, seqlen_q]`, of a head that is counted through the batch.
#[inline(always)]
pub(in crate::kernels) fn value_in_workspace(
    p: &StandardParams,
    base: u64,
    head: u32,
    row: u32,
) -> u64 {
    row_of_head(base, head, u64::from(p.shape.seqlen_q), row)
}

/// Rows of one head of a tensor of this many columns of `E`.
#[inline(always)]
fn matrix<E: Products>(
    tensor: &TensorView,
    batch_idx: u32,
    head_idx: u32,
    rows: Rows,
    columns: u32,
) -> GlobalMatrix {
    products::rows::<E>(tensor, batch_idx, head_idx, 0)
        .from_row(rows.first, rows.len)
        .with_chunks(columns / E::PER_CHUNK)
}

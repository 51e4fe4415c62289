//! What an append is given, and the table of what it takes.

use super::needs::{Access, Form, Need, Presence};
use super::operation::Operation;
use super::{Argument, Operands};
use crate::dtype::{Dtype, ScalarType};
use crate::problem::append::AppendProblem;
use crate::tensor::{Tensor, TensorMut, Vector, VectorMut};

/// What an append reads.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct AppendInputs<'a> {
    /// New rows of k: `[batch, seqlen_new, heads_k, head_dim]`, or packed `[total, heads_k, head_dim]`.
    pub k_new: Tensor<'a>,
    /// New rows of v, of the same shape.
    pub v_new: Tensor<'a>,
    /// How many rows of the cache each sequence uses before: i32 `[batch]`.
    pub seqused_k: Vector<'a>,
    /// Queries to be rotated: `[batch, seqlen_new, heads_q, head_dim]`, or packed. Where the problem has queries and this is left out, those
    /// that lie in [`AppendOutputs::q_out`] are rotated in place.
    pub q: Option<Tensor<'a>>,
    /// Cosines by position: f32 `[n_positions, rotary_dim / 2]`.
    pub cos: Option<Vector<'a>>,
    /// Sines by position, of the same shape.
    pub sin: Option<Vector<'a>>,
    /// Where each sequence's packed new rows begin, and where the last one's end: i32 `[batch + 1]`.
    pub cu_seqlens_new: Option<Vector<'a>>,
    /// Which page of the pool each page of a sequence is, where the cache lies in pages: i32 `[batch, columns]`; see
    /// [`Pages`](crate::Pages).
    pub page_table: Option<Vector<'a>>,
}

/// What an append writes.
#[derive(Debug)]
#[non_exhaustive]
pub struct AppendOutputs<'a> {
    /// Cache of keys: `[batch, seqlen_cache, heads_k, head_dim]`. Only the new rows are written, and none is read.
    pub k_cache: TensorMut<'a>,
    /// Cache of values, of the same shape.
    pub v_cache: TensorMut<'a>,
    /// The queries rotated, of the shape of q. Either the very memory and layout of [`AppendInputs::q`], or memory that does not overlap
    /// it.
    pub q_out: Option<TensorMut<'a>>,
    /// How many rows of the cache each sequence uses afterwards: i32 `[batch]`. Not the memory of [`AppendInputs::seqused_k`]: blocks of
    /// threads still read that when others write this.
    pub seqused_out: Option<VectorMut<'a>>,
}

impl<'a> AppendInputs<'a> {
    /// New rows of k and v, and how many rows the cache has before.
    pub fn new(
        k_new: &Tensor<'a>,
        v_new: &Tensor<'a>,
        seqused_k: impl Into<Vector<'a>>,
    ) -> AppendInputs<'a> {
        AppendInputs {
            k_new: *k_new,
            v_new: *v_new,
            seqused_k: seqused_k.into(),
            q: None,
            cos: None,
            sin: None,
            cu_seqlens_new: None,
            page_table: None,
        }
    }

    /// With [`AppendInputs::q`].
    #[must_use]
    pub fn q(self, q: &Tensor<'a>) -> AppendInputs<'a> {
        AppendInputs {
            q: Some(*q),
            ..self
        }
    }

    /// With [`AppendInputs::cos`] and [`AppendInputs::sin`].
    #[must_use]
    pub fn rotary(
        self,
        cos: impl Into<Vector<'a>>,
        sin: impl Into<Vector<'a>>,
    ) -> AppendInputs<'a> {
        AppendInputs {
            cos: Some(cos.into()),
            sin: Some(sin.into()),
            ..self
        }
    }

    /// With [`AppendInputs::page_table`].
    #[must_use]
    pub fn page_table(self, page_table: impl Into<Vector<'a>>) -> AppendInputs<'a> {
        AppendInputs {
            page_table: Some(page_table.into()),
            ..self
        }
    }

    /// With [`AppendInputs::cu_seqlens_new`].
    #[must_use]
    pub fn cu_seqlens_new(self, cu_seqlens_new: impl Into<Vector<'a>>) -> AppendInputs<'a> {
        AppendInputs {
            cu_seqlens_new: Some(cu_seqlens_new.into()),
            ..self
        }
    }
}

impl<'a> AppendOutputs<'a> {
    /// The caches alone.
    pub fn new(k_cache: TensorMut<'a>, v_cache: TensorMut<'a>) -> AppendOutputs<'a> {
        AppendOutputs {
            k_cache,
            v_cache,
            q_out: None,
            seqused_out: None,
        }
    }

    /// With [`AppendOutputs::q_out`].
    #[must_use]
    pub fn q_out(self, q_out: TensorMut<'a>) -> AppendOutputs<'a> {
        AppendOutputs {
            q_out: Some(q_out),
            ..self
        }
    }

    /// With [`AppendOutputs::seqused_out`].
    #[must_use]
    pub fn seqused_out(self, seqused_out: impl Into<VectorMut<'a>>) -> AppendOutputs<'a> {
        AppendOutputs {
            seqused_out: Some(seqused_out.into()),
            ..self
        }
    }
}

impl<'a> Operands<'a> {
    /// Of an append.
    pub(crate) fn append(
        inputs: &AppendInputs<'a>,
        outputs: &'a mut AppendOutputs<'_>,
    ) -> Operands<'a> {
        let mut operands = Operands::default();
        let AppendInputs {
            k_new,
            v_new,
            seqused_k,
            q,
            cos,
            sin,
            cu_seqlens_new,
            page_table,
        } = *inputs;
        operands.put(Argument::KNew, k_new);
        operands.put(Argument::VNew, v_new);
        operands.put(Argument::SeqUsedK, seqused_k);
        operands.put_optional(Argument::Q, q);
        operands.put_optional(Argument::Cos, cos);
        operands.put_optional(Argument::Sin, sin);
        operands.put_optional(Argument::CuSeqlensNew, cu_seqlens_new);
        operands.put_optional(Argument::PageTable, page_table);
        let AppendOutputs {
            k_cache,
            v_cache,
            q_out,
            seqused_out,
        } = outputs;
        operands.put(Argument::KCache, k_cache.reborrow());
        operands.put(Argument::VCache, v_cache.reborrow());
        let q_out = q_out.as_mut().map(TensorMut::reborrow);
        operands.put_optional(Argument::QOut, q_out);
        let seqused_out = seqused_out.as_mut().map(VectorMut::reborrow);
        operands.put_optional(Argument::SeqUsedOut, seqused_out);
        operands
    }
}

impl Operation for AppendProblem {
    const VERB: &'static str = "append";
    const FIRST: Argument = Argument::KNew;

    fn dtype(&self) -> Dtype {
        AppendProblem::dtype(self)
    }

    fn need(&self, argument: Argument) -> Option<Need> {
        use Access::{Read, Updated, Written};
        use Presence::{Optional, Required, Usual};
        let has_q = self.heads_q() > 0;
        let of_sequences = |n_elems| Form::Vector {
            dtype: ScalarType::I32,
            n_elems,
        };
        let lengths = of_sequences(self.batch() as u64);
        let ends = of_sequences((self.batch() as u64).saturating_add(1));
        let table = Form::Vector {
            dtype: ScalarType::F32,
            n_elems: self.turns().map_or(0, |turns| turns.table_elems()),
        };
        let tensor = |shape| Form::Tensor {
            shape,
            dtype: self.dtype().into(),
        };
        let new = tensor(self.shape_new());
        let cache = tensor(self.shape_cache());
        let q = tensor(self.shape_q());
        let (taken, presence, access, form) = match argument {
            Argument::KNew | Argument::VNew => (true, Required, Read, new),
            Argument::SeqUsedK => (true, Required, Read, lengths),
            Argument::CuSeqlensNew => (self.rows().is_packed(), Required, Read, ends),
            Argument::Cos | Argument::Sin => (self.turns().is_some(), Required, Read, table),
            Argument::Q => (has_q, Usual, Read, q),
            Argument::QOut => (has_q, Required, Updated, q),
            Argument::KCache | Argument::VCache => (true, Required, Written, cache),
            Argument::PageTable => {
                let entries = of_sequences(self.n_table_entries());
                (self.pages().is_some(), Required, Read, entries)
            }
            Argument::SeqUsedOut => (true, Optional, Written, lengths),
            _ => return None,
        };
        taken.then_some(Need {
            presence,
            access,
            form,
        })
    }
}

//! The arguments of an append, and the table of them.

use super::declare::{Give, arguments};
use super::needs::{Access, Form, Need, Presence};
use super::operation::Operation;
use super::{Argument, Operands};
use crate::dtype::{Dtype, ScalarType};
use crate::problem::append::AppendProblem;
use crate::tensor::{Tensor, TensorMut, Vector, VectorMut};

arguments! {
    /// What an append reads.
    ///
    /// [`Append`](crate::Append) has an example.
    #[derive(Clone, Copy, Debug)]
    read struct AppendInputs {
        required {
            /// New rows of k: `[batch, seqlen_new, heads_k, head_dim]`, or packed `[total, heads_k, head_dim]`.
            k_new: Tensor = KNew,
            /// New rows of v, of the same shape.
            v_new: Tensor = VNew,
            /// How many rows of the cache each sequence uses before the append: i32 `[batch]`.
            seqused_k: Vector = SeqUsedK,
        }
        optional {
            /// Queries to be rotated: `[batch, seqlen_new, heads_q, head_dim]`, or packed. If the problem has queries and this is left out, those in
            /// [`AppendOutputs::q_out`] are rotated in place.
            q: Tensor = Q,
            /// Cosines by position: f32 `[n_positions, rotary_dim / 2]`.
            cos: Vector = Cos,
            /// Sines by position, of the same shape.
            sin: Vector = Sin,
            /// The first packed new row of each sequence, and the end of the last: i32 `[batch + 1]`.
            cu_seqlens_new: Vector = CuSeqlensNew,
            /// The pages of each sequence in the pool, if the cache is in pages: i32 `[batch, columns]`; see
            /// [`Pages`](crate::Pages).
            page_table: Vector = PageTable,
            /// The scales of keys, if the cache is in 8 bits: f32 `[batch, heads_k]` or `[n_pages, heads_k]`, as
            /// [`Fp8Kv`](crate::Fp8Kv) says. A key is divided by the scale of its sequence or page and its head.
            k_descale: Vector = KDescale,
            /// The scales of values, of the same shape.
            v_descale: Vector = VDescale,
        }
        others {}
    }
}

arguments! {
    /// What an append writes.
    ///
    /// [`Append`](crate::Append) has an example.
    #[derive(Debug)]
    write struct AppendOutputs {
        required {
            /// Cache of keys: `[batch, seqlen_cache, heads_k, head_dim]`. Only the new rows are written, and none is read. Of the problem's type, or
            /// in e4m3 ([`AppendBuilder::fp8_kv`](crate::problem::append::AppendBuilder::fp8_kv)).
            k_cache: TensorMut = KCache,
            /// Cache of values, of the same shape.
            v_cache: TensorMut = VCache,
        }
        optional {
            /// The queries rotated, of the shape of q. Either the same memory and layout as [`AppendInputs::q`], or memory that does
            /// not overlap it.
            q_out: TensorMut = QOut,
            /// How many rows of the cache each sequence uses after the append: i32 `[batch]`. It must not overlap [`AppendInputs::seqused_k`]:
            /// blocks of threads still read that when others write this.
            seqused_out: VectorMut = SeqUsedOut,
        }
        others {}
    }
}

impl<'a> AppendInputs<'a> {
    /// New rows of k and v, and the number of rows that the cache already has.
    pub fn new(
        k_new: &Tensor<'a>,
        v_new: &Tensor<'a>,
        seqused_k: impl Into<Vector<'a>>,
    ) -> AppendInputs<'a> {
        AppendInputs::required(*k_new, *v_new, seqused_k.into())
    }

    /// With [`AppendInputs::k_descale`] and [`AppendInputs::v_descale`].
    #[must_use]
    pub fn descale(
        self,
        k_descale: impl Into<Vector<'a>>,
        v_descale: impl Into<Vector<'a>>,
    ) -> AppendInputs<'a> {
        self.k_descale(k_descale).v_descale(v_descale)
    }

    /// With [`AppendInputs::cos`] and [`AppendInputs::sin`].
    #[must_use]
    pub fn rotary(
        self,
        cos: impl Into<Vector<'a>>,
        sin: impl Into<Vector<'a>>,
    ) -> AppendInputs<'a> {
        self.cos(cos).sin(sin)
    }
}

impl<'a> AppendOutputs<'a> {
    /// Only the caches.
    pub fn new(k_cache: TensorMut<'a>, v_cache: TensorMut<'a>) -> AppendOutputs<'a> {
        AppendOutputs::required(k_cache, v_cache)
    }
}

impl<'a> Operands<'a> {
    /// The arguments of an append.
    pub(crate) fn append(
        inputs: &AppendInputs<'a>,
        outputs: &'a mut AppendOutputs<'_>,
    ) -> Operands<'a> {
        let mut operands = Operands::default();
        inputs.put(&mut operands);
        outputs.put(&mut operands);
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
        let scales = Form::Vector {
            dtype: ScalarType::F32,
            n_elems: self.n_scales(),
        };
        let own = ScalarType::from(self.dtype());
        let in_cache = match self.fp8_kv() {
            Some(_) => ScalarType::E4m3,
            None => own,
        };
        let tensor = |shape, dtype| Form::Tensor { shape, dtype };
        let new = tensor(self.shape_new(), own);
        let cache = tensor(self.shape_cache(), in_cache);
        let q = tensor(self.shape_q(), own);
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
            Argument::KDescale | Argument::VDescale => {
                (self.fp8_kv().is_some(), Required, Read, scales)
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

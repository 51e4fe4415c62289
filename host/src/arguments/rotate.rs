//! The arguments of a rotation, and the table of them.

use super::declare::{Give, arguments};
use super::needs::{Access, Form, Need, Presence};
use super::operation::Operation;
use super::{Argument, Operands};
use crate::dtype::{Dtype, ScalarType};
use crate::problem::rotate::RotateProblem;
use crate::tensor::{Tensor, TensorMut, Vector};

arguments! {
    /// The inputs of a rotation.
    ///
    /// The [module](crate::rotate) has an example.
    #[derive(Clone, Copy, Debug)]
    read struct RotateInputs {
        required {
            /// Cosines by position: f32 `[n_positions, rotary_dim / 2]`.
            cos: Vector = Cos,
            /// Sines by position, of the same shape.
            sin: Vector = Sin,
        }
        optional {
            /// Rows to be rotated: `[batch, seqlen, heads, head_dim]`, or packed `[total, heads, head_dim]`. Left out, those of the
            /// output are rotated in place.
            x: Tensor = X,
            /// The first row of each packed sequence, and the end of the last: i32 `[batch + 1]`.
            cu_seqlens: Vector = CuSeqlens,
            /// The position of each sequence's first row: i32 `[batch]`; 0 if left out.
            seqlen_offsets: Vector = SeqlenOffsets,
        }
        others {}
    }
}

impl<'a> RotateInputs<'a> {
    /// Rows, and the tables of their positions.
    pub fn new(
        x: &Tensor<'a>,
        cos: impl Into<Vector<'a>>,
        sin: impl Into<Vector<'a>>,
    ) -> RotateInputs<'a> {
        RotateInputs::in_place(cos, sin).x(x)
    }

    /// Only the tables: rows are rotated in place.
    pub fn in_place(cos: impl Into<Vector<'a>>, sin: impl Into<Vector<'a>>) -> RotateInputs<'a> {
        RotateInputs::required(cos.into(), sin.into())
    }
}

impl<'a> Operands<'a> {
    /// The arguments of a rotation.
    pub(crate) fn rotate(inputs: &RotateInputs<'a>, y: &'a mut TensorMut<'_>) -> Operands<'a> {
        let mut operands = Operands::default();
        inputs.put(&mut operands);
        operands.put(Argument::Y, y.reborrow());
        operands
    }
}

impl Operation for RotateProblem {
    const VERB: &'static str = "rotate";
    const FIRST: Argument = Argument::Y;

    fn dtype(&self) -> Dtype {
        RotateProblem::dtype(self)
    }

    fn need(&self, argument: Argument) -> Option<Need> {
        use Access::{Read, Updated};
        use Presence::{Optional, Required, Usual};
        let of_sequences = |n_elems| Form::Vector {
            dtype: ScalarType::I32,
            n_elems,
        };
        let lengths = of_sequences(self.batch() as u64);
        let ends = of_sequences((self.batch() as u64).saturating_add(1));
        let table = Form::Vector {
            dtype: ScalarType::F32,
            n_elems: self.turns().table_elems(),
        };
        let rows = Form::Tensor {
            shape: self.shape(),
            dtype: self.dtype().into(),
        };
        let (presence, access, form) = match argument {
            Argument::X => (Usual, Read, rows),
            Argument::Y => (Required, Updated, rows),
            Argument::Cos | Argument::Sin => (Required, Read, table),
            Argument::CuSeqlens if self.rows().is_packed() => (Required, Read, ends),
            Argument::SeqlenOffsets => (Optional, Read, lengths),
            _ => return None,
        };
        Some(Need {
            presence,
            access,
            form,
        })
    }
}

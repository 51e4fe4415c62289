//! The arguments of a rounding to 8 bits, and the table of them.

use super::declare::{Give, arguments};
use super::needs::{Access, Form, Need, Presence};
use super::operation::Operation;
use super::{Argument, Operands};
use crate::dtype::{Dtype, ScalarType};
use crate::problem::quantize::QuantizeProblem;
use crate::tensor::{Tensor, TensorMut, Vector, VectorMut};

arguments! {
    /// The inputs of a rounding to 8 bits.
    ///
    /// The [module](crate::fp8) has an example.
    #[derive(Clone, Copy, Debug)]
    read struct QuantizeInputs {
        required {
            /// The numbers: `[batch, seqlen, heads, head_dim]`, or packed `[total, heads, head_dim]`.
            x: Tensor = X,
        }
        optional {
            /// Scales, f32, as many as [`Fp8`](crate::Fp8) says: of a problem that gives them
            /// ([`QuantizeProblem::giving_descale`](crate::QuantizeProblem::giving_descale)).
            descale: Vector = Descale,
            /// The first row of each packed sequence, and the end of the last: i32 `[batch + 1]`.
            cu_seqlens: Vector = CuSeqlens,
        }
        others {}
    }
}

arguments! {
    /// The outputs of a rounding to 8 bits.
    ///
    /// The [module](crate::fp8) has an example.
    #[derive(Debug)]
    write struct QuantizeOutputs {
        required {
            /// The numbers divided by their scales, in e4m3: in the shape of x.
            rounded: TensorMut = Rounded,
        }
        optional {
            /// The scales, f32, as many as [`Fp8`](crate::Fp8) says: of a problem that does not give them.
            descale_out: VectorMut = DescaleOut,
            /// The greatest magnitudes, of the same size.
            amax: VectorMut = Amax,
        }
        others {}
    }
}

impl<'a> QuantizeInputs<'a> {
    /// The numbers.
    pub fn new(x: &Tensor<'a>) -> QuantizeInputs<'a> {
        QuantizeInputs::required(*x)
    }
}

impl<'a> QuantizeOutputs<'a> {
    /// The rounded numbers and their scales.
    pub fn new(rounded: TensorMut<'a>, descale: impl Into<VectorMut<'a>>) -> QuantizeOutputs<'a> {
        QuantizeOutputs::required(rounded).descale_out(descale)
    }

    /// The rounded numbers, of given scales.
    pub fn of_given_descale(rounded: TensorMut<'a>) -> QuantizeOutputs<'a> {
        QuantizeOutputs::required(rounded)
    }
}

impl<'a> Operands<'a> {
    /// The arguments of a rounding to 8 bits.
    pub(crate) fn quantize(
        inputs: &QuantizeInputs<'a>,
        outputs: &'a mut QuantizeOutputs<'_>,
    ) -> Operands<'a> {
        let mut operands = Operands::default();
        inputs.put(&mut operands);
        outputs.put(&mut operands);
        operands
    }
}

impl Operation for QuantizeProblem {
    const VERB: &'static str = "quantize";
    const FIRST: Argument = Argument::X;

    fn dtype(&self) -> Dtype {
        QuantizeProblem::dtype(self)
    }

    fn need(&self, argument: Argument) -> Option<Need> {
        use Access::{Read, Written};
        use Presence::{Optional, Required};
        let tensor = |dtype| Form::Tensor {
            shape: self.shape(),
            dtype,
        };
        let numbers = Form::Vector {
            dtype: ScalarType::F32,
            n_elems: self.n_scales(),
        };
        let ends = Form::Vector {
            dtype: ScalarType::I32,
            n_elems: (self.batch() as u64).saturating_add(1),
        };
        let (presence, access, form) = match argument {
            Argument::X => (Required, Read, tensor(self.dtype().into())),
            Argument::Rounded => (Required, Written, tensor(ScalarType::E4m3)),
            Argument::Descale if self.gives_descale() => (Required, Read, numbers),
            Argument::DescaleOut if !self.gives_descale() => (Required, Written, numbers),
            Argument::Amax => (Optional, Written, numbers),
            Argument::CuSeqlens if self.rows().is_packed() => (Required, Read, ends),
            _ => return None,
        };
        Some(Need {
            presence,
            access,
            form,
        })
    }
}

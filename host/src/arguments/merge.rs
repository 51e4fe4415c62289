//! The arguments of a merge, and the table of them.

use super::declare::{Give, arguments};
use super::needs::{Access, Form, Need, Presence};
use super::operation::Operation;
use super::{Argument, Operands, Outputs};
use crate::dtype::{Dtype, ScalarType};
use crate::problem::merge::MergeProblem;
use crate::tensor::{Tensor, Vector};

arguments! {
    /// The inputs of a merge: o and lse over each of two parts of the keys.
    ///
    /// A part that saw no key has an lse of −∞. Its o is not read, so it may have any value.
    ///
    /// [`Merge`](crate::Merge) has an example.
    #[derive(Clone, Copy, Debug)]
    read struct MergeInputs {
        required {
            /// Output over the first part: `[batch, seqlen, heads, head_dim]`, or packed `[total, heads, head_dim]`.
            o_1: Tensor = O1,
            /// Row statistics of the first part, f32 `[batch, heads, seqlen]`: the natural logarithm of each row's sum of exponentials.
            lse_1: Vector = Lse1,
            /// Output over the second part.
            o_2: Tensor = O2,
            /// Row statistics of the second part.
            lse_2: Vector = Lse2,
        }
        optional {}
        others {}
    }
}

impl<'a> MergeInputs<'a> {
    /// o and lse of the first part, then of the second.
    pub fn new(
        o_1: &Tensor<'a>,
        lse_1: impl Into<Vector<'a>>,
        o_2: &Tensor<'a>,
        lse_2: impl Into<Vector<'a>>,
    ) -> MergeInputs<'a> {
        MergeInputs::required(*o_1, lse_1.into(), *o_2, lse_2.into())
    }
}

impl<'a> Operands<'a> {
    /// The arguments of a merge.
    pub(crate) fn merge(inputs: &MergeInputs<'a>, outputs: &'a mut Outputs<'_>) -> Operands<'a> {
        let mut operands = Operands::default();
        inputs.put(&mut operands);
        outputs.put(&mut operands);
        operands
    }
}

impl Operation for MergeProblem {
    const VERB: &'static str = "merge";
    const FIRST: Argument = Argument::O1;

    fn dtype(&self) -> Dtype {
        MergeProblem::dtype(self)
    }

    fn need(&self, argument: Argument) -> Option<Need> {
        use Access::{Read, Written};
        use Presence::{Required, Usual};
        let o = Form::Tensor {
            shape: self.shape(),
            dtype: self.dtype().into(),
        };
        let lse = Form::Vector {
            dtype: ScalarType::F32,
            n_elems: self.n_rows(),
        };
        let (presence, access, form) = match argument {
            Argument::O1 | Argument::O2 => (Required, Read, o),
            Argument::Lse1 | Argument::Lse2 => (Required, Read, lse),
            Argument::O => (Required, Written, o),
            Argument::Lse => (Usual, Written, lse),
            _ => return None,
        };
        Some(Need {
            presence,
            access,
            form,
        })
    }
}

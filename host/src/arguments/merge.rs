//! What a merge is given, and the table of what it takes.

use super::needs::{Access, Form, Need, Presence};
use super::operation::Operation;
use super::{Argument, Operands, Outputs};
use crate::dtype::{Dtype, ScalarType};
use crate::problem::merge::MergeProblem;
use crate::tensor::{Tensor, Vector};

/// What a merge reads: o and lse over each of two parts of the keys.
///
/// A part that saw no key has an lse of −∞. Its o is not read, so it may be anything.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct MergeInputs<'a> {
    /// Output over the first part: `[batch, seqlen, heads, head_dim]`, or packed `[total, heads, head_dim]`.
    pub o_1: Tensor<'a>,
    /// Row statistics of the first part, f32 `[batch, heads, seqlen]`: the natural logarithm of each row's sum of exponentials.
    pub lse_1: Vector<'a>,
    /// Output over the second part.
    pub o_2: Tensor<'a>,
    /// Row statistics of the second part.
    pub lse_2: Vector<'a>,
}

impl<'a> MergeInputs<'a> {
    /// o and lse of the first part, then of the second.
    pub fn new(
        o_1: &Tensor<'a>,
        lse_1: impl Into<Vector<'a>>,
        o_2: &Tensor<'a>,
        lse_2: impl Into<Vector<'a>>,
    ) -> MergeInputs<'a> {
        MergeInputs {
            o_1: *o_1,
            lse_1: lse_1.into(),
            o_2: *o_2,
            lse_2: lse_2.into(),
        }
    }
}

impl<'a> Operands<'a> {
    /// Of a merge.
    pub(crate) fn merge(inputs: &MergeInputs<'a>, outputs: &'a mut Outputs<'_>) -> Operands<'a> {
        let MergeInputs {
            o_1,
            lse_1,
            o_2,
            lse_2,
        } = *inputs;
        let mut operands = Operands::default();
        operands.put(Argument::O1, o_1);
        operands.put(Argument::Lse1, lse_1);
        operands.put(Argument::O2, o_2);
        operands.put(Argument::Lse2, lse_2);
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

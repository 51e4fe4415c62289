//! The arguments of each pass: the one table that validation, planning, copies and backends use.

use super::Argument;
use crate::dtype::ScalarType;
use crate::problem::Problem;
use crate::terms::Pass;

/// The table's entry for one argument of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    pub(crate) presence: Presence,
    pub(crate) access: Access,
    pub(crate) form: Form,
}

/// Whether it is optional.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    Required,
    /// Optional; plans made ahead assume it is given.
    Usual,
    /// Optional; plans made ahead assume it is not given.
    Optional,
}

impl Presence {
    /// Whether a plan made ahead, without arguments, assumes it is given.
    pub(crate) fn is_expected(self) -> bool {
        match self {
            Presence::Required | Presence::Usual => true,
            Presence::Optional => false,
        }
    }
}

/// Whether it is read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Written,
    /// Written, and its earlier contents may be read: an output that may also be the input.
    Updated,
}

/// Its shape and type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// A tensor.
    Tensor {
        shape: [usize; 4],
        dtype: ScalarType,
    },
    /// A tensor of the problem's type laid out as [`Problem::weights_layout`] says.
    Weights,
    /// A vector.
    Vector { dtype: ScalarType, n_elems: u64 },
    /// A vector of a length that the call itself has checked: the memory of a tensor that expressions read.
    Elements { dtype: ScalarType },
}

impl Form {
    /// Whether it has no elements.
    pub(crate) fn is_empty(self) -> bool {
        match self {
            Form::Tensor { shape, .. } => shape.contains(&0),
            Form::Weights | Form::Elements { .. } => false,
            Form::Vector { n_elems, .. } => n_elems == 0,
        }
    }
}

/// Seed and offset of dropout.
const DROPOUT_STATE: Form = Form::Vector {
    dtype: ScalarType::U64,
    n_elems: 2,
};

/// The entry of this name; `None` if the pass does not take it. The problem's sizes have been checked.
pub(crate) fn need(problem: &Problem, pass: Pass, argument: Argument) -> Option<Need> {
    use Access::{Read, Written};
    use Presence::{Optional, Required, Usual};
    let backward = pass == Pass::Backward;
    let optional = |input, presence, access| {
        let (dtype, n_elems) = problem.optional_input(input)?;
        let n_elems = n_elems as u64;
        Some(Need {
            presence,
            access,
            form: Form::Vector { dtype, n_elems },
        })
    };
    match argument.gradient_of() {
        Some(of) if backward && problem.gives(of) => return optional(of, Usual, Written),
        Some(_) => return None,
        None if problem.gives(argument) => return optional(argument, Required, Read),
        None if argument.optional_input().is_some() => return optional(argument, Optional, Read),
        None => {}
    }
    let of_forward = if backward { Read } else { Written };
    let tensor = |shape, dtype| Form::Tensor { shape, dtype };
    // Gradients of tensors in 8 bits have the problem's type, too.
    let of_outputs = |shape| tensor(shape, problem.dtype().into());
    let like_o = of_outputs(problem.shape_o());
    let like_q = tensor(problem.shape_q(), problem.dtype_q());
    let like_k = tensor(problem.shape_k(), problem.dtype_k());
    let like_v = tensor(problem.shape_v(), problem.dtype_k());
    let numbers = |n_elems| Form::Vector {
        dtype: ScalarType::F32,
        n_elems,
    };
    let rows = numbers(problem.n_rows());
    let of_sequences = |n_elems| Form::Vector {
        dtype: ScalarType::I32,
        n_elems,
    };
    let ends = of_sequences((problem.batch() as u64).saturating_add(1));
    let (taken, presence, access, form) = match argument {
        Argument::Q => (true, Required, Read, like_q),
        Argument::K => (true, Required, Read, like_k),
        Argument::V => (!problem.values_in_keys(), Required, Read, like_v),
        Argument::O => (true, Required, of_forward, like_o),
        Argument::Lse if backward => (true, Required, Read, rows),
        Argument::Lse => (true, Usual, Written, rows),
        Argument::Weights => {
            let taken = pass == Pass::ForwardWithWeights;
            (taken, Required, Written, Form::Weights)
        }
        Argument::DO => (backward, Required, Read, like_o),
        Argument::DLse => (backward, Optional, Read, rows),
        Argument::DQ => (backward, Required, Written, of_outputs(problem.shape_q())),
        Argument::DK => (backward, Required, Written, of_outputs(problem.shape_k())),
        Argument::DV => (backward, Required, Written, of_outputs(problem.shape_v())),
        Argument::CuSeqlensQ => (problem.total_q().is_some(), Required, Read, ends),
        Argument::CuSeqlensK => (problem.total_k().is_some(), Required, Read, ends),
        Argument::PageTable => {
            let table = of_sequences(problem.n_table_entries());
            (problem.pages().is_some(), Required, Read, table)
        }
        Argument::KDescale | Argument::VDescale => {
            let [_, n] = problem.n_scales();
            let taken = problem.fp8_kv().is_some() || problem.fp8().is_some();
            (taken, Required, Read, numbers(n))
        }
        Argument::QDescale => {
            let [n, _] = problem.n_scales();
            (problem.fp8().is_some(), Required, Read, numbers(n))
        }
        Argument::BlockMask => {
            let map = Form::Vector {
                dtype: ScalarType::U8,
                n_elems: problem.n_blocks(),
            };
            (problem.block_mask().is_some(), Required, Read, map)
        }
        Argument::DropoutState => (problem.dropout().is_some(), Optional, Read, DROPOUT_STATE),
        Argument::ScoreTensor0
        | Argument::ScoreTensor1
        | Argument::ScoreTensor2
        | Argument::ScoreTensor3 => return score_tensor(problem, argument),
        Argument::DScoreTensor0
        | Argument::DScoreTensor1
        | Argument::DScoreTensor2
        | Argument::DScoreTensor3 => return score_tensor_gradient(problem, pass, argument),
        // Operations beside attention take the others.
        _ => return None,
    };
    taken.then_some(Need {
        presence,
        access,
        form,
    })
}

/// A tensor that the problem's expressions read.
fn score_tensor(problem: &Problem, argument: Argument) -> Option<Need> {
    let place = place_among(Argument::SCORE_TENSORS, argument)?;
    let read = problem.edit_parts()?.tensors().get(place)?;
    Some(Need {
        presence: Presence::Required,
        access: Access::Read,
        form: Form::Elements {
            dtype: read.tensor.element.into(),
        },
    })
}

/// The gradient of a tensor that the problem's score reads.
fn score_tensor_gradient(problem: &Problem, pass: Pass, argument: Argument) -> Option<Need> {
    let place = place_among(Argument::SCORE_TENSOR_GRADIENTS, argument)?;
    let parts = problem.edit_parts().filter(|_| pass == Pass::Backward)?;
    let (read, _) = parts.gradient_of(place).ok()?;
    let extents = read.dims().iter().map(|&index| problem.extent_of(index));
    Some(Need {
        presence: Presence::Optional,
        access: Access::Written,
        form: Form::Vector {
            dtype: parts.tensors().get(place)?.tensor.element.into(),
            n_elems: extents.fold(1, |n, extent| n.saturating_mul(extent as u64)),
        },
    })
}

/// Its index among these.
fn place_among<const N: usize>(arguments: [Argument; N], argument: Argument) -> Option<usize> {
    arguments.iter().position(|&other| other == argument)
}

//! The operators that have native kernels: their arguments and results, as in their schemas, and the operators to which native kernels pass calls on.

use std::ffi::CStr;

/// An operator with native kernels.
#[derive(Clone, Copy)]
pub(super) enum Operator {
    /// `plain`, or `plain_forward`: q, k, v, softmax_scale, left, right, num_splits.
    Forward,
    /// `plain_backward`: d_o, d_lse, q, k, v, o, lse; then the same numbers.
    Backward,
    /// `aten::_scaled_dot_product_flash_attention`: q, k, v, dropout_p, is_causal, return_debug_mask, scale.
    SdpaForward,
    /// `aten::_scaled_dot_product_flash_attention_backward`: d_o, q, k, v, o, lse; cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal,
    /// philox_seed, philox_offset, scale.
    SdpaBackward,
    /// `aten::_scaled_dot_product_fused_attention_overrideable`: q, k, v, attn_bias, dropout_p, is_causal, return_debug_mask, scale. Its tensors are those
    /// of `plain`, and dropout_p is the code of its numbers.
    GraphForward,
    /// `aten::_scaled_dot_product_fused_attention_overrideable_backward`: d_o, q, k, v, attn_bias, grad_input_mask, o, lse, cum_seq_q, cum_seq_k,
    /// max_q, max_k, dropout_p, is_causal, philox_seed, philox_offset, scale.
    GraphBackward,
}

/// How many operators there are.
pub(super) const N_OPERATORS: usize = 6;

impl Operator {
    /// In the order of their declaration.
    pub(super) const ALL: [Operator; N_OPERATORS] = [
        Operator::Forward,
        Operator::Backward,
        Operator::SdpaForward,
        Operator::SdpaBackward,
        Operator::GraphForward,
        Operator::GraphBackward,
    ];

    /// By the name of its kernel.
    pub(super) fn named(name: &str) -> Option<Operator> {
        match name {
            "forward" => Some(Operator::Forward),
            "backward" => Some(Operator::Backward),
            "sdpa_forward" => Some(Operator::SdpaForward),
            "sdpa_backward" => Some(Operator::SdpaBackward),
            "graph_forward" => Some(Operator::GraphForward),
            "graph_backward" => Some(Operator::GraphBackward),
            _ => None,
        }
    }

    /// The arguments that its kernel owns.
    pub(super) fn signature(self) -> Signature {
        match self {
            Operator::Forward => Signature {
                tensors: &[0, 1, 2],
                optional: &[4, 5],
                ..Signature::EMPTY
            },
            Operator::Backward => Signature {
                tensors: &[0, 2, 3, 4, 5, 6],
                optional_tensors: &[1],
                optional: &[8, 9],
                ..Signature::EMPTY
            },
            Operator::SdpaForward => Signature {
                tensors: &[0, 1, 2],
                optional: &[6],
                ..Signature::EMPTY
            },
            Operator::SdpaBackward => Signature {
                tensors: &[0, 1, 2, 3, 4, 5, 6, 7, 12, 13],
                optional: &[14],
                ..Signature::EMPTY
            },
            Operator::GraphForward => Signature {
                tensors: &[0, 1, 2],
                optional_tensors: &[3],
                optional: &[7],
                ..Signature::EMPTY
            },
            Operator::GraphBackward => Signature {
                tensors: &[0, 1, 2, 3, 4, 6, 7, 8, 9, 14, 15],
                optional: &[16],
                lists: &[5],
                ..Signature::EMPTY
            },
        }
    }

    /// The operator for the same calls whose kernel is a Python function, and the number of its results, all of which are tensors.
    pub(super) fn of_python(self) -> (&'static CStr, usize) {
        match self {
            Operator::Forward => (c"ferroflash::plain_by_python", 2),
            Operator::Backward => (c"ferroflash::plain_backward_by_python", 3),
            Operator::SdpaForward => (c"ferroflash::sdpa_by_python", N_OF_SDPA),
            Operator::SdpaBackward => (c"ferroflash::sdpa_backward_by_python", 3),
            Operator::GraphForward => (c"ferroflash::graph_by_python", 2),
            Operator::GraphBackward => (c"ferroflash::graph_backward_by_python", 3),
        }
    }

    /// How many arguments it has, and how many results.
    pub(super) fn arity(self) -> (usize, usize) {
        match self {
            Operator::Forward => (7, 2),
            Operator::Backward => (11, 3),
            Operator::SdpaForward => (7, 9),
            Operator::SdpaBackward => (15, 3),
            Operator::GraphForward => (8, 9),
            Operator::GraphBackward => (17, 4),
        }
    }

    /// The indices of the arguments of [`Operator::of_python`]'s operator among this one's, in their order; `None` if they are the same.
    pub(super) fn handed_on(self) -> &'static [usize] {
        match self {
            Operator::GraphForward => &[0, 1, 2, 4],
            Operator::GraphBackward => &[0, 1, 2, 3, 6, 7, 12],
            _ => &[],
        }
    }
}

/// The results of SDPA's forward pass that are defined tensors: o, lse, two for the state of dropout, and the debug mask. Between lse and the others
/// are two undefined tensors, and the lengths of q and k.
pub(super) const N_OF_SDPA: usize = 5;

/// The arguments that an operator's kernel owns.
pub(super) struct Signature {
    pub(super) tensors: &'static [usize],
    pub(super) optional_tensors: &'static [usize],
    /// Numbers that may be None.
    pub(super) optional: &'static [usize],
    pub(super) lists: &'static [usize],
}

impl Signature {
    pub(super) const EMPTY: Signature = Signature {
        tensors: &[],
        optional_tensors: &[],
        optional: &[],
        lists: &[],
    };
}

//! Each rule of validation, with the field of the error that names the culprit.

use ferroflash::error::{Argument, ProblemError};
use ferroflash::plan::schedule::MAX_GRID;
use ferroflash::tensor::{Description, LseDescription, Place};
use ferroflash::validate::{
    ForwardTensors, GradientTensors, backward, forward, forward_with_weights,
};
use ferroflash::{Dtype, Layout, Problem};

/// batch 2, 6 query heads over 3, 5 queries, 7 keys, head_dim 16.
fn problem() -> Problem {
    Problem::builder(Dtype::F16)
        .batch(2)
        .heads_q(6)
        .heads_k(3)
        .seqlen_q(5)
        .seqlen_k(7)
        .head_dim(16)
        .build()
        .unwrap()
}

/// The same with some of it changed.
fn with(change: impl FnOnce(&mut Problem)) -> Problem {
    let mut problem = problem();
    change(&mut problem);
    problem
}

fn like_q() -> Description {
    Description::contiguous([2, 5, 6, 16], Dtype::F16, Place::Host).unwrap()
}

fn like_k() -> Description {
    Description::contiguous([2, 7, 3, 16], Dtype::F16, Place::Host).unwrap()
}

fn tensors() -> ForwardTensors {
    let lse = LseDescription::contiguous(2 * 6 * 5, Place::Host);
    ForwardTensors {
        q: like_q(),
        k: like_k(),
        v: like_k(),
        o: like_q(),
        lse,
    }
}

fn gradients() -> GradientTensors {
    GradientTensors {
        d_o: like_q(),
        d_lse: Some(tensors().lse),
        d_q: like_q(),
        d_k: like_k(),
        d_v: like_k(),
    }
}

#[test]
fn what_fits_is_accepted() {
    let checked = forward(&problem(), tensors()).unwrap();
    assert_eq!(checked.problem(), &problem());
    assert_eq!(checked.softmax_scale(), 0.25);
    assert_eq!(checked.n_rows(), 60);
    assert!(checked.gradients().is_none());
    assert!(
        backward(&problem(), tensors(), gradients())
            .unwrap()
            .gradients()
            .is_some()
    );
}

#[test]
fn lengths_of_zero_are_accepted() {
    for (seqlen_q, seqlen_k) in [(0, 7), (5, 0), (0, 0)] {
        let problem = with(|p| {
            p.seqlen_q = seqlen_q;
            p.seqlen_k = seqlen_k;
        });
        let q = Description::contiguous(problem.shape_q(), Dtype::F16, Place::Host).unwrap();
        let k = Description::contiguous(problem.shape_k(), Dtype::F16, Place::Host).unwrap();
        let lse = LseDescription::contiguous((12 * seqlen_q) as u64, Place::Host);
        forward(
            &problem,
            ForwardTensors {
                q,
                k,
                v: k,
                o: q,
                lse,
            },
        )
        .unwrap();
    }
}

#[test]
fn each_tensor_has_the_problems_shape() {
    let wrong = Description::contiguous([2, 5, 6, 8], Dtype::F16, Place::Host).unwrap();
    let forward_cases = [
        (
            Argument::Q,
            ForwardTensors {
                q: wrong,
                ..tensors()
            },
            problem().shape_q(),
        ),
        (
            Argument::K,
            ForwardTensors {
                k: wrong,
                ..tensors()
            },
            problem().shape_k(),
        ),
        (
            Argument::V,
            ForwardTensors {
                v: wrong,
                ..tensors()
            },
            problem().shape_k(),
        ),
        (
            Argument::O,
            ForwardTensors {
                o: wrong,
                ..tensors()
            },
            problem().shape_q(),
        ),
    ];
    for (argument, tensors, needed) in forward_cases {
        let refusal = ProblemError::ShapeMismatch {
            argument,
            given: [2, 5, 6, 8],
            needed,
        };
        assert_eq!(forward(&problem(), tensors), Err(refusal));
    }
    let backward_cases = [
        (
            Argument::DO,
            GradientTensors {
                d_o: wrong,
                ..gradients()
            },
            problem().shape_q(),
        ),
        (
            Argument::DQ,
            GradientTensors {
                d_q: wrong,
                ..gradients()
            },
            problem().shape_q(),
        ),
        (
            Argument::DK,
            GradientTensors {
                d_k: wrong,
                ..gradients()
            },
            problem().shape_k(),
        ),
        (
            Argument::DV,
            GradientTensors {
                d_v: wrong,
                ..gradients()
            },
            problem().shape_k(),
        ),
    ];
    for (argument, gradients, needed) in backward_cases {
        let refusal = ProblemError::ShapeMismatch {
            argument,
            given: [2, 5, 6, 8],
            needed,
        };
        assert_eq!(backward(&problem(), tensors(), gradients), Err(refusal));
    }
}

#[test]
fn each_tensor_has_the_problems_type() {
    let k = Description {
        dtype: Dtype::Bf16,
        ..like_k()
    };
    let refusal = ProblemError::DtypeMismatch {
        argument: Argument::K,
        given: Dtype::Bf16,
        needed: Dtype::F16,
    };
    assert_eq!(
        forward(&problem(), ForwardTensors { k, ..tensors() }),
        Err(refusal)
    );
}

#[test]
fn each_tensor_lies_where_q_lies() {
    let v = like_k().moved_to(Place::Cuda(1));
    let refusal = ProblemError::MixedPlaces {
        argument: Argument::V,
        given: Place::Cuda(1),
        needed: Place::Host,
    };
    assert_eq!(
        forward(&problem(), ForwardTensors { v, ..tensors() }),
        Err(refusal)
    );
}

/// What is refused of lse, and of its gradient.
fn assert_rows_refused(given: LseDescription, refusal: impl Fn(Argument) -> ProblemError) {
    let with_lse = ForwardTensors {
        lse: given,
        ..tensors()
    };
    let refused = Err(refusal(Argument::Lse));
    assert_eq!(forward(&problem(), with_lse), refused);
    assert_eq!(backward(&problem(), with_lse, gradients()), refused);
    let with_d_lse = GradientTensors {
        d_lse: Some(given),
        ..gradients()
    };
    let refused = Err(refusal(Argument::DLse));
    assert_eq!(backward(&problem(), tensors(), with_d_lse), refused);
}

#[test]
fn lse_and_its_gradient_lie_where_q_lies() {
    let given = tensors().lse.moved_to(Place::Cuda(0));
    assert_rows_refused(given, |argument| ProblemError::MixedPlaces {
        argument,
        given: Place::Cuda(0),
        needed: Place::Host,
    });
}

#[test]
fn lse_and_its_gradient_have_one_element_per_row() {
    for n_elems in [0, 59, 61] {
        let given = LseDescription {
            n_elems,
            ..tensors().lse
        };
        assert_rows_refused(given, |argument| ProblemError::ElementCount {
            argument,
            given: n_elems,
            needed: 60,
        });
    }
}

#[test]
fn lse_and_its_gradient_are_f32_whatever_the_problem_is() {
    for dtype in [Dtype::Bf16, Dtype::F16] {
        let given = LseDescription {
            dtype,
            ..tensors().lse
        };
        assert_rows_refused(given, |argument| ProblemError::DtypeMismatch {
            argument,
            given: dtype,
            needed: Dtype::F32,
        });
    }
}

#[test]
fn lse_and_its_gradient_are_aligned() {
    for address in [4096 + 1, 4096 + 2] {
        let given = LseDescription {
            address,
            ..tensors().lse
        };
        assert_rows_refused(given, |argument| ProblemError::Misaligned {
            argument,
            address,
            alignment: 4,
        });
    }
}

#[test]
fn a_gradient_of_lse_may_be_left_out() {
    let without = GradientTensors {
        d_lse: None,
        ..gradients()
    };
    let checked = backward(&problem(), tensors(), without).unwrap();
    assert_eq!(checked.gradients(), Some(&without));
}

#[test]
fn outputs_do_not_alias_and_inputs_may() {
    let repeated = |tensor: Description| Description {
        layout: Layout {
            batch_stride: 0,
            ..tensor.layout
        },
        ..tensor
    };
    forward(
        &problem(),
        ForwardTensors {
            k: repeated(like_k()),
            ..tensors()
        },
    )
    .unwrap();
    let o = repeated(like_q());
    let refusal = ProblemError::OutputAliases {
        argument: Argument::O,
        layout: o.layout,
    };
    assert_eq!(
        forward(&problem(), ForwardTensors { o, ..tensors() }),
        Err(refusal)
    );
    // In the backward pass o is an input.
    backward(&problem(), ForwardTensors { o, ..tensors() }, gradients()).unwrap();
    let cases = [
        (
            Argument::DQ,
            GradientTensors {
                d_q: repeated(like_q()),
                ..gradients()
            },
            repeated(like_q()),
        ),
        (
            Argument::DK,
            GradientTensors {
                d_k: repeated(like_k()),
                ..gradients()
            },
            repeated(like_k()),
        ),
        (
            Argument::DV,
            GradientTensors {
                d_v: repeated(like_k()),
                ..gradients()
            },
            repeated(like_k()),
        ),
    ];
    for (argument, gradients, culprit) in cases {
        let refusal = ProblemError::OutputAliases {
            argument,
            layout: culprit.layout,
        };
        assert_eq!(backward(&problem(), tensors(), gradients), Err(refusal));
    }
}

#[test]
fn weights_have_the_one_layout() {
    let layout = problem().weights_layout().unwrap();
    assert_eq!(layout.shape(), [2, 5, 6, 8]);
    let weights = Description { layout, ..like_q() };
    forward_with_weights(&problem(), tensors(), weights).unwrap();
    let given = Layout::bshd([2, 5, 6, 8]).unwrap();
    let refusal = ProblemError::WeightsLayout {
        given,
        needed: layout,
    };
    let weights = Description {
        layout: given,
        ..weights
    };
    assert_eq!(
        forward_with_weights(&problem(), tensors(), weights),
        Err(refusal)
    );
}

#[test]
fn the_grid_limit_is_cudas() {
    assert_eq!(MAX_GRID, (1 << 31) - 1);
}

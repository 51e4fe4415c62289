//! Each rule of validation, with the field of the error that names the culprit.

use ferroflash::arguments::{Argument, Arguments, Given};
use ferroflash::dtype::ScalarType;
use ferroflash::error::ProblemError;
use ferroflash::plan::schedule::MAX_GRID;
use ferroflash::tensor::{Description, Location, VectorDescription};
use ferroflash::validate::{check, without_tensors};
use ferroflash::{Dtype, Layout, Pass, Problem, ProblemBuilder};

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
fn with(change: impl FnOnce(ProblemBuilder) -> ProblemBuilder) -> Problem {
    change(problem().to_builder()).build().unwrap()
}

const PASSES: [Pass; 3] = [Pass::Forward, Pass::ForwardWithWeights, Pass::Backward];

/// What may be left out; and lse, where it is not read.
const OPTIONAL: [Argument; 4] = [
    Argument::DLse,
    Argument::SeqUsedQ,
    Argument::SeqUsedK,
    Argument::LeftpadK,
];

/// What fits, with all that may be left out.
fn fitting(pass: Pass) -> Arguments {
    let arguments = *without_tensors(&problem(), pass, Location::Host)
        .unwrap()
        .arguments();
    let lengths = VectorDescription::unplaced(2, ScalarType::I32, Location::Host);
    let arguments = arguments
        .with(Argument::SeqUsedQ, lengths)
        .with(Argument::SeqUsedK, lengths)
        .with(Argument::LeftpadK, lengths);
    match pass {
        Pass::Backward => arguments.with(Argument::DLse, rows()),
        _ => arguments,
    }
}

fn rows() -> VectorDescription {
    VectorDescription::unplaced(2 * 6 * 5, Dtype::F32, Location::Host)
}

/// The argument of a pass, changed, is refused.
fn assert_refused(
    pass: Pass,
    argument: Argument,
    changed: impl Into<Given>,
    refusal: ProblemError,
) {
    let arguments = fitting(pass).with(argument, changed);
    assert_eq!(check(&problem(), pass, arguments), Err(refusal));
}

/// Every tensor of every pass, and its shape.
fn tensors() -> impl Iterator<Item = (Pass, Argument, Description)> {
    PASSES.into_iter().flat_map(|pass| {
        let arguments = fitting(pass);
        let tensors = arguments
            .tensors()
            .map(|(argument, &given)| (pass, argument, given));
        tensors.collect::<Vec<_>>()
    })
}

#[test]
fn what_fits_is_accepted() {
    for pass in PASSES {
        let checked = check(&problem(), pass, fitting(pass)).unwrap();
        assert_eq!(checked.problem(), &problem());
        assert_eq!(checked.softmax_scale(), 0.25);
        assert_eq!(checked.n_rows(), 60);
        assert_eq!(checked.arguments(), &fitting(pass));
    }
    assert_eq!(tensors().count(), 4 + 5 + 8);
}

#[test]
fn lengths_of_zero_are_accepted() {
    for (seqlen_q, seqlen_k) in [(0, 7), (5, 0), (0, 0)] {
        let problem = with(|p| p.seqlen_q(seqlen_q).seqlen_k(seqlen_k));
        for pass in PASSES {
            without_tensors(&problem, pass, Location::Host).unwrap();
        }
    }
}

#[test]
fn what_a_pass_needs_is_there_and_nothing_else_is() {
    for pass in PASSES {
        for argument in Argument::ALL {
            match fitting(pass).get(argument) {
                Some(_) => {
                    let without = check(&problem(), pass, fitting(pass).without(argument));
                    let unused = argument == Argument::Lse && pass != Pass::Backward;
                    match unused || OPTIONAL.contains(&argument) {
                        true => assert!(without.is_ok()),
                        false => assert_eq!(without, Err(ProblemError::Missing { argument })),
                    }
                }
                // Any call may give it: see `sinks.rs`.
                None if argument.optional_input().is_some() => {}
                None => {
                    let refusal = ProblemError::NotTaken { argument };
                    assert_refused(pass, argument, rows(), refusal);
                }
            }
        }
    }
}

#[test]
fn tensors_are_tensors_and_vectors_are_vectors() {
    for pass in PASSES {
        for argument in Argument::ALL {
            let (other, needed): (Given, _) = match fitting(pass).get(argument) {
                Some(Given::Tensor(_)) => (rows().into(), "tensor"),
                Some(Given::Vector(_)) => {
                    let tensor = *fitting(pass).tensor(Argument::Q).unwrap();
                    (tensor.into(), "vector")
                }
                None => continue,
            };
            let refusal = ProblemError::OtherForm { argument, needed };
            assert_refused(pass, argument, other, refusal);
        }
    }
}

#[test]
fn each_tensor_has_the_problems_shape() {
    let wrong = Description::contiguous([2, 5, 6, 9], Dtype::F16, Location::Host).unwrap();
    for (pass, argument, tensor) in tensors() {
        let refusal = ProblemError::ShapeMismatch {
            argument,
            given: [2, 5, 6, 9],
            needed: tensor.layout.shape(),
        };
        assert_refused(pass, argument, wrong, refusal);
    }
    let shape = |argument| {
        fitting(Pass::Backward)
            .tensor(argument)
            .unwrap()
            .layout
            .shape()
    };
    for argument in [Argument::Q, Argument::O, Argument::DO, Argument::DQ] {
        assert_eq!(shape(argument), [2, 5, 6, 16]);
    }
    for argument in [Argument::K, Argument::V, Argument::DK, Argument::DV] {
        assert_eq!(shape(argument), [2, 7, 3, 16]);
    }
}

#[test]
fn each_tensor_has_the_problems_type() {
    for (pass, argument, tensor) in tensors() {
        for given in [Dtype::Bf16.into(), Dtype::F32.into(), ScalarType::I32] {
            let changed = Description {
                dtype: given,
                ..tensor
            };
            let refusal = ProblemError::DtypeMismatch {
                argument,
                given,
                needed: Dtype::F16.into(),
            };
            assert_refused(pass, argument, changed, refusal);
        }
    }
}

#[test]
fn everything_lies_where_q_lies() {
    for pass in PASSES {
        for argument in Argument::ALL.into_iter().skip(1) {
            if let Some(given) = fitting(pass).get(argument) {
                let refusal = ProblemError::MixedPlaces {
                    argument,
                    given: Location::Cuda(1),
                    needed: Location::Host,
                };
                assert_refused(pass, argument, given.moved_to(Location::Cuda(1)), refusal);
            }
        }
        let moved = fitting(pass).moved_to(Location::Cuda(1));
        assert_eq!(
            check(&problem(), pass, moved).unwrap().location(),
            Location::Cuda(1)
        );
    }
}

/// What is refused of lse, and of its gradient.
fn assert_rows_refused(given: VectorDescription, refusal: impl Fn(Argument) -> ProblemError) {
    for pass in PASSES {
        assert_refused(pass, Argument::Lse, given, refusal(Argument::Lse));
    }
    assert_refused(
        Pass::Backward,
        Argument::DLse,
        given,
        refusal(Argument::DLse),
    );
}

#[test]
fn lse_and_its_gradient_have_one_element_per_row() {
    for n_elems in [0, 59, 61] {
        let given = VectorDescription { n_elems, ..rows() };
        assert_rows_refused(given, |argument| ProblemError::ElementCount {
            argument,
            given: n_elems,
            needed: 60,
        });
    }
}

#[test]
fn lse_and_its_gradient_are_f32_whatever_the_problem_is() {
    for dtype in [Dtype::Bf16.into(), Dtype::F16.into(), ScalarType::I32] {
        let given = VectorDescription { dtype, ..rows() };
        assert_rows_refused(given, |argument| ProblemError::DtypeMismatch {
            argument,
            given: dtype,
            needed: ScalarType::F32,
        });
    }
}

#[test]
fn lse_and_its_gradient_are_aligned() {
    for address in [4096 + 1, 4096 + 2] {
        let given = VectorDescription { address, ..rows() };
        assert_rows_refused(given, |argument| ProblemError::Misaligned {
            argument,
            address,
            alignment: 4,
        });
    }
}

#[test]
fn outputs_do_not_alias_and_inputs_may() {
    let written: [(Pass, &[Argument]); 3] = [
        (Pass::Forward, &[Argument::O]),
        (Pass::ForwardWithWeights, &[Argument::O]),
        (Pass::Backward, &[Argument::DQ, Argument::DK, Argument::DV]),
    ];
    for (pass, argument, mut tensor) in tensors() {
        // The weights have one layout.
        if argument == Argument::Weights {
            continue;
        }
        tensor.layout.batch_stride = 0;
        if is_written(&written, pass, argument) {
            let layout = tensor.layout;
            let refusal = ProblemError::OutputAliases { argument, layout };
            assert_refused(pass, argument, tensor, refusal);
        } else {
            let arguments = fitting(pass).with(argument, tensor);
            check(&problem(), pass, arguments).unwrap();
        }
    }
}

fn is_written(written: &[(Pass, &[Argument])], pass: Pass, argument: Argument) -> bool {
    let mut of_pass = written.iter().filter(|(of, _)| *of == pass);
    of_pass.any(|(_, arguments)| arguments.contains(&argument))
}

/// A stride of 0 repeats elements, which count each time: whoever walks over the tensor counts them.
#[test]
fn repeated_elements_count_each_time() {
    let n_keys = 1 << 55;
    let problem = with(|p| p.seqlen_k(n_keys).batch(1).heads(1));
    let short = with(|p| p.batch(1).heads(1));
    let arguments = *without_tensors(&short, Pass::Forward, Location::Host)
        .unwrap()
        .arguments();
    let mut k = *arguments.tensor(Argument::K).unwrap();
    (k.layout.seqlen, k.layout.row_stride) = (n_keys, 0);
    let with_k = |problem: &Problem, k: Description| {
        let arguments = arguments.with(Argument::K, k).with(Argument::V, k);
        check(problem, Pass::Forward, arguments)
    };
    assert!(with_k(&problem, k).is_ok());
    // Twice 2^58 · 16 elements of two bytes are 2^63 bytes.
    let problem = with(|p| p.seqlen_k(8 * n_keys).batch(1).heads(1));
    k.layout.seqlen = 8 * n_keys;
    let what = "the bytes of a tensor";
    assert_eq!(
        with_k(&problem, k),
        Err(ProblemError::SizeOverflow { what })
    );
}

#[test]
fn weights_have_the_one_layout() {
    let layout = problem().weights_layout().unwrap();
    assert_eq!(layout.shape(), [2, 5, 6, 8]);
    let pass = Pass::ForwardWithWeights;
    let weights = *fitting(pass).tensor(Argument::Weights).unwrap();
    assert_eq!(weights.layout, layout);
    let given = Layout::bshd([2, 5, 6, 8]).unwrap();
    let refusal = ProblemError::WeightsLayout {
        given,
        needed: layout,
    };
    let weights = Description {
        layout: given,
        ..weights
    };
    assert_refused(pass, Argument::Weights, weights, refusal);
}

#[test]
fn the_grid_limit_is_cudas() {
    assert_eq!(MAX_GRID, (1 << 31) - 1);
}

/// Without elements nothing is read or written, wherever it would lie.
#[test]
fn what_is_empty_may_lie_anywhere() {
    let problem = with(|p| p.seqlen_q(0));
    let arguments = *without_tensors(&problem, Pass::Forward, Location::Host)
        .unwrap()
        .arguments();
    let at = |n_elems| VectorDescription {
        address: 0x1001,
        ..VectorDescription::unplaced(n_elems, Dtype::F32, Location::Host)
    };
    let empty = arguments.with(Argument::Lse, at(0));
    assert!(check(&problem, Pass::Forward, empty).is_ok());
    let refusal = ProblemError::Misaligned {
        argument: Argument::Lse,
        address: 0x1001,
        alignment: 4,
    };
    assert_refused(Pass::Forward, Argument::Lse, at(60), refusal);
}

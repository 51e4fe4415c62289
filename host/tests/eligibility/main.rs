//! Why kernels are refused: each reason, with the culprit it names.

use ferroflash::arguments::{Argument, Arguments};
use ferroflash::error::PlanError;
use ferroflash::plan::{DeviceInfo, Outcome, Plan, Reason, plan};
use ferroflash::tensor::{Description, Location};
use ferroflash::validate::{Checked, check, without_tensors};
use ferroflash::{Algorithm, Backend, Dtype, Pass, Problem, ProblemBuilder};
use ferroflash_kernels::spec::Constant;
use ferroflash_kernels::variants::{Kind, TileShape};

mod flash1;
mod flash3;
mod flash3_backward;

fn plan_of(
    problem: ProblemBuilder,
    pass: Pass,
    asked: Option<Algorithm>,
) -> Result<Plan, PlanError> {
    let checked = without_tensors(&problem.build().unwrap(), pass, Location::Cuda(0)).unwrap();
    plan(&checked, &DeviceInfo::h200(), Backend::Cuda, asked)
}

/// The reason why flash2 refuses, for a problem and device of which one thing is changed.
fn flash2_refusal(checked: Checked, device: DeviceInfo) -> Reason {
    refusal(Algorithm::Flash2, &checked, &device)
}

/// The same for any algorithm.
fn refusal(algorithm: Algorithm, checked: &Checked, device: &DeviceInfo) -> Reason {
    let refused = plan(checked, device, Backend::Cuda, Some(algorithm));
    let Err(PlanError::NoCandidate { candidates, .. }) = refused else {
        panic!("planned {refused:?}")
    };
    let candidate = candidates
        .into_iter()
        .find(|candidate| candidate.algorithm == algorithm)
        .unwrap();
    match candidate.outcome {
        Outcome::Refused(reason) => reason,
        outcome => panic!("{outcome}"),
    }
}

fn small() -> Problem {
    Problem::builder(Dtype::Bf16)
        .seqlen(64)
        .heads(2)
        .head_dim(64)
        .build()
        .unwrap()
}

/// The same with some of it changed.
fn with(change: impl FnOnce(ProblemBuilder) -> ProblemBuilder) -> Problem {
    change(small().to_builder()).build().unwrap()
}

/// Contiguous, aligned arguments.
fn arguments(problem: &Problem, pass: Pass) -> Arguments {
    *without_tensors(problem, pass, Location::Cuda(0))
        .unwrap()
        .arguments()
}

/// The problem with `change` done to one of its tensors.
fn with_changed(
    problem: &Problem,
    pass: Pass,
    argument: Argument,
    change: impl FnOnce(&mut Description),
) -> Checked {
    let arguments = arguments(problem, pass);
    let mut tensor = *arguments.tensor(argument).unwrap();
    change(&mut tensor);
    check(problem, pass, arguments.with(argument, tensor)).unwrap()
}

#[test]
fn an_unaligned_base_is_refused() {
    let checked = with_changed(&small(), Pass::Forward, Argument::Q, |q| q.address = 0x1008);
    let reason = Reason::BaseAlignment {
        argument: Argument::Q,
        address: 0x1008,
    };
    assert_eq!(flash2_refusal(checked, DeviceInfo::h200()), reason);
}

#[test]
fn a_stride_that_breaks_alignment_is_refused() {
    let checked = with_changed(&small(), Pass::Forward, Argument::V, |v| {
        v.layout.row_stride = 132
    });
    let reason = Reason::StrideAlignment {
        argument: Argument::V,
        stride: 132,
    };
    assert_eq!(flash2_refusal(checked, DeviceInfo::h200()), reason);
}

#[test]
fn the_batch_stride_counts_for_alignment_too() {
    let problem = with(|p| p.batch(2));
    for argument in [Argument::Q, Argument::K, Argument::V, Argument::O] {
        let checked = with_changed(&problem, Pass::Forward, argument, |tensor| {
            tensor.layout.batch_stride += 4
        });
        let reason = Reason::StrideAlignment {
            argument,
            stride: 64 * 2 * 64 + 4,
        };
        assert_eq!(flash2_refusal(checked, DeviceInfo::h200()), reason);
    }
}

#[test]
fn the_stride_of_a_single_entry_does_not_count() {
    let checked = with_changed(&small(), Pass::Forward, Argument::O, |o| {
        o.layout.batch_stride = 13
    });
    plan(&checked, &DeviceInfo::h200(), Backend::Cuda, None).unwrap();
}

#[test]
fn an_older_device_is_refused() {
    let checked = without_tensors(&small(), Pass::Forward, Location::Cuda(0)).unwrap();
    let device = DeviceInfo {
        compute_capability: (7, 5),
        ..DeviceInfo::h200()
    };
    let reason = Reason::ComputeCapability {
        given: (7, 5),
        needed: (8, 0),
    };
    assert_eq!(flash2_refusal(checked, device), reason);
}

#[test]
fn too_little_shared_memory_is_refused() {
    let checked = without_tensors(&small(), Pass::Forward, Location::Cuda(0)).unwrap();
    let device = DeviceInfo {
        shared_bytes_per_block: 1024,
        ..DeviceInfo::h200()
    };
    let Reason::SharedMemory {
        given: 1024,
        needed,
    } = flash2_refusal(checked, device)
    else {
        panic!()
    };
    assert!(needed > 1024);
}

fn at_head_dim_128(shared_bytes_per_block: u32) -> (ferroflash::validate::Checked, DeviceInfo) {
    let problem = with(|p| p.head_dim(128));
    let checked = without_tensors(&problem, Pass::Backward, Location::Cuda(0)).unwrap();
    let device = DeviceInfo {
        shared_bytes_per_block,
        ..DeviceInfo::rtx4090()
    };
    (checked, device)
}

#[test]
fn tiles_of_another_shape_are_not_taken_in_silence() {
    let (checked, device) = at_head_dim_128(101_376);
    let plan = plan(&checked, &device, Backend::Cuda, None).unwrap();
    let kernels: Vec<_> = plan.kernels().map(|kernel| kernel.name).collect();
    assert_eq!(
        kernels,
        [
            "backward_preprocess_sm80_bf16_d128_compact",
            "backward_sm80_bf16_d128_compact",
            "backward_postprocess_sm80_bf16_d128_compact"
        ]
    );
    let flash2 = plan
        .candidates
        .iter()
        .find(|candidate| candidate.algorithm == Algorithm::Flash2)
        .unwrap();
    let refusal = Reason::SharedMemory {
        given: 101_376,
        needed: 139_824,
    };
    assert_eq!(
        flash2.outcome,
        Outcome::ChosenInShape {
            tiles: TileShape::Compact,
            refusal
        }
    );
}

/// Kernels of a greater head_dim that need less shared memory serve, all of the pass together.
#[test]
fn kernels_of_a_pass_are_of_one_head_dim() {
    let (checked, device) = at_head_dim_128(98_575);
    let plan = plan(&checked, &device, Backend::Cuda, Some(Algorithm::Flash2)).unwrap();
    let kernels: Vec<_> = plan.kernels().map(|kernel| kernel.name).collect();
    assert_eq!(
        kernels,
        [
            "backward_preprocess_sm80_bf16_d256_compact",
            "backward_sm80_bf16_d256_compact",
            "backward_postprocess_sm80_bf16_d256_compact"
        ]
    );
}

#[test]
fn where_no_shape_fits_the_smallest_need_is_named() {
    let (checked, device) = at_head_dim_128(69_000);
    let refusal = Reason::SharedMemory {
        given: 69_000,
        needed: 69_936,
    };
    assert_eq!(flash2_refusal(checked, device), refusal);
}

#[test]
fn lengths_beyond_32_bits_are_refused() {
    let problem = with(|p| p.seqlen_q(1 << 33).seqlen_k(1));
    let checked = without_tensors(&problem, Pass::Forward, Location::Cuda(0)).unwrap();
    let reason = Reason::TooLarge {
        what: "seqlen_q",
        given: 1 << 33,
        limit: 1 << 29,
    };
    assert_eq!(flash2_refusal(checked, DeviceInfo::h200()), reason);
}

#[test]
fn heads_of_all_batch_entries_beyond_32_bits_are_refused() {
    let problem = with(|p| p.batch(1 << 20).heads(1 << 13).seqlen(1));
    let checked = without_tensors(&problem, Pass::Forward, Location::Cuda(0)).unwrap();
    let reason = Reason::TooLarge {
        what: "batch · heads",
        given: 1 << 33,
        limit: 1 << 29,
    };
    assert_eq!(flash2_refusal(checked, DeviceInfo::h200()), reason);
}

#[test]
fn a_grid_beyond_cudas_limit_is_refused() {
    let problem = with(|p| {
        p.batch(1 << 28)
            .heads_q(2)
            .heads_k(2)
            .seqlen_q(1 << 10)
            .seqlen_k(1)
    });
    let checked = without_tensors(&problem, Pass::Forward, Location::Cuda(0)).unwrap();
    let Reason::TooLarge { what, .. } = flash2_refusal(checked, DeviceInfo::h200()) else {
        panic!()
    };
    assert_eq!(what, "the number of query tiles");
}

#[test]
fn standard_is_refused_where_the_scores_do_not_fit() {
    let problem = Problem::builder(Dtype::Bf16)
        .seqlen(1 << 18)
        .heads(16)
        .head_dim(64);
    let error = plan_of(problem, Pass::Forward, Some(Algorithm::Standard)).unwrap_err();
    let PlanError::NoCandidate { candidates, .. } = &error else {
        panic!("{error}")
    };
    let standard = candidates
        .iter()
        .find(|candidate| candidate.algorithm == Algorithm::Standard)
        .unwrap();
    assert!(
        matches!(standard.outcome, Outcome::Refused(Reason::Memory { .. })),
        "{standard}"
    );
    assert_eq!(
        plan_of(problem, Pass::Forward, None).unwrap().algorithm,
        Algorithm::Flash3
    );
}

/// Of every multiple of 8 up to 512, in the backward pass 256, flash2 takes the smallest kernels that hold it, and these know whether they pad.
#[test]
fn flash2_pads_to_the_next_head_dim() {
    let compiled = [32, 64, 128, 256, 512];
    for head_dim in (8..=512).step_by(8) {
        let compiled = compiled.into_iter().find(|&most| head_dim <= most);
        for pass in [Pass::Forward, Pass::Backward] {
            if pass == Pass::Backward && head_dim > 256 {
                continue;
            }
            let problem = with(|p| p.head_dim(head_dim).seqlen(500));
            let checked = without_tensors(&problem, pass, Location::Cuda(0)).unwrap();
            let plan = plan(&checked, &DeviceInfo::a100(), Backend::Cuda, None).unwrap();
            assert_eq!(plan.algorithm, Algorithm::Flash2);
            for launch in &plan.launches {
                let (variant, spec) = (launch.variant, launch.spec);
                assert_eq!(variant.head_dim, compiled.map(|most| most as u32));
                let pads = variant.pads_columns(head_dim as u32);
                assert_eq!(spec.has(Constant::PadColumns), pads, "{}", launch.kernel());
                let is_told = variant.kind != Kind::BackwardPreprocess;
                assert_eq!(pads, is_told && compiled != Some(head_dim), "{head_dim}");
            }
        }
    }
    let (forward, backward) = ((Pass::Forward, 512), (Pass::Backward, 256));
    for (given, (pass, most)) in [
        (60, forward),
        (520, forward),
        (60, backward),
        (264, backward),
    ] {
        let problem = with(|p| p.head_dim(given));
        let checked = without_tensors(&problem, pass, Location::Cuda(0)).unwrap();
        let reason = Reason::HeadDimMultiple {
            given: given as u32,
            multiple: 8,
            most,
        };
        assert_eq!(flash2_refusal(checked, DeviceInfo::a100()), reason);
    }
}

/// The accumulator of dQ has the columns of the kernels, not of the tensors.
#[test]
fn the_accumulator_of_d_q_has_the_columns_of_the_kernels() {
    let bytes = |head_dim| {
        let problem = with(|p| p.head_dim(head_dim));
        let checked = without_tensors(&problem, Pass::Backward, Location::Cuda(0)).unwrap();
        let plan = plan(&checked, &DeviceInfo::a100(), Backend::Cuda, None).unwrap();
        let mut pieces = plan.workspace.pieces().iter();
        pieces
            .find(|piece| piece.name == "d_q_accum")
            .unwrap()
            .n_bytes
    };
    assert_eq!(bytes(72), bytes(128));
    assert_eq!(bytes(72), 2 * 64 * 128 * 4);
}

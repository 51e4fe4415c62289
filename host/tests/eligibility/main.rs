//! Why kernels are refused: each reason, with the culprit it names.

use ferroflash::error::{Argument, PlanError};
use ferroflash::plan::{DeviceInfo, Outcome, Plan, Reason, plan};
use ferroflash::tensor::{Description, LseDescription, Place};
use ferroflash::validate::{Checked, ForwardTensors, forward, without_tensors};
use ferroflash::{Algorithm, Backend, Dtype, Layout, Pass, Problem, ProblemBuilder};
use ferroflash_kernels::variants::TileShape;

mod flash3;
mod flash3_backward;

fn plan_of(
    problem: ProblemBuilder,
    pass: Pass,
    asked: Option<Algorithm>,
) -> Result<Plan, PlanError> {
    let checked = without_tensors(&problem.build().unwrap(), pass, Place::Cuda(0)).unwrap();
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
fn with(change: impl FnOnce(&mut Problem)) -> Problem {
    let mut problem = small();
    change(&mut problem);
    problem
}

fn small_tensors() -> ForwardTensors {
    let like = Description::contiguous(small().shape_q(), Dtype::Bf16, Place::Cuda(0)).unwrap();
    let lse = LseDescription::contiguous(128, Place::Cuda(0));
    ForwardTensors {
        q: like,
        k: like,
        v: like,
        o: like,
        lse,
    }
}

#[test]
fn an_unaligned_base_is_refused() {
    let tensors = small_tensors();
    let q = Description {
        address: 0x1008,
        ..tensors.q
    };
    let checked = forward(&small(), ForwardTensors { q, ..tensors }).unwrap();
    let reason = Reason::BaseAlignment {
        argument: Argument::Q,
        address: 0x1008,
    };
    assert_eq!(flash2_refusal(checked, DeviceInfo::h200()), reason);
}

#[test]
fn a_stride_that_breaks_alignment_is_refused() {
    let tensors = small_tensors();
    let layout = Layout {
        row_stride: 132,
        ..tensors.v.layout
    };
    let v = Description {
        layout,
        ..tensors.v
    };
    let checked = forward(&small(), ForwardTensors { v, ..tensors }).unwrap();
    let reason = Reason::StrideAlignment {
        argument: Argument::V,
        stride: 132,
    };
    assert_eq!(flash2_refusal(checked, DeviceInfo::h200()), reason);
}

#[test]
fn the_stride_of_a_single_entry_does_not_count() {
    let tensors = small_tensors();
    let layout = Layout {
        batch_stride: 13,
        ..tensors.o.layout
    };
    let o = Description {
        layout,
        ..tensors.o
    };
    let checked = forward(&small(), ForwardTensors { o, ..tensors }).unwrap();
    plan(&checked, &DeviceInfo::h200(), Backend::Cuda, None).unwrap();
}

#[test]
fn an_older_device_is_refused() {
    let checked = forward(&small(), small_tensors()).unwrap();
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
    let checked = forward(&small(), small_tensors()).unwrap();
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
    let problem = with(|p| p.head_dim = 128);
    let checked = without_tensors(&problem, Pass::Backward, Place::Cuda(0)).unwrap();
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
    let kernels: Vec<_> = plan.kernels().collect();
    assert_eq!(
        kernels,
        [
            "backward_delta_sm80_bf16_d128_compact",
            "backward_sm80_bf16_d128_compact",
            "backward_dq_sm80_bf16_d128_compact"
        ]
    );
    let flash2 = plan
        .candidates
        .iter()
        .find(|candidate| candidate.algorithm == Algorithm::Flash2)
        .unwrap();
    let refusal = Reason::SharedMemory {
        given: 101_376,
        needed: 164_880,
    };
    assert_eq!(
        flash2.outcome,
        Outcome::ChosenInShape {
            tiles: TileShape::Compact,
            refusal
        }
    );
}

#[test]
fn where_no_shape_fits_the_smallest_need_is_named() {
    let (checked, device) = at_head_dim_128(98_575);
    let refusal = Reason::SharedMemory {
        given: 98_575,
        needed: 98_576,
    };
    assert_eq!(flash2_refusal(checked, device), refusal);
}

#[test]
fn lengths_beyond_32_bits_are_refused() {
    let problem = with(|p| {
        p.seqlen_q = 1 << 33;
        p.seqlen_k = 1;
    });
    let checked = without_tensors(&problem, Pass::Forward, Place::Cuda(0)).unwrap();
    let reason = Reason::TooLarge {
        what: "seqlen_q",
        given: 1 << 33,
        limit: 1 << 29,
    };
    assert_eq!(flash2_refusal(checked, DeviceInfo::h200()), reason);
}

#[test]
fn a_grid_beyond_cudas_limit_is_refused() {
    let problem = with(|p| {
        p.batch = 1 << 28;
        p.heads_q = 2;
        p.heads_k = 2;
        p.seqlen_q = 1 << 10;
        p.seqlen_k = 1;
    });
    let checked = without_tensors(&problem, Pass::Forward, Place::Cuda(0)).unwrap();
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

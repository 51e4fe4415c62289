//! What flash3 refuses of a backward pass, and who serves then.

use super::flash3::replaced_by_flash2;
use super::*;

/// What the kernels copy by tensor maps, and what they read and write as flash2's do.
const MAPPED: [Argument; 6] = [
    Argument::Q,
    Argument::K,
    Argument::V,
    Argument::DO,
    Argument::DK,
    Argument::DV,
];
const OTHERS: [Argument; 2] = [Argument::O, Argument::DQ];

/// The small problem of three sequences with `change` done to one of its tensors.
fn with_changed(argument: Argument, change: impl FnOnce(&mut Description)) -> Checked {
    let problem = with(|p| p.batch(3));
    super::with_changed(&problem, Pass::Backward, argument, change)
}

/// Who serves a backward pass on an H200.
fn served(checked: &Checked) -> Algorithm {
    let plan = plan(checked, &DeviceInfo::h200(), Backend::Cuda, None).unwrap();
    plan.algorithm
}

fn of_problem(problem: &Problem) -> Checked {
    without_tensors(problem, Pass::Backward, Location::Cuda(0)).unwrap()
}

#[test]
fn it_serves_first_on_hopper_and_on_no_other_device() {
    let checked = of_problem(&small());
    assert_eq!(served(&checked), Algorithm::Flash3);
    let needed = (9, 0);
    for (given, expected) in [
        (
            (8, 9),
            Reason::ComputeCapability {
                given: (8, 9),
                needed,
            },
        ),
        (
            (10, 0),
            Reason::OtherArchitecture {
                given: (10, 0),
                needed,
            },
        ),
    ] {
        let device = DeviceInfo {
            compute_capability: given,
            ..DeviceInfo::h200()
        };
        assert_eq!(replaced_by_flash2(&checked, &device), expected);
    }
}

#[test]
fn every_multiple_of_8_goes_to_the_smallest_kernels_that_hold_it() {
    for head_dim in (8..=256).step_by(8) {
        let compiled = [64, 96, 128, 192, 256]
            .into_iter()
            .find(|compiled| head_dim <= *compiled)
            .unwrap();
        // From 512 queries on those of 256 are wide.
        let problem = Problem::builder(Dtype::F16)
            .seqlen(500)
            .heads(2)
            .head_dim(head_dim);
        let plan = plan_of(problem, Pass::Backward, None).unwrap();
        let kernels: Vec<_> = plan.kernels().map(|kernel| kernel.name).collect();
        let expected = [
            format!("backward_preprocess_sm90a_f16_d{compiled}"),
            format!("backward_sm90a_f16_d{compiled}"),
        ];
        assert_eq!(kernels, expected);
    }
}

#[test]
fn other_head_dims_are_refused() {
    for head_dim in [1, 60, 250, 255] {
        let reason = Reason::HeadDimMultiple {
            given: head_dim as u32,
            multiple: 8,
            most: 256,
        };
        let checked = of_problem(&with(|p| p.head_dim(head_dim)));
        let refused = refusal(Algorithm::Flash3, &checked, &DeviceInfo::h200());
        assert_eq!(refused, reason);
    }
}

#[test]
fn too_little_shared_memory_goes_to_flash2() {
    let problem = with(|p| p.head_dim(128));
    let device = DeviceInfo {
        shared_bytes_per_block: 164_880,
        ..DeviceInfo::h200()
    };
    let reason = replaced_by_flash2(&of_problem(&problem), &device);
    let needs = |needed| 164_880 < needed && needed <= DeviceInfo::h200().shared_bytes_per_block;
    assert!(
        matches!(reason, Reason::SharedMemory { given: 164_880, needed } if needs(needed)),
        "{reason}"
    );
}

#[test]
fn what_no_16_bytes_divide_is_refused_whoever_reads_it() {
    for argument in MAPPED.into_iter().chain(OTHERS) {
        let checked = with_changed(argument, |tensor| {
            (tensor.layout.row_stride, tensor.layout.batch_stride) = (132, 64 * 132)
        });
        let reason = Reason::StrideAlignment {
            argument,
            stride: 132,
        };
        let refused = refusal(Algorithm::Flash3, &checked, &DeviceInfo::h200());
        assert_eq!(refused, reason);
    }
}

/// Of what is read; validation refuses repeated entries of what is written.
#[test]
fn repeated_entries_of_what_tensor_maps_describe_go_to_flash2() {
    for argument in [Argument::Q, Argument::K, Argument::V, Argument::DO] {
        let checked = with_changed(argument, |tensor| tensor.layout.batch_stride = 0);
        let reason = Reason::RepeatedEntries { argument, n: 3 };
        assert_eq!(replaced_by_flash2(&checked, &DeviceInfo::h200()), reason);
    }
    let checked = with_changed(Argument::O, |tensor| tensor.layout.batch_stride = 0);
    assert_eq!(served(&checked), Algorithm::Flash3);
}

#[test]
fn strides_beyond_40_bits_of_what_tensor_maps_describe_go_to_flash2() {
    for argument in MAPPED {
        let checked = with_changed(argument, |tensor| tensor.layout.batch_stride = 1 << 39);
        let reason = Reason::StrideTooLong {
            argument,
            n_bytes: 1 << 40,
            limit: 1 << 40,
        };
        assert_eq!(replaced_by_flash2(&checked, &DeviceInfo::h200()), reason);
    }
    for argument in OTHERS {
        let checked = with_changed(argument, |tensor| tensor.layout.batch_stride = 1 << 39);
        assert_eq!(served(&checked), Algorithm::Flash3, "{argument}");
    }
}

#[test]
fn more_rows_than_kernels_count_are_refused() {
    let most = 1 << 29;
    let of_length = |seqlen_q| {
        let problem = with(|p| p.heads_q(1).heads_k(1).seqlen_q(seqlen_q));
        of_problem(&problem)
    };
    let device = DeviceInfo {
        memory_bytes: 1 << 50,
        ..DeviceInfo::h200()
    };
    let reason = Reason::TooLarge {
        what: "seqlen_q",
        given: most as u64 + 1,
        limit: most as u64,
    };
    let too_many = refusal(Algorithm::Flash3, &of_length(most + 1), &device);
    assert_eq!(too_many, reason);
    let plan = plan(&of_length(most), &device, Backend::Cuda, None).unwrap();
    assert_eq!(plan.algorithm, Algorithm::Flash3);
}

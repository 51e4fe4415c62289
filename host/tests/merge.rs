//! What validation and the kernel refuse of a merge, each by its error, and what is planned. No memory is there.

use ferroflash::arguments::{Argument, Arguments, Given};
use ferroflash::dtype::ScalarType;
use ferroflash::error::{PlanError, ProblemError};
use ferroflash::plan::{DeviceInfo, Reason, plan_merge};
use ferroflash::tensor::{Description, Location, VectorDescription};
use ferroflash::validate::merge::check_merge;
use ferroflash::{Backend, Device, Dtype, Layout, Merge, MergeProblem};
use ferroflash_kernels::params::Params;

/// Two batch entries of five rows of three heads.
const SHAPE: [usize; 4] = [2, 5, 3, 16];
const N_ROWS: usize = 2 * 5 * 3;

fn problem() -> MergeProblem {
    MergeProblem::new(Dtype::F16, SHAPE)
}

/// What fits.
fn fitting(location: Location) -> Arguments {
    let tensor = Description::contiguous(SHAPE, Dtype::F16, location).unwrap();
    let rows = VectorDescription::unplaced(N_ROWS as u64, Dtype::F32, location);
    let tensors = [Argument::O1, Argument::O2, Argument::O];
    let vectors = [Argument::Lse1, Argument::Lse2, Argument::Lse];
    let with_tensor = |arguments: Arguments, argument| arguments.with(argument, tensor);
    let with_vector = |arguments: Arguments, argument| arguments.with(argument, rows);
    let arguments = tensors.into_iter().fold(Arguments::default(), with_tensor);
    vectors.into_iter().fold(arguments, with_vector)
}

#[track_caller]
fn assert_refused(arguments: Arguments, expected: ProblemError) {
    assert_eq!(check_merge(&problem(), arguments), Err(expected));
}

#[test]
fn what_fits_is_taken() {
    let checked = check_merge(&problem(), fitting(Location::Host)).unwrap();
    assert_eq!(checked.problem().shape_lse(), [2, 3, 5]);
    assert_eq!(checked.location(), Location::Host);
    let without_lse = fitting(Location::Host).without(Argument::Lse);
    assert!(check_merge(&problem(), without_lse).is_ok());
}

#[test]
fn what_is_missing_or_not_taken_is_named() {
    for argument in [
        Argument::O1,
        Argument::Lse1,
        Argument::O2,
        Argument::Lse2,
        Argument::O,
    ] {
        let without = fitting(Location::Host).without(argument);
        assert_refused(without, ProblemError::Missing { argument });
    }
    let tensor = Description::contiguous(SHAPE, Dtype::F16, Location::Host).unwrap();
    for argument in [Argument::Q, Argument::Weights, Argument::DO] {
        let with = fitting(Location::Host).with(argument, tensor);
        assert_refused(with, ProblemError::NotTaken { argument });
    }
}

#[test]
fn tensors_have_the_shape_the_type_and_the_place() {
    for argument in [Argument::O1, Argument::O2, Argument::O] {
        let given = [2, 5, 3, 8];
        let of_shape = Description::contiguous(given, Dtype::F16, Location::Host).unwrap();
        let refused = ProblemError::ShapeMismatch {
            argument,
            given,
            needed: SHAPE,
        };
        assert_refused(fitting(Location::Host).with(argument, of_shape), refused);
        let of_type = Description::contiguous(SHAPE, Dtype::Bf16, Location::Host).unwrap();
        let refused = ProblemError::DtypeMismatch {
            argument,
            given: Dtype::Bf16.into(),
            needed: Dtype::F16.into(),
        };
        assert_refused(fitting(Location::Host).with(argument, of_type), refused);
        let rows = VectorDescription::unplaced(N_ROWS as u64, Dtype::F32, Location::Host);
        let needed = "tensor";
        let refused = ProblemError::OtherForm { argument, needed };
        assert_refused(fitting(Location::Host).with(argument, rows), refused);
    }
    for argument in [Argument::Lse1, Argument::O2, Argument::Lse2, Argument::O] {
        let given: Given = *fitting(Location::Cuda(1)).get(argument).unwrap();
        let refused = ProblemError::MixedPlaces {
            argument,
            given: Location::Cuda(1),
            needed: Location::Host,
        };
        assert_refused(fitting(Location::Host).with(argument, given), refused);
    }
}

#[test]
fn every_lse_is_f32_and_has_a_number_for_each_row() {
    for argument in [Argument::Lse1, Argument::Lse2, Argument::Lse] {
        for given in [N_ROWS as u64 - 1, N_ROWS as u64 + 1] {
            let rows = VectorDescription::unplaced(given, Dtype::F32, Location::Host);
            let refused = ProblemError::ElementCount {
                argument,
                given,
                needed: N_ROWS as u64,
            };
            assert_refused(fitting(Location::Host).with(argument, rows), refused);
        }
        let rows = VectorDescription::unplaced(N_ROWS as u64, ScalarType::I32, Location::Host);
        let refused = ProblemError::DtypeMismatch {
            argument,
            given: ScalarType::I32,
            needed: ScalarType::F32,
        };
        assert_refused(fitting(Location::Host).with(argument, rows), refused);
        let tensor = Description::contiguous(SHAPE, Dtype::F16, Location::Host).unwrap();
        let needed = "vector";
        let refused = ProblemError::OtherForm { argument, needed };
        assert_refused(fitting(Location::Host).with(argument, tensor), refused);
    }
}

#[test]
fn rows_of_the_output_lie_apart_and_those_of_inputs_may_not() {
    let mut repeated = Description::contiguous(SHAPE, Dtype::F16, Location::Host).unwrap();
    repeated.layout.head_stride = 0;
    for argument in [Argument::O1, Argument::O2] {
        let arguments = fitting(Location::Host).with(argument, repeated);
        assert!(check_merge(&problem(), arguments).is_ok());
    }
    let refused = ProblemError::OutputAliases {
        argument: Argument::O,
        layout: repeated.layout,
    };
    assert_refused(fitting(Location::Host).with(Argument::O, repeated), refused);
}

#[test]
fn sizes_make_sense() {
    let refused =
        |shape| Merge::new(&Device::cpu(), MergeProblem::new(Dtype::F32, shape)).unwrap_err();
    for given in [0, 577, usize::MAX] {
        let (min, max) = (1, 576);
        let out_of_range = ProblemError::HeadDimOutOfRange { given, min, max };
        assert_eq!(refused([1, 1, 1, given]), out_of_range.into());
    }
    let overflow = ProblemError::SizeOverflow {
        what: "batch · heads · seqlen",
    };
    assert_eq!(refused([1 << 40, 1, 1 << 40, 8]), overflow.clone().into());
    assert_eq!(refused([usize::MAX, 0, 2, 8]), overflow.into());
}

/// Gives the kernel's refusal of these arguments on an H200.
fn refused_by_kernel(problem: MergeProblem, arguments: Arguments, device: &DeviceInfo) -> Reason {
    let checked = check_merge(&problem, arguments).unwrap();
    match plan_merge(&checked, device, Backend::Cuda) {
        Err(PlanError::Operation {
            backend,
            verb,
            reason,
        }) => {
            assert_eq!((backend, verb), (Backend::Cuda, "merge"));
            reason
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_the_kernel_does_not_take_has_a_reason() {
    let (h200, location) = (DeviceInfo::h200(), Location::Cuda(0));
    let of = |dtype, shape: [usize; 4]| {
        let tensor = Description::contiguous(shape, dtype, location).unwrap();
        let n_rows = MergeProblem::new(dtype, shape).n_rows();
        let rows = VectorDescription::unplaced(n_rows, Dtype::F32, location);
        let arguments = fitting(location)
            .with(Argument::O1, tensor)
            .with(Argument::O2, tensor)
            .with(Argument::O, tensor)
            .with(Argument::Lse1, rows)
            .with(Argument::Lse2, rows)
            .with(Argument::Lse, rows);
        (MergeProblem::new(dtype, shape), arguments)
    };
    for (dtype, given, multiple) in [(Dtype::F16, 20, 8), (Dtype::F32, 22, 4)] {
        let (problem, arguments) = of(dtype, [1, 2, 3, given as usize]);
        let head_dim = Reason::HeadDimMultiple {
            given,
            multiple,
            most: 256,
        };
        assert_eq!(refused_by_kernel(problem, arguments, &h200), head_dim);
    }
    let (problem, arguments) = of(Dtype::Bf16, [1 << 15, 1 << 15, 2, 8]);
    let too_large = Reason::TooLarge {
        what: "batch · heads · seqlen",
        given: 1 << 31,
        limit: (1 << 31) - 1,
    };
    assert_eq!(refused_by_kernel(problem, arguments, &h200), too_large);
    let (problem, arguments) = of(Dtype::Bf16, SHAPE);
    let old = DeviceInfo {
        compute_capability: (7, 5),
        ..DeviceInfo::a100()
    };
    let too_old = Reason::ComputeCapability {
        given: (7, 5),
        needed: (8, 0),
    };
    assert_eq!(refused_by_kernel(problem, arguments, &old), too_old);
}

#[test]
fn the_kernel_wants_multiples_of_16_bytes() {
    let (h200, location) = (DeviceInfo::h200(), Location::Cuda(0));
    for argument in [Argument::O1, Argument::O2, Argument::O] {
        let fits = *fitting(location).tensor(argument).unwrap();
        let moved = Description { address: 8, ..fits };
        let address = Reason::BaseAlignment {
            argument,
            address: 8,
        };
        let arguments = fitting(location).with(argument, moved);
        assert_eq!(refused_by_kernel(problem(), arguments, &h200), address);
        let layout = Layout {
            row_stride: 52,
            batch_stride: 520,
            ..fits.layout
        };
        let stride = Reason::StrideAlignment {
            argument,
            stride: 52,
        };
        let arguments = fitting(location).with(argument, Description { layout, ..fits });
        assert_eq!(refused_by_kernel(problem(), arguments, &h200), stride);
    }
}

#[test]
fn one_launch_covers_every_row() {
    let device = DeviceInfo::a100();
    let checked = check_merge(&problem(), fitting(Location::Cuda(0))).unwrap();
    let plan = plan_merge(&checked, &device, Backend::Cuda).unwrap();
    assert_eq!(
        plan.to_string(),
        "merge on cuda\n  problem   f16 o [2, 5, 3, 16]\n  launch    merge_sm80_f16 plain grid 1 threads 256\n"
    );
    let of_f32 = MergeProblem::new(Dtype::F32, [2, 5, 3, 20]);
    let tensor = Description::contiguous(of_f32.shape(), Dtype::F32, Location::Cuda(0)).unwrap();
    let arguments = fitting(Location::Cuda(0))
        .with(Argument::O1, tensor)
        .with(Argument::O2, tensor)
        .with(Argument::O, tensor);
    let checked = check_merge(&of_f32, arguments).unwrap();
    assert_eq!(
        plan_merge(&checked, &device, Backend::Cuda)
            .unwrap()
            .to_string(),
        "merge on cuda\n  problem   f32 o [2, 5, 3, 20]\n  launch    merge_sm80_f32 plain grid 1 threads 256\n"
    );
    let [Params::Merge(params)] = plan.params(0, |argument| argument as u64 * 256)[..] else {
        panic!("{plan}");
    };
    let sizes = [params.n_rows, params.seqlen, params.heads, params.head_dim];
    assert_eq!(sizes, [30, 5, 3, 16]);
    let o = params.o_1;
    assert_eq!((o.batch_stride, o.row_stride, o.head_stride), (240, 48, 16));
    for (address, argument) in [
        (params.o_1.base, Argument::O1),
        (params.o_2.base, Argument::O2),
        (params.o.base, Argument::O),
        (params.lse_1, Argument::Lse1),
        (params.lse_2, Argument::Lse2),
        (params.lse, Argument::Lse),
    ] {
        assert_eq!(address, argument as u64 * 256, "{argument}");
    }
    for n_rows in [32, 33, 1000, (1 << 31) - 1] {
        let problem = MergeProblem::new(Dtype::F16, [1, n_rows, 1, 8]);
        let tensor =
            Description::contiguous(problem.shape(), Dtype::F16, Location::Cuda(0)).unwrap();
        let rows = VectorDescription::unplaced(n_rows as u64, Dtype::F32, Location::Cuda(0));
        let arguments = Arguments::default()
            .with(Argument::O1, tensor)
            .with(Argument::O2, tensor)
            .with(Argument::O, tensor)
            .with(Argument::Lse1, rows)
            .with(Argument::Lse2, rows);
        let checked = check_merge(&problem, arguments).unwrap();
        let plan = plan_merge(&checked, &device, Backend::Cuda).unwrap();
        let grid = u64::from(plan.launches[0].grid);
        assert!((grid - 1) * 32 < n_rows as u64 && n_rows as u64 <= grid * 32);
    }
}

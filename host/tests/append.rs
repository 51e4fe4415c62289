//! What validation and the kernel refuse of appends and rotations, each by its error, and what is planned. No memory is there.

use ferroflash::arguments::{Argument, Arguments, Given};
use ferroflash::dtype::ScalarType;
use ferroflash::error::{Error, PlanError, ProblemError, RotaryError};
use ferroflash::plan::{DeviceInfo, Reason, plan_append, plan_rotate};
use ferroflash::problem::append::AppendBuilder;
use ferroflash::rotary::{Direction, Pairs, QueryPositions, Turns};
use ferroflash::tensor::{Description, Place, VectorDescription};
use ferroflash::validate::rotary::{check_append, check_rotate};
use ferroflash::{Append, AppendProblem, Backend, Device, Dtype, Layout, Rotate, RotateProblem};
use ferroflash_kernels::params::{INTERLEAVED, Params};

/// Two sequences, three new rows each, two heads of k and four of q.
fn builder() -> AppendBuilder {
    AppendProblem::builder(Dtype::F16)
        .batch(2)
        .seqlen_new(3)
        .heads_q(4)
        .heads_k(2)
        .head_dim(16)
        .seqlen_cache(10)
        .rotary(Pairs::Interleaved, 12, 9)
}

fn problem() -> AppendProblem {
    builder().build().unwrap()
}

fn tensor(shape: [usize; 4], dtype: Dtype, place: Place) -> Description {
    Description::contiguous(shape, dtype, place).unwrap()
}

/// What fits a problem: all that it may be given.
fn fitting_of(problem: &AppendProblem, place: Place) -> Arguments {
    let of = |shape| tensor(shape, problem.dtype(), place);
    let vector = |n: usize, dtype: ScalarType| VectorDescription::unplaced(n as u64, dtype, place);
    let (new, cache) = (of(problem.shape_new()), of(problem.shape_cache()));
    let mut arguments = Arguments::default()
        .with(Argument::KNew, new)
        .with(Argument::VNew, new)
        .with(Argument::KCache, cache)
        .with(Argument::VCache, cache)
        .with(Argument::SeqUsedK, vector(problem.batch(), ScalarType::I32))
        .with(
            Argument::SeqUsedOut,
            vector(problem.batch(), ScalarType::I32),
        );
    if let Some(turns) = problem.turns() {
        let table = vector(turns.table_elems() as usize, Dtype::F32.into());
        arguments = arguments
            .with(Argument::Cos, table)
            .with(Argument::Sin, table);
    }
    if problem.heads_q() > 0 {
        let q = of(problem.shape_q());
        arguments = arguments.with(Argument::Q, q).with(Argument::QOut, q);
    }
    arguments
}

fn fitting(place: Place) -> Arguments {
    fitting_of(&problem(), place)
}

#[track_caller]
fn assert_refused(arguments: Arguments, expected: ProblemError) {
    assert_eq!(check_append(&problem(), arguments), Err(expected.into()));
}

#[test]
fn what_fits_is_taken() {
    let checked = check_append(&problem(), fitting(Place::Host)).unwrap();
    assert_eq!(checked.place(), Place::Host);
    assert_eq!(checked.problem().shape_q(), [2, 3, 4, 16]);
    for optional in [Argument::Q, Argument::SeqUsedOut] {
        let without = fitting(Place::Host).without(optional);
        assert!(check_append(&problem(), without).is_ok());
    }
    let packed = builder().packed_new(7).build().unwrap();
    assert_eq!(packed.shape_new(), [1, 7, 2, 16]);
    let ends = VectorDescription::unplaced(3, ScalarType::I32, Place::Host);
    let arguments = fitting_of(&packed, Place::Host);
    let missing = Argument::CuSeqlensNew;
    assert_eq!(
        check_append(&packed, arguments),
        Err(ProblemError::Missing { argument: missing }.into())
    );
    assert!(check_append(&packed, arguments.with(missing, ends)).is_ok());
}

#[test]
fn what_is_missing_or_not_taken_is_named() {
    for argument in [
        Argument::KNew,
        Argument::VNew,
        Argument::SeqUsedK,
        Argument::Cos,
        Argument::Sin,
        Argument::QOut,
        Argument::KCache,
        Argument::VCache,
    ] {
        let without = fitting(Place::Host).without(argument);
        assert_refused(without, ProblemError::Missing { argument });
    }
    let given = tensor([2, 3, 4, 16], Dtype::F16, Place::Host);
    for argument in [Argument::K, Argument::O, Argument::X, Argument::Y] {
        let with = fitting(Place::Host).with(argument, given);
        assert_refused(with, ProblemError::NotTaken { argument });
    }
    let ends = VectorDescription::unplaced(3, ScalarType::I32, Place::Host);
    let argument = Argument::CuSeqlensNew;
    let with = fitting(Place::Host).with(argument, ends);
    assert_refused(with, ProblemError::NotTaken { argument });
    // Without a rotary position embedding there are neither tables nor queries.
    let plain = AppendProblem::builder(Dtype::F16)
        .seqlen_new(1)
        .heads_k(1)
        .head_dim(8)
        .seqlen_cache(4)
        .build()
        .unwrap();
    let fits = fitting_of(&plain, Place::Host);
    assert!(check_append(&plain, fits).is_ok());
    let table = VectorDescription::unplaced(0, Dtype::F32, Place::Host);
    let q = tensor([1, 1, 0, 8], Dtype::F16, Place::Host);
    for (argument, given) in [
        (Argument::Cos, Given::from(table)),
        (Argument::Q, Given::from(q)),
        (Argument::QOut, Given::from(q)),
    ] {
        let refused = check_append(&plain, fits.with(argument, given));
        assert_eq!(refused, Err(ProblemError::NotTaken { argument }.into()));
    }
}

#[test]
fn arguments_have_the_shape_the_type_and_the_place() {
    for (argument, needed) in [
        (Argument::KNew, problem().shape_new()),
        (Argument::VNew, problem().shape_new()),
        (Argument::Q, problem().shape_q()),
        (Argument::QOut, problem().shape_q()),
        (Argument::KCache, problem().shape_cache()),
        (Argument::VCache, problem().shape_cache()),
    ] {
        let given = [2, 2, 2, 16];
        let other = tensor(given, Dtype::F16, Place::Host);
        let refused = ProblemError::ShapeMismatch {
            argument,
            given,
            needed,
        };
        assert_refused(fitting(Place::Host).with(argument, other), refused);
        let other = tensor(needed, Dtype::Bf16, Place::Host);
        let refused = ProblemError::DtypeMismatch {
            argument,
            given: Dtype::Bf16.into(),
            needed: Dtype::F16.into(),
        };
        assert_refused(fitting(Place::Host).with(argument, other), refused);
    }
    for (argument, dtype, needed) in [
        (Argument::Cos, ScalarType::from(Dtype::F32), 54),
        (Argument::Sin, Dtype::F32.into(), 54),
        (Argument::SeqUsedK, ScalarType::I32, 2),
        (Argument::SeqUsedOut, ScalarType::I32, 2),
    ] {
        let given = needed + 1;
        let other = VectorDescription::unplaced(given, dtype, Place::Host);
        let refused = ProblemError::ElementCount {
            argument,
            given,
            needed,
        };
        assert_refused(fitting(Place::Host).with(argument, other), refused);
        let other = VectorDescription::unplaced(needed, ScalarType::U8, Place::Host);
        let refused = ProblemError::DtypeMismatch {
            argument,
            given: ScalarType::U8,
            needed: dtype,
        };
        assert_refused(fitting(Place::Host).with(argument, other), refused);
        let elsewhere = VectorDescription::unplaced(needed, dtype, Place::Cuda(1));
        let refused = ProblemError::MixedPlaces {
            argument,
            given: Place::Cuda(1),
            needed: Place::Host,
        };
        assert_refused(fitting(Place::Host).with(argument, elsewhere), refused);
    }
}

#[test]
fn rows_of_outputs_lie_apart() {
    for argument in [Argument::KCache, Argument::VCache, Argument::QOut] {
        let mut repeated = *fitting(Place::Host).tensor(argument).unwrap();
        repeated.layout.batch_stride = 0;
        let refused = ProblemError::OutputAliases {
            argument,
            layout: repeated.layout,
        };
        assert_refused(fitting(Place::Host).with(argument, repeated), refused);
    }
    let mut repeated = *fitting(Place::Host).tensor(Argument::KNew).unwrap();
    repeated.layout.batch_stride = 0;
    let arguments = fitting(Place::Host).with(Argument::KNew, repeated);
    assert!(check_append(&problem(), arguments).is_ok());
}

/// q_out is q, or lies apart from it; the new lengths never take the place of the old ones.
#[test]
fn outputs_overlap_no_input_but_themselves() {
    let place = Place::Cuda(0);
    let q = *fitting(place).tensor(Argument::Q).unwrap();
    let n_bytes = 2 * 2 * 3 * 4 * 16;
    let at = |address| Description { address, ..q };
    let with = |q_out: Description| {
        fitting(place)
            .with(Argument::Q, at(0x1000))
            .with(Argument::QOut, q_out)
    };
    for address in [0x1000, 0x1000 + n_bytes, 0x1000 - n_bytes] {
        assert!(check_append(&problem(), with(at(address))).is_ok());
    }
    let shares = |argument, with| ProblemError::SharesMemory { argument, with };
    let of_q = shares(Argument::QOut, Argument::Q);
    for address in [0x1010, 0x1000 + n_bytes - 16, 0x1000 - n_bytes + 16] {
        assert_refused(with(at(address)), of_q.clone());
    }
    // The same memory in another order.
    let by_heads = Layout::bhsd([2, 4, 3, 16]).unwrap();
    let turned = Description {
        layout: by_heads,
        ..at(0x1000)
    };
    assert_refused(with(turned), of_q);
    let lengths = |address| VectorDescription {
        address,
        ..*fitting(place).vector(Argument::SeqUsedK).unwrap()
    };
    let with = |address| {
        fitting(place)
            .with(Argument::SeqUsedK, lengths(0x2000))
            .with(Argument::SeqUsedOut, lengths(address))
    };
    assert!(check_append(&problem(), with(0x2008)).is_ok());
    for address in [0x2000, 0x2004, 0x1ffc] {
        let refused = shares(Argument::SeqUsedOut, Argument::SeqUsedK);
        assert_refused(with(address), refused);
    }
    // Of a rotation, too.
    let rotation = rotation();
    let table = VectorDescription::unplaced(54, Dtype::F32, place);
    let of = |x, y| {
        Arguments::default()
            .with(Argument::X, at(x))
            .with(Argument::Y, at(y))
            .with(Argument::Cos, table)
            .with(Argument::Sin, table)
    };
    assert!(check_rotate(&rotation, of(0x1000, 0x1000)).is_ok());
    assert_eq!(
        check_rotate(&rotation, of(0x1000, 0x1010)),
        Err(shares(Argument::Y, Argument::X).into())
    );
}

fn rotation() -> RotateProblem {
    let turns = Turns {
        pairs: Pairs::Interleaved,
        rotary_dim: 12,
        n_positions: 9,
    };
    RotateProblem::new(Dtype::F16, [2, 3, 4, 16], turns)
}

#[test]
fn sizes_make_sense() {
    let cpu = Device::cpu();
    let refused = |builder: AppendBuilder| -> Error {
        Append::new(&cpu, builder.build().unwrap()).unwrap_err()
    };
    for given in [0, 257] {
        let (min, max) = (1, 256);
        let out_of_range = ProblemError::HeadDimOutOfRange { given, min, max };
        assert_eq!(refused(builder().head_dim(given)), out_of_range.into());
    }
    for given in [0, 7, 1 << 20] {
        let odd = RotaryError::RotaryDim { given };
        assert_eq!(
            refused(builder().rotary(Pairs::Halves, given, 9)),
            odd.into()
        );
    }
    let wide = RotaryError::HeadDim {
        rotary_dim: 18,
        head_dim: 16,
    };
    assert_eq!(refused(builder().rotary(Pairs::Halves, 18, 9)), wide.into());
    let beyond = ProblemError::NewRowsBeyondCache {
        given: 3,
        seqlen_cache: 2,
    };
    assert_eq!(refused(builder().seqlen_cache(2)), beyond.into());
    let position = RotaryError::Position {
        given: 2,
        n_positions: 2,
    };
    let short = builder().rotary(Pairs::Halves, 16, 2);
    assert_eq!(refused(short), position.clone().into());
    let what = "new rows · heads";
    let overflow = ProblemError::SizeOverflow { what };
    assert_eq!(refused(builder().heads_k(1 << 60)), overflow.into());
    let what = "batch · seqlen_cache · heads_k";
    let overflow = ProblemError::SizeOverflow { what };
    assert_eq!(refused(builder().seqlen_cache(1 << 60)), overflow.into());
    let what = "n_positions · rotary_dim / 2";
    let overflow = ProblemError::SizeOverflow { what };
    let long = builder().rotary(Pairs::Halves, 16, 1 << 61);
    assert_eq!(refused(long), overflow.into());
    let turns = Turns {
        n_positions: 2,
        ..rotation().turns()
    };
    let rotation = RotateProblem::new(Dtype::F16, [2, 3, 4, 16], turns);
    assert_eq!(Rotate::new(&cpu, rotation).unwrap_err(), position.into());
}

#[test]
fn what_was_not_set_is_named() {
    let unset = |builder: AppendBuilder, field| {
        assert_eq!(builder.build(), Err(ProblemError::Unset { field }));
    };
    let none = AppendProblem::builder(Dtype::Bf16);
    unset(none, "seqlen_new");
    unset(none.seqlen_new(1), "heads_k");
    unset(none.seqlen_new(1).heads_k(1), "head_dim");
    unset(none.seqlen_new(1).heads_k(1).head_dim(8), "seqlen_cache");
    unset(none.heads_q(4), "rotary");
}

/// Gives the kernel's refusal of what fits a problem on a device.
fn refused_by_kernel(problem: AppendProblem, arguments: Arguments, device: &DeviceInfo) -> Reason {
    let checked = check_append(&problem, arguments).unwrap();
    match plan_append(&checked, device, Backend::Cuda) {
        Err(PlanError::Operation { verb, reason, .. }) => {
            assert_eq!(verb, "append");
            reason
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_the_kernel_does_not_take_has_a_reason() {
    let (h200, place) = (DeviceInfo::h200(), Place::Cuda(0));
    let of = |problem: AppendProblem| (problem, fitting_of(&problem, place));
    let (f32, arguments) = of(AppendProblem::builder(Dtype::F32)
        .seqlen_new(1)
        .heads_k(1)
        .head_dim(8)
        .seqlen_cache(4)
        .build()
        .unwrap());
    let given = Dtype::F32;
    assert_eq!(
        refused_by_kernel(f32, arguments, &h200),
        Reason::Dtype { given }
    );
    let (narrow, arguments) = of(builder().head_dim(20).build().unwrap());
    let multiple = Reason::HeadDimMultiple {
        given: 20,
        multiple: 8,
        most: 256,
    };
    assert_eq!(refused_by_kernel(narrow, arguments, &h200), multiple);
    let (many, arguments) = of(builder().batch(1 << 27).build().unwrap());
    let too_large = Reason::TooLarge {
        what: "new rows · heads",
        given: 24 << 27,
        limit: (1 << 31) - 1,
    };
    assert_eq!(refused_by_kernel(many, arguments, &h200), too_large);
    let old = DeviceInfo {
        compute_capability: (7, 5),
        ..DeviceInfo::a100()
    };
    let too_old = Reason::ComputeCapability {
        given: (7, 5),
        needed: (8, 0),
    };
    assert_eq!(refused_by_kernel(problem(), fitting(place), &old), too_old);
    for argument in [Argument::KNew, Argument::QOut, Argument::VCache] {
        let fits = *fitting(place).tensor(argument).unwrap();
        let moved = Description { address: 8, ..fits };
        let address = Reason::BaseAlignment {
            argument,
            address: 8,
        };
        let arguments = fitting(place).with(argument, moved);
        assert_eq!(refused_by_kernel(problem(), arguments, &h200), address);
    }
}

#[test]
fn one_launch_covers_every_row_of_every_head() {
    let (device, place) = (DeviceInfo::a100(), Place::Cuda(0));
    let problem = builder().query_positions(QueryPositions::First);
    let problem = problem.build().unwrap();
    let checked = check_append(&problem, fitting(place)).unwrap();
    let plan = plan_append(&checked, &device, Backend::Cuda).unwrap();
    // Two sequences, three rows, four heads of q and two of k and of v: 48 lines, 16 a block.
    assert_eq!(
        plan.to_string(),
        "append on cuda\n  problem   f16 k [2, 3, 2, 16] to [2, 10, 2, 16], q [2, 3, 4, 16], interleaved 12 of 9 positions\n  \
         launch    append_sm80_f16 plain grid 3 threads 128\n"
    );
    let Some(Params::Append(params)) = plan.params(|argument| argument as u64 * 256) else {
        panic!("{plan}");
    };
    let sizes = [params.heads_q, params.heads_k, params.head_dim];
    assert_eq!((sizes, params.appends), ([4, 2, 16], 1));
    let rows = params.rows;
    assert_eq!((rows.batch, rows.seqlen, rows.n_rows), (2, 3, 6));
    assert_eq!((rows.q_at_first, params.cache.seqlen), (1, 10));
    let rotary = params.rotary;
    assert_eq!((rotary.n_positions, rotary.n_pairs), (9, 6));
    assert_eq!((rotary.pairs, rotary.sin_sign), (INTERLEAVED, 1.0));
    let k = params.cache.k;
    assert_eq!((k.batch_stride, k.row_stride, k.head_stride), (320, 32, 16));
    for (address, argument) in [
        (params.q.base, Argument::Q),
        (params.q_out.base, Argument::QOut),
        (params.k_new.base, Argument::KNew),
        (params.v_new.base, Argument::VNew),
        (params.cache.k.base, Argument::KCache),
        (params.cache.v.base, Argument::VCache),
        (params.rotary.cos, Argument::Cos),
        (params.rotary.sin, Argument::Sin),
        (params.rows.first, Argument::SeqUsedK),
        (params.seqused_out, Argument::SeqUsedOut),
    ] {
        assert_eq!(address, argument as u64 * 256, "{argument}");
    }
    assert_eq!(params.rows.cu_seqlens, 0);
    assert_eq!(
        plan_append(&checked, &device, Backend::Cpu).unwrap().launch,
        None
    );
}

/// Lengths want a thread for each sequence, also where there is nothing to append; nothing at all wants no launch.
#[test]
fn lengths_are_written_where_no_row_is() {
    let (device, place) = (DeviceInfo::a100(), Place::Cuda(0));
    let plan = |batch, arguments: fn(Arguments) -> Arguments| {
        let problem = builder().seqlen_new(0).batch(batch).build().unwrap();
        let arguments = arguments(fitting_of(&problem, place));
        let checked = check_append(&problem, arguments).unwrap();
        plan_append(&checked, &device, Backend::Cuda).unwrap()
    };
    let grid = |batch| plan(batch, |given| given).launch.map(|launch| launch.grid);
    assert_eq!([grid(0), grid(1), grid(128)], [None, Some(1), Some(1)]);
    assert_eq!(grid(129), Some(2));
    let without = plan(129, |given| given.without(Argument::SeqUsedOut));
    assert_eq!(without.launch, None);
}

#[test]
fn a_rotation_is_the_same_launch_without_a_cache() {
    let (device, place) = (DeviceInfo::a100(), Place::Cuda(0));
    let x = tensor([2, 3, 4, 16], Dtype::F16, place);
    let table = VectorDescription::unplaced(54, Dtype::F32, place);
    let arguments = Arguments::default()
        .with(Argument::X, x)
        .with(Argument::Y, x)
        .with(Argument::Cos, table)
        .with(Argument::Sin, table);
    let checked = check_rotate(&rotation(), arguments).unwrap();
    for (direction, sign) in [(Direction::Forth, 1.0), (Direction::Back, -1.0)] {
        let plan = plan_rotate(&checked, direction, &device, Backend::Cuda).unwrap();
        let Some(Params::Append(params)) = plan.params(|argument| argument as u64 * 256) else {
            panic!("{plan}");
        };
        assert_eq!((params.heads_q, params.heads_k, params.appends), (4, 0, 0));
        assert_eq!(params.rotary.sin_sign, sign);
        assert_eq!(params.q.base, Argument::X as u64 * 256);
        assert_eq!(params.q_out.base, Argument::Y as u64 * 256);
        assert_eq!(params.rows.first, Argument::SeqlenOffsets as u64 * 256);
        assert_eq!([params.rows.cu_seqlens, params.seqused_out], [0; 2]);
        assert_eq!(plan.launch.unwrap().grid, 2);
    }
}

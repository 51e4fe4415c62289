//! What validation refuses of appends and rotations, each by its error; `plans`: what the kernel refuses, and what is planned. No memory is
//! there. `fp8`: caches in 8 bits.

mod fp8;
mod plans;

use ferroflash::arguments::{Argument, Arguments, Given};
use ferroflash::dtype::ScalarType;
use ferroflash::error::{Error, ProblemError, RotaryError};
use ferroflash::problem::append::AppendBuilder;
use ferroflash::rotary::{Pairs, Turns};
use ferroflash::tensor::{Description, Location, VectorDescription};
use ferroflash::validate::rotary::{check_append, check_rotate};
use ferroflash::{Append, AppendProblem, Device, Dtype, Layout, Rotate, RotateProblem};

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

fn tensor(shape: [usize; 4], dtype: Dtype, location: Location) -> Description {
    Description::contiguous(shape, dtype, location).unwrap()
}

/// What fits a problem: all that it may be given.
fn fitting_of(problem: &AppendProblem, location: Location) -> Arguments {
    let of = |shape| tensor(shape, problem.dtype(), location);
    let vector =
        |n: usize, dtype: ScalarType| VectorDescription::unplaced(n as u64, dtype, location);
    let new = of(problem.shape_new());
    let cache = match problem.fp8_kv() {
        Some(_) => Description {
            dtype: ScalarType::E4m3,
            ..of(problem.shape_cache())
        },
        None => of(problem.shape_cache()),
    };
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

fn fitting(location: Location) -> Arguments {
    fitting_of(&problem(), location)
}

#[track_caller]
fn assert_refused(arguments: Arguments, expected: ProblemError) {
    assert_eq!(check_append(&problem(), arguments), Err(expected.into()));
}

#[test]
fn what_fits_is_taken() {
    let checked = check_append(&problem(), fitting(Location::Host)).unwrap();
    assert_eq!(checked.location(), Location::Host);
    assert_eq!(checked.problem().shape_q(), [2, 3, 4, 16]);
    for optional in [Argument::Q, Argument::SeqUsedOut] {
        let without = fitting(Location::Host).without(optional);
        assert!(check_append(&problem(), without).is_ok());
    }
    let packed = builder().packed_new(7).build().unwrap();
    assert_eq!(packed.shape_new(), [1, 7, 2, 16]);
    let ends = VectorDescription::unplaced(3, ScalarType::I32, Location::Host);
    let arguments = fitting_of(&packed, Location::Host);
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
        let without = fitting(Location::Host).without(argument);
        assert_refused(without, ProblemError::Missing { argument });
    }
    let given = tensor([2, 3, 4, 16], Dtype::F16, Location::Host);
    for argument in [Argument::K, Argument::O, Argument::X, Argument::Y] {
        let with = fitting(Location::Host).with(argument, given);
        assert_refused(with, ProblemError::NotTaken { argument });
    }
    let ends = VectorDescription::unplaced(3, ScalarType::I32, Location::Host);
    let argument = Argument::CuSeqlensNew;
    let with = fitting(Location::Host).with(argument, ends);
    assert_refused(with, ProblemError::NotTaken { argument });
    // Without a rotary position embedding there are neither tables nor queries.
    let plain = AppendProblem::builder(Dtype::F16)
        .seqlen_new(1)
        .heads_k(1)
        .head_dim(8)
        .seqlen_cache(4)
        .build()
        .unwrap();
    let fits = fitting_of(&plain, Location::Host);
    assert!(check_append(&plain, fits).is_ok());
    let table = VectorDescription::unplaced(0, Dtype::F32, Location::Host);
    let q = tensor([1, 1, 0, 8], Dtype::F16, Location::Host);
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
        let other = tensor(given, Dtype::F16, Location::Host);
        let refused = ProblemError::ShapeMismatch {
            argument,
            given,
            needed,
        };
        assert_refused(fitting(Location::Host).with(argument, other), refused);
        let other = tensor(needed, Dtype::Bf16, Location::Host);
        let refused = ProblemError::DtypeMismatch {
            argument,
            given: Dtype::Bf16.into(),
            needed: Dtype::F16.into(),
        };
        assert_refused(fitting(Location::Host).with(argument, other), refused);
    }
    for (argument, dtype, needed) in [
        (Argument::Cos, ScalarType::from(Dtype::F32), 54),
        (Argument::Sin, Dtype::F32.into(), 54),
        (Argument::SeqUsedK, ScalarType::I32, 2),
        (Argument::SeqUsedOut, ScalarType::I32, 2),
    ] {
        let given = needed + 1;
        let other = VectorDescription::unplaced(given, dtype, Location::Host);
        let refused = ProblemError::ElementCount {
            argument,
            given,
            needed,
        };
        assert_refused(fitting(Location::Host).with(argument, other), refused);
        let other = VectorDescription::unplaced(needed, ScalarType::U8, Location::Host);
        let refused = ProblemError::DtypeMismatch {
            argument,
            given: ScalarType::U8,
            needed: dtype,
        };
        assert_refused(fitting(Location::Host).with(argument, other), refused);
        let elsewhere = VectorDescription::unplaced(needed, dtype, Location::Cuda(1));
        let refused = ProblemError::MixedPlaces {
            argument,
            given: Location::Cuda(1),
            needed: Location::Host,
        };
        assert_refused(fitting(Location::Host).with(argument, elsewhere), refused);
    }
}

#[test]
fn rows_of_outputs_lie_apart() {
    for argument in [Argument::KCache, Argument::VCache, Argument::QOut] {
        let mut repeated = *fitting(Location::Host).tensor(argument).unwrap();
        repeated.layout.batch_stride = 0;
        let refused = ProblemError::OutputAliases {
            argument,
            layout: repeated.layout,
        };
        assert_refused(fitting(Location::Host).with(argument, repeated), refused);
    }
    let mut repeated = *fitting(Location::Host).tensor(Argument::KNew).unwrap();
    repeated.layout.batch_stride = 0;
    let arguments = fitting(Location::Host).with(Argument::KNew, repeated);
    assert!(check_append(&problem(), arguments).is_ok());
}

/// q_out is q, or lies apart from it; the new lengths never take the location of the old ones.
#[test]
fn outputs_overlap_no_input_but_themselves() {
    let location = Location::Cuda(0);
    let q = *fitting(location).tensor(Argument::Q).unwrap();
    let n_bytes = 2 * 2 * 3 * 4 * 16;
    let at = |address| Description { address, ..q };
    let with = |q_out: Description| {
        fitting(location)
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
    let rotated = Description {
        layout: by_heads,
        ..at(0x1000)
    };
    assert_refused(with(rotated), of_q);
    let lengths = |address| VectorDescription {
        address,
        ..*fitting(location).vector(Argument::SeqUsedK).unwrap()
    };
    let with = |address| {
        fitting(location)
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
    let table = VectorDescription::unplaced(54, Dtype::F32, location);
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
    for given in [0, 577] {
        let (min, max) = (1, 576);
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

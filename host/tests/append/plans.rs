//! What the kernel does not take, and what is planned of what it takes.

use ferroflash::Backend;
use ferroflash::error::PlanError;
use ferroflash::plan::{DeviceInfo, Reason, plan_append, plan_rotate};
use ferroflash::rotary::{Direction, QueryPositions};
use ferroflash_kernels::params::{INTERLEAVED, Params};

use super::*;

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
    let (h200, place) = (DeviceInfo::h200(), Location::Cuda(0));
    let of = |problem: AppendProblem| (problem, fitting_of(&problem, place));
    let (f32, arguments) = of(AppendProblem::builder(Dtype::F32)
        .seqlen_new(1)
        .heads_k(1)
        .head_dim(10)
        .seqlen_cache(4)
        .build()
        .unwrap());
    let multiple = Reason::HeadDimMultiple {
        given: 10,
        multiple: 4,
        most: 256,
    };
    assert_eq!(refused_by_kernel(f32, arguments, &h200), multiple);
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
    let (device, place) = (DeviceInfo::a100(), Location::Cuda(0));
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
    let [Params::Append(params)] = plan.params(0, |argument| argument as u64 * 256)[..] else {
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
        plan_append(&checked, &device, Backend::Cpu)
            .unwrap()
            .launches,
        []
    );
}

/// Lengths want a thread for each sequence, also where there is nothing to append; nothing at all wants no launch.
#[test]
fn lengths_are_written_where_no_row_is() {
    let (device, place) = (DeviceInfo::a100(), Location::Cuda(0));
    let plan = |batch, arguments: fn(Arguments) -> Arguments| {
        let problem = builder().seqlen_new(0).batch(batch).build().unwrap();
        let arguments = arguments(fitting_of(&problem, place));
        let checked = check_append(&problem, arguments).unwrap();
        plan_append(&checked, &device, Backend::Cuda).unwrap()
    };
    let grid = |batch| {
        plan(batch, |given| given)
            .launches
            .first()
            .map(|launch| launch.grid)
    };
    assert_eq!([grid(0), grid(1), grid(128)], [None, Some(1), Some(1)]);
    assert_eq!(grid(129), Some(2));
    let without = plan(129, |given| given.without(Argument::SeqUsedOut));
    assert_eq!(without.launches, []);
}

#[test]
fn a_rotation_is_the_same_launch_without_a_cache() {
    let (device, place) = (DeviceInfo::a100(), Location::Cuda(0));
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
        let [Params::Append(params)] = plan.params(0, |argument| argument as u64 * 256)[..] else {
            panic!("{plan}");
        };
        assert_eq!((params.heads_q, params.heads_k, params.appends), (4, 0, 0));
        assert_eq!(params.rotary.sin_sign, sign);
        assert_eq!(params.q.base, Argument::X as u64 * 256);
        assert_eq!(params.q_out.base, Argument::Y as u64 * 256);
        assert_eq!(params.rows.first, Argument::SeqlenOffsets as u64 * 256);
        assert_eq!([params.rows.cu_seqlens, params.seqused_out], [0; 2]);
        assert_eq!(plan.launches[0].grid, 2);
    }
}

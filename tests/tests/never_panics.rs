//! The path from a problem to a plan takes any numbers: it ends in a plan or in a typed error that has a text, never in
//! a panic. 120,000 random problems, most of them absurd.

use ferroflash::arguments::{Argument, Arguments};
use ferroflash::dtype::ScalarType;
use ferroflash::error::{Error, ProblemError};
use ferroflash::plan::{Algorithm, Backend, DeviceInfo, Plan, Thresholds, plan, plan_append};
use ferroflash::rotary::{Pairs, Turns};
use ferroflash::tensor::{Description, Location, VectorDescription};
use ferroflash::validate::rotary::{append_sizes, check_append};
use ferroflash::validate::{self, Checked, Pass};
use ferroflash::{
    AppendProblem, BlockMask, Device, Dtype, Layout, Mask, Order, Precision, Problem, Rotate,
    RotateProblem,
};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

const CASES: u32 = 120_000;

/// A size: often at a power of two or next to it, sometimes anything.
fn size() -> impl Strategy<Value = usize> {
    prop_oneof![
        2 => 0usize..9,
        2 => select(vec![16usize, 32, 64, 128, 256, 257, 576, 577, 1000]),
        2 => (0u32..64, 0usize..3).prop_map(|(power, off)| (1usize << power).wrapping_add(off).wrapping_sub(1)),
        1 => any::<usize>(),
    ]
}

fn scale() -> impl Strategy<Value = Option<f32>> {
    prop_oneof![
        3 => Just(None),
        2 => (1e-6f32..1e6).prop_map(Some),
        1 => any::<f32>().prop_map(Some),
        1 => select(vec![0.0, -1.0, f32::NAN, f32::INFINITY, f32::MIN_POSITIVE]).prop_map(Some),
    ]
}

/// Most problems have none; of the others half have blocks of any size.
fn block_mask() -> impl Strategy<Value = Option<BlockMask>> {
    let usual = select(vec![128usize, 256, 384, 1 << 40]);
    let side = prop_oneof![usual, size()];
    let some = [side.clone(), side].prop_map(|[block_q, block_k]| BlockMask::new(block_q, block_k));
    let each = (some, any::<[bool; 2]>()).prop_map(|(blocks, [batch, head])| {
        let blocks = if batch { blocks.per_batch() } else { blocks };
        if head { blocks.per_head() } else { blocks }
    });
    prop_oneof![5 => Just(None), 1 => each.prop_map(Some)]
}

/// `[batch, heads_q, heads_k, seqlen_q, seqlen_k, head_dim]`: most of them such as a kernel takes, the others absurd.
fn sizes() -> impl Strategy<Value = [usize; 6]> {
    let sensible = (
        0usize..4,
        1usize..5,
        1usize..4,
        0usize..5000,
        0usize..5000,
        select(vec![32, 64, 80, 128]),
    );
    prop_oneof![
        3 => sensible.prop_map(|(batch, heads_k, group, seqlen_q, seqlen_k, head_dim)| {
            [
                batch,
                heads_k * group,
                heads_k,
                seqlen_q,
                seqlen_k,
                head_dim,
            ]
        }),
        2 => [size(), size(), size(), size(), size(), size()],
    ]
}

/// Most problems have values like their keys.
fn values() -> impl Strategy<Value = (Option<usize>, bool)> {
    prop_oneof![9 => Just((None, false)), 1 => (size().prop_map(Some), any::<bool>())]
}

prop_compose! {
    fn problem()(
        [batch, heads_q, heads_k, seqlen_q, seqlen_k, head_dim] in sizes(),
        equal_heads in any::<bool>(),
        dtype in select(vec![Dtype::Bf16, Dtype::F16, Dtype::F32]),
        (mask, of_20) in (select(vec![Mask::Full, Mask::Causal]), 0..20),
        order in select(vec![Order::Deterministic, Order::Fastest]),
        scale in scale(),
        blocks in block_mask(),
        (columns, in_keys) in values(),
        has_sinks in any::<bool>(),
    ) -> Result<Problem, ProblemError> {
        let heads_k = if equal_heads { heads_q } else { heads_k };
        let builder = Problem::builder(dtype)
            .batch(batch).heads_q(heads_q).heads_k(heads_k).seqlen_q(seqlen_q).seqlen_k(seqlen_k).head_dim(head_dim)
            .mask(mask).order(order);
        let is_full = of_20 == 0 || dtype == Dtype::F32 && of_20 < 10;
        let builder = if is_full { builder.precision(Precision::Full) } else { builder };
        let builder = blocks.map_or(builder, |blocks| builder.block_mask(blocks));
        let builder = columns.map_or(builder, |columns| builder.head_dim_v(columns));
        let builder = if in_keys { builder.values_in_keys() } else { builder };
        let builder = if has_sinks { builder.sinks() } else { builder };
        scale.map_or(builder, |scale| builder.softmax_scale(scale)).build()
    }
}

/// What is done to tensors that fit the problem.
#[derive(Clone, Copy, Debug)]
enum Change {
    Nothing,
    Shape(usize, usize),
    Strides(usize, [usize; 3]),
    Address(usize, u64),
    Dtype(usize),
    Location(usize),
    Rows(u64),
    GradientRows(u64),
    GradientOfRows(Dtype, u64),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        3 => Just(Change::Nothing),
        1 => (0usize..8, size()).prop_map(|(tensor, n)| Change::Shape(tensor, n)),
        2 => (0usize..8, [size(), size(), size()]).prop_map(|(tensor, strides)| Change::Strides(tensor, strides)),
        1 => (0usize..8, any::<u64>()).prop_map(|(tensor, address)| Change::Address(tensor, address)),
        1 => (0usize..8).prop_map(Change::Dtype),
        1 => (0usize..8).prop_map(Change::Location),
        1 => any::<u64>().prop_map(Change::Rows),
        1 => any::<u64>().prop_map(Change::GradientRows),
        1 => (select(vec![Dtype::Bf16, Dtype::F32]), any::<u64>())
            .prop_map(|(dtype, address)| Change::GradientOfRows(dtype, address)),
    ]
}

fn device() -> impl Strategy<Value = DeviceInfo> {
    let arbitrary = (
        (0u32..13, 0u32..10),
        any::<u32>(),
        any::<u32>(),
        any::<u64>(),
    )
        .prop_map(
            |(compute_capability, n_sms, shared_bytes_per_block, memory_bytes)| DeviceInfo {
                name: "arbitrary".into(),
                compute_capability,
                n_sms,
                shared_bytes_per_block,
                memory_bytes,
                thresholds: Thresholds::MEASURED,
            },
        );
    prop_oneof![
        2 => select(vec![
            DeviceInfo::h200(), DeviceInfo::a100(), DeviceInfo::rtx3060(), DeviceInfo::rtx4090(),
            DeviceInfo::emulated(), DeviceInfo::emulated_hopper(),
        ]),
        1 => arbitrary,
    ]
}

fn algorithm() -> impl Strategy<Value = Option<Algorithm>> {
    prop_oneof![2 => Just(None), 1 => select(Algorithm::BY_PREFERENCE.to_vec()).prop_map(Some)]
}

/// What a change to a tensor changes.
const TENSORS: [Argument; 8] = [
    Argument::Q,
    Argument::K,
    Argument::V,
    Argument::O,
    Argument::DO,
    Argument::DQ,
    Argument::DK,
    Argument::DV,
];

/// Problem → arguments → checked.
fn check(problem: &Problem, pass: Pass, change: Change) -> Result<Checked, ProblemError> {
    let arguments = *validate::without_tensors(problem, pass, Location::Host)?.arguments();
    let tensor = |tensor: usize, change: &dyn Fn(&mut Description)| {
        let argument = TENSORS[tensor];
        match arguments.tensor(argument) {
            Some(&given) => {
                let mut changed = given;
                change(&mut changed);
                arguments.with(argument, changed)
            }
            None => arguments,
        }
    };
    let rows = *arguments.vector(Argument::Lse).expect("every pass has it");
    let with_d_lse = |changed| match pass {
        Pass::Backward => arguments.with(Argument::DLse, changed),
        Pass::Forward | Pass::ForwardWithWeights => arguments,
    };
    let changed = match change {
        Change::Nothing => arguments,
        Change::Shape(at, n) => tensor(at, &|tensor| tensor.layout.seqlen = n),
        Change::Strides(at, [batch_stride, row_stride, head_stride]) => tensor(at, &|tensor| {
            tensor.layout = Layout {
                batch_stride,
                row_stride,
                head_stride,
                ..tensor.layout
            }
        }),
        Change::Address(at, address) => tensor(at, &|tensor| tensor.address = address),
        Change::Dtype(at) => tensor(at, &|tensor| tensor.dtype = Dtype::F16.into()),
        Change::Location(at) => tensor(at, &|tensor| tensor.location = Location::Cuda(3)),
        Change::Rows(n_elems) => {
            arguments.with(Argument::Lse, VectorDescription { n_elems, ..rows })
        }
        Change::GradientRows(n_elems) => with_d_lse(VectorDescription { n_elems, ..rows }),
        Change::GradientOfRows(dtype, address) => {
            let dtype = dtype.into();
            with_d_lse(VectorDescription {
                dtype,
                address,
                ..rows
            })
        }
    };
    validate::check(problem, pass, changed)
}

/// What has to hold of every plan, whatever the numbers.
fn hold_to_its_word(plan: &Plan, device: &DeviceInfo, asked: Option<Algorithm>) {
    assert!(
        asked.is_none_or(|asked| asked == plan.algorithm),
        "asked {asked:?}, got {}",
        plan.algorithm
    );
    assert!(
        plan.launches.iter().all(|launch| 0 < launch.grid),
        "a launch of no blocks"
    );
    assert!(
        plan.backend == Backend::Cpu || plan.workspace.n_bytes() <= device.memory_bytes,
        "more than the memory"
    );
    assert!(
        plan.backend != Backend::Cpu || plan.launches.is_empty(),
        "a kernel on the CPU"
    );
    let mut end = 0;
    for piece in plan.workspace.pieces() {
        assert!(
            end <= piece.offset_bytes
                && piece.offset_bytes + piece.n_bytes <= plan.workspace.n_bytes()
        );
        end = piece.offset_bytes + piece.n_bytes;
    }
    assert!(!plan.to_string().is_empty());
}

#[test]
fn a_problem_ends_in_a_plan_or_in_an_error() {
    let mut runner = TestRunner::new_with_rng(
        Config {
            cases: CASES,
            failure_persistence: None,
            ..Config::default()
        },
        TestRng::deterministic_rng(RngAlgorithm::ChaCha),
    );
    let passes = select(vec![
        Pass::Forward,
        Pass::ForwardWithWeights,
        Pass::Backward,
    ]);
    let backends = select(vec![Backend::Cuda, Backend::Cpu, Backend::Emulated]);
    let (plans, errors) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    let strategy = (problem(), passes, change(), device(), backends, algorithm());
    let outcome = runner.run(
        &strategy,
        |(problem, pass, change, device, backend, asked)| {
            let ends: Result<Plan, Error> = (|| {
                let problem = problem?;
                let checked = check(&problem, pass, change)?;
                Ok(plan(&checked, &device, backend, asked)?)
            })();
            match ends {
                Ok(plan) => {
                    hold_to_its_word(&plan, &device, asked);
                    plans.set(plans.get() + 1);
                }
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    errors.set(errors.get() + 1);
                }
            }
            Ok(())
        },
    );
    outcome.unwrap();
    println!("{} plans, {} errors", plans.get(), errors.get());
    assert!(
        CASES / 10 < plans.get() && CASES / 10 < errors.get(),
        "one of the two ends is hardly tested"
    );
}

/// An append or a rotation of any sizes, on an H200: planned with a block for every run of lines, or refused in words.
#[test]
fn appends_and_rotations_are_planned_or_refused() {
    let pairs = || select(vec![Pairs::Halves, Pairs::Interleaved]);
    let strategy = (
        [size(), size(), size(), size(), size(), size()],
        [size(), size()],
        pairs(),
        any::<[bool; 2]>(),
    );
    let mut runner = TestRunner::new_with_rng(
        Config::with_cases(CASES / 6),
        TestRng::deterministic_rng(RngAlgorithm::ChaCha),
    );
    let n_planned = std::cell::Cell::new(0);
    let outcome = runner.run(
        &strategy,
        |(sizes, [rotary_dim, n_positions], pairs, [packed, rotated])| {
            let [batch, seqlen, heads_q, heads_k, head_dim, seqlen_cache] = sizes;
            let builder = AppendProblem::builder(Dtype::Bf16)
                .batch(batch)
                .heads_k(heads_k)
                .head_dim(head_dim)
                .seqlen_cache(seqlen_cache);
            let builder = if packed {
                builder.packed_new(seqlen)
            } else {
                builder.seqlen_new(seqlen)
            };
            let turns = Turns {
                pairs,
                rotary_dim,
                n_positions,
            };
            let problem = match rotated {
                true => builder
                    .heads_q(heads_q)
                    .rotary(pairs, rotary_dim, n_positions)
                    .build(),
                false => builder.build(),
            };
            let outcome = append_plan(&problem.expect("all is set"), packed);
            n_planned.set(n_planned.get() + u32::from(outcome.is_ok()));
            prop_assert!(outcome.unwrap_or_else(|error| !error.to_string().is_empty()));
            let rotation = match packed {
                true => {
                    RotateProblem::packed(Dtype::F16, batch, [seqlen, heads_q, head_dim], turns)
                }
                false => RotateProblem::new(Dtype::F16, [batch, seqlen, heads_q, head_dim], turns),
            };
            if let Err(error) = Rotate::new(&Device::cpu(), rotation) {
                prop_assert!(!error.to_string().is_empty());
            }
            Ok(())
        },
    );
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
    assert!(n_planned.get() > 50, "{} planned", n_planned.get());
}

/// Whether the launch covers every line.
fn append_plan(problem: &AppendProblem, packed: bool) -> Result<bool, Error> {
    append_sizes(problem)?;
    let location = Location::Cuda(0);
    let tensor = |shape| Description::contiguous(shape, problem.dtype(), location);
    let lengths = |n: usize| VectorDescription::unplaced(n as u64, ScalarType::I32, location);
    let (new, cache) = (tensor(problem.shape_new())?, tensor(problem.shape_cache())?);
    let mut arguments = Arguments::default()
        .with(Argument::KNew, new)
        .with(Argument::VNew, new)
        .with(Argument::KCache, cache)
        .with(Argument::VCache, cache)
        .with(Argument::SeqUsedK, lengths(problem.batch()));
    if packed {
        let ends = lengths(problem.batch().saturating_add(1));
        arguments = arguments.with(Argument::CuSeqlensNew, ends);
    }
    if let Some(turns) = problem.turns() {
        let table = VectorDescription::unplaced(turns.table_elems(), Dtype::F32, location);
        arguments = arguments
            .with(Argument::Cos, table)
            .with(Argument::Sin, table);
    }
    if problem.heads_q() > 0 {
        arguments = arguments.with(Argument::QOut, tensor(problem.shape_q())?);
    }
    let checked = check_append(problem, arguments)?;
    let plan = plan_append(&checked, &DeviceInfo::h200(), Backend::Cuda)?;
    let [batch, rows, heads_k, _] = problem.shape_new();
    let n_lines = (batch * rows * (problem.heads_q() + 2 * heads_k)) as u64;
    let Some(launch) = plan.launches.first() else {
        return Ok(n_lines == 0);
    };
    let covered = u64::from(launch.grid) * u64::from(launch.variant.tile_config.block_q);
    Ok(covered >= n_lines && covered < n_lines + 16)
}

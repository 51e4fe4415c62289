//! Plans, without a device: their text is golden (`UPDATE_EXPECT=1` accepts a change), their grids cover every tile
//! exactly once.

use conformance::cases::{self, Case, orders};
use expect_test::expect_file;
use ferroflash::plan::{Algorithm, Backend, DeviceInfo, Plan, eligible, kinds, plan};
use ferroflash::tensor::Location;
use ferroflash::validate::{self, Pass};
use ferroflash::{Dtype, Mask, Order, Problem};
use ferroflash_kernels::params::{ORDERED, Params, SHIFTED};
use ferroflash_kernels::variants::{TileShape, VARIANTS};
use proptest::prelude::*;
use proptest::sample::select;

mod choices;
mod cover;
mod lists;
mod scores;

fn plan_of(
    problem: &Problem,
    pass: Pass,
    device: &DeviceInfo,
    algorithm: Option<Algorithm>,
) -> Plan {
    let checked = validate::without_tensors(problem, pass, Location::Cuda(0)).unwrap();
    plan(&checked, device, Backend::Cuda, algorithm).unwrap()
}

/// Both passes of a problem on two devices, as text.
fn text(problem: &Problem, algorithm: Option<Algorithm>) -> String {
    text_on([DeviceInfo::a100(), DeviceInfo::h200()], problem, algorithm)
}

/// Both passes of a problem on these devices, as text.
fn text_on(devices: [DeviceInfo; 2], problem: &Problem, algorithm: Option<Algorithm>) -> String {
    let mut text = String::new();
    for device in devices {
        for pass in [Pass::Forward, Pass::Backward] {
            text.push_str(&format!(
                "# {}\n{}\n",
                device.name,
                plan_of(problem, pass, &device, algorithm)
            ));
        }
    }
    text
}

fn grouped(dtype: Dtype, seqlen: usize, head_dim: usize) -> Problem {
    Problem::builder(dtype)
        .batch(2)
        .seqlen(seqlen)
        .heads_q(32)
        .heads_k(8)
        .head_dim(head_dim)
        .mask(Mask::Causal)
        .build()
        .unwrap()
}

fn grouped_causal() -> Problem {
    grouped(Dtype::Bf16, 4096, 128)
}

fn ragged_full() -> Problem {
    Problem::builder(Dtype::F16)
        .seqlen_q(333)
        .seqlen_k(1000)
        .heads(3)
        .head_dim(64)
        .order(Order::Fastest)
        .build()
        .unwrap()
}

#[test]
fn flash2() {
    let asked = Some(Algorithm::Flash2);
    expect_file!["../../golden/plan_flash2_grouped_causal.txt"]
        .assert_eq(&text(&grouped_causal(), asked));
    expect_file!["../../golden/plan_flash2_ragged_full.txt"]
        .assert_eq(&text(&ragged_full(), asked));
}

#[test]
fn the_fastest() {
    let padded = grouped(Dtype::F16, 1000, 72);
    expect_file!["../../golden/plan_fastest_grouped_causal.txt"]
        .assert_eq(&text(&grouped_causal(), None));
    expect_file!["../../golden/plan_fastest_ragged_full.txt"]
        .assert_eq(&text(&ragged_full(), None));
    expect_file!["../../golden/plan_fastest_padded_causal.txt"].assert_eq(&text(&padded, None));
}

/// Few queries: compact tiles, which heads share where they have keys in common.
#[test]
fn short() {
    let of = |seqlen_q, heads_q, mask| {
        Problem::builder(Dtype::Bf16)
            .batch(2)
            .seqlen_q(seqlen_q)
            .seqlen_k(8192)
            .heads_q(heads_q)
            .heads_k(8)
            .head_dim(128)
            .mask(mask)
            .build()
            .unwrap()
    };
    let text = [
        of(1, 64, Mask::Full),
        of(20, 32, Mask::Causal),
        of(512, 8, Mask::Full),
        of(512, 40, Mask::Full),
    ]
    .map(|problem| plan_of(&problem, Pass::Forward, &DeviceInfo::h200(), None).to_string() + "\n");
    expect_file!["../../golden/plan_short.txt"].assert_eq(&text.concat());
}

/// Devices with 99 KB of shared memory per block: at head_dim 128 the backward pass runs with compact tiles.
#[test]
fn flash2_in_99_kilobytes() {
    let text = [32, 64, 128].map(|head_dim| {
        let devices = [DeviceInfo::rtx3060(), DeviceInfo::rtx4090()];
        text_on(devices, &grouped(Dtype::Bf16, 4096, head_dim), None)
    });
    expect_file!["../../golden/plan_flash2_99_kilobytes.txt"].assert_eq(&text.concat());
}

/// Only where it is asked for: the other texts say that it could run.
#[test]
fn flash1() {
    let asked = Some(Algorithm::Flash1);
    let problems = [grouped_causal(), ragged_full()].map(|problem| text(&problem, asked));
    expect_file!["../../golden/plan_flash1.txt"].assert_eq(&problems.concat());
}

#[test]
fn standard() {
    expect_file!["../../golden/plan_standard_ragged_full.txt"]
        .assert_eq(&text(&ragged_full(), Some(Algorithm::Standard)));
}

#[test]
fn refusals() {
    let mut text = String::new();
    let mut refuse = |problem: Problem, device: DeviceInfo, backend, algorithm, pass| {
        let checked = validate::without_tensors(&problem, pass, Location::Cuda(0)).unwrap();
        let error = plan(&checked, &device, backend, algorithm).unwrap_err();
        text.push_str(&format!("{error}\n\n"));
    };
    let old = DeviceInfo {
        name: "old".into(),
        compute_capability: (7, 5),
        ..DeviceInfo::a100()
    };
    let newer = DeviceInfo {
        name: "newer".into(),
        compute_capability: (10, 0),
        ..DeviceInfo::h200()
    };
    let odd = grouped(Dtype::Bf16, 4096, 520);
    let long = grouped(Dtype::Bf16, 1 << 20, 128);
    refuse(grouped_causal(), old, Backend::Cuda, None, Pass::Forward);
    refuse(
        grouped(Dtype::F32, 4096, 132),
        DeviceInfo::h200(),
        Backend::Cuda,
        None,
        Pass::Backward,
    );
    refuse(
        odd,
        DeviceInfo::h200(),
        Backend::Cuda,
        Some(Algorithm::Flash2),
        Pass::Forward,
    );
    refuse(
        long,
        DeviceInfo::h200(),
        Backend::Cuda,
        Some(Algorithm::Standard),
        Pass::Backward,
    );
    for (device, pass) in [(DeviceInfo::a100(), Pass::Forward), (newer, Pass::Forward)] {
        refuse(
            grouped_causal(),
            device,
            Backend::Cuda,
            Some(Algorithm::Flash3),
            pass,
        );
    }
    refuse(
        grouped(Dtype::Bf16, 4096, 60),
        DeviceInfo::h200(),
        Backend::Cuda,
        Some(Algorithm::Flash3),
        Pass::Backward,
    );
    refuse(
        grouped_causal(),
        DeviceInfo::h200(),
        Backend::Cuda,
        Some(Algorithm::Flash2),
        Pass::ForwardWithWeights,
    );
    refuse(
        grouped_causal(),
        DeviceInfo::h200(),
        Backend::Cpu,
        Some(Algorithm::Flash2),
        Pass::Forward,
    );
    expect_file!["../../golden/plan_refusals.txt"].assert_eq(&text);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever shared memory a device has, the kernels of a pass are of one shape, the first that fits.
    #[test]
    fn kernels_of_a_pass_are_of_one_shape(
        shared_bytes_per_block in 0u32..(232 << 10),
        head_dim in select(vec![24usize, 32, 64, 72, 128]),
        (dtype, mask) in (select(vec![Dtype::Bf16, Dtype::F16]), select(vec![Mask::Full, Mask::Causal])),
        pass in select(vec![Pass::Forward, Pass::Backward]),
    ) {
        let problem = Problem::builder(dtype).seqlen(500).heads(2).head_dim(head_dim).mask(mask).build().unwrap();
        let device = DeviceInfo { shared_bytes_per_block, ..DeviceInfo::rtx3060() };
        let checked = validate::without_tensors(&problem, pass, Location::Cuda(0)).unwrap();
        let fits = |tiles: TileShape| kinds(Algorithm::Flash2, pass).iter().all(|&kind| {
            VARIANTS.iter().any(|row| {
                row.kind == kind && row.tiles == tiles && eligible(row, &checked, &device).is_ok()
            })
        });
        let first = [TileShape::Default, TileShape::Compact].into_iter().find(|&tiles| fits(tiles));
        match (plan(&checked, &device, Backend::Cuda, Some(Algorithm::Flash2)), first) {
            (Ok(plan), Some(tiles)) => {
                prop_assert!(plan.launches.iter().all(|launch| launch.variant.tiles == tiles));
                let said = plan.to_string().contains("chosen, with compact tiles; with default tiles: a block needs");
                prop_assert_eq!(said, tiles == TileShape::Compact);
            }
            (Err(_), None) => {}
            (plan, first) => prop_assert!(false, "{plan:?} where {first:?} fits"),
        }
    }
}

/// What a Hopper of few SMs is put through: default tiles in every head_dim and mask of the suite's full set, and compact
/// ones.
#[test]
fn the_full_set_has_default_and_compact_tiles() {
    let device = DeviceInfo::emulated_hopper();
    for head_dim in [64, 128] {
        for mask in [Mask::Full, Mask::Causal] {
            let tiles: Vec<_> = cases::full()
                .into_iter()
                .filter(|case| case.sizes.head_dim == head_dim && case.mask == mask)
                .map(|case| plan_of(&case.problem().unwrap(), Pass::Forward, &device, None))
                .flat_map(|plan| plan.launches)
                .map(|launch| launch.variant.tiles)
                .collect();
            let n = |shape| tiles.iter().filter(|tiles| **tiles == shape).count();
            let (default, compact) = (n(TileShape::Default), n(TileShape::Compact));
            assert!(
                4 <= default && 4 <= compact,
                "{head_dim} {mask:?}: {default} default, {compact} compact"
            );
        }
    }
}

/// What a Hopper of [`orders::N_SMS`] SMs is put through: blocks that take several tiles one after the other, shifted order,
/// from a list, and under a causal mask up and down.
#[test]
fn the_sets_of_orders_have_each_order() {
    let device = DeviceInfo {
        n_sms: orders::N_SMS,
        ..DeviceInfo::emulated_hopper()
    };
    let of = |cases: Vec<Case>| -> Vec<(u32, u32, bool)> {
        let main = |case: Case| {
            let problem = case.problem().unwrap();
            let plan = plan_of(&problem, Pass::Backward, &device, None);
            // Without queries there is nothing but results to clear.
            let launch = plan.launches.get(1)?;
            Some(match launch.params {
                Params::TmaBackward(params) => {
                    let schedule = params.pass.schedule;
                    let again = launch.grid < schedule.tiles * schedule.heads;
                    (schedule.order, schedule.stride, again)
                }
                _ => panic!("{plan}"),
            })
        };
        cases.into_iter().filter_map(main).collect()
    };
    for (cases, order, strides) in [
        (orders::shifted(), SHIFTED, vec![1, 2]),
        (orders::lists(), ORDERED, vec![1]),
        (orders::causal(), ORDERED, vec![1]),
    ] {
        let planned = of(cases);
        assert!(
            planned.iter().all(|of_case| of_case.0 == order),
            "{planned:?}"
        );
        for stride in strides {
            let several = planned
                .iter()
                .filter(|&&(_, of, again)| of == stride && again);
            assert!(4 <= several.count(), "{planned:?}");
        }
    }
}

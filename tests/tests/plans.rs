//! Plans, without a device: their text is golden (`UPDATE_EXPECT=1` accepts a change), their grids cover every tile
//! exactly once.

use std::collections::BTreeMap;

use conformance::cases;
use expect_test::expect_file;
use ferroflash::plan::{
    Algorithm, Backend, DeviceInfo, Plan, PlannedLaunch, eligible, kinds, plan,
};
use ferroflash::tensor::Place;
use ferroflash::validate::{self, Pass};
use ferroflash::{Dtype, Mask, Order, Problem};
use ferroflash_kernels::attention::mask::Work;
use ferroflash_kernels::attention::schedule;
use ferroflash_kernels::params::{Params, Schedule};
use ferroflash_kernels::variants::{Kind, TileShape, VARIANTS};
use proptest::prelude::*;
use proptest::sample::select;

fn plan_of(
    problem: &Problem,
    pass: Pass,
    device: &DeviceInfo,
    algorithm: Option<Algorithm>,
) -> Plan {
    let checked = validate::without_tensors(problem, pass, Place::Cuda(0)).unwrap();
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
    expect_file!["../golden/plan_flash2_grouped_causal.txt"]
        .assert_eq(&text(&grouped_causal(), asked));
    expect_file!["../golden/plan_flash2_ragged_full.txt"].assert_eq(&text(&ragged_full(), asked));
}

#[test]
fn the_fastest() {
    let padded = grouped(Dtype::F16, 1000, 72);
    expect_file!["../golden/plan_fastest_grouped_causal.txt"]
        .assert_eq(&text(&grouped_causal(), None));
    expect_file!["../golden/plan_fastest_ragged_full.txt"].assert_eq(&text(&ragged_full(), None));
    expect_file!["../golden/plan_fastest_padded_causal.txt"].assert_eq(&text(&padded, None));
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
    expect_file!["../golden/plan_short.txt"].assert_eq(&text.concat());
}

/// Devices with 99 KB of shared memory per block: at head_dim 128 the backward pass runs with compact tiles.
#[test]
fn flash2_in_99_kilobytes() {
    let text = [32, 64, 128].map(|head_dim| {
        let devices = [DeviceInfo::rtx3060(), DeviceInfo::rtx4090()];
        text_on(devices, &grouped(Dtype::Bf16, 4096, head_dim), None)
    });
    expect_file!["../golden/plan_flash2_99_kilobytes.txt"].assert_eq(&text.concat());
}

#[test]
fn standard() {
    expect_file!["../golden/plan_standard_ragged_full.txt"]
        .assert_eq(&text(&ragged_full(), Some(Algorithm::Standard)));
}

#[test]
fn refusals() {
    let mut text = String::new();
    let mut refuse = |problem: Problem, device: DeviceInfo, backend, algorithm, pass| {
        let checked = validate::without_tensors(&problem, pass, Place::Cuda(0)).unwrap();
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
    let f32 = grouped(Dtype::F32, 4096, 128);
    let odd = grouped(Dtype::Bf16, 4096, 80);
    let long = grouped(Dtype::Bf16, 1 << 20, 128);
    refuse(grouped_causal(), old, Backend::Cuda, None, Pass::Forward);
    refuse(f32, DeviceInfo::h200(), Backend::Cuda, None, Pass::Forward);
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
    for (device, pass) in [
        (DeviceInfo::a100(), Pass::Forward),
        (newer, Pass::Forward),
        (DeviceInfo::h200(), Pass::Backward),
    ] {
        refuse(
            grouped_causal(),
            device,
            Backend::Cuda,
            Some(Algorithm::Flash3),
            pass,
        );
    }
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
    expect_file!["../golden/plan_refusals.txt"].assert_eq(&text);
}

/// How often each (tile, head) comes up.
fn counts(places: impl Iterator<Item = (u32, u32)>) -> BTreeMap<(u32, u32), u32> {
    let mut counts = BTreeMap::new();
    places.for_each(|place| *counts.entry(place).or_default() += 1);
    counts
}

fn assert_once(schedule: &Schedule, places: impl Iterator<Item = (u32, u32)>) {
    let expected =
        (0..schedule.tiles).flat_map(|tile| (0..schedule.heads).map(move |head| ((tile, head), 1)));
    assert_eq!(
        counts(places),
        expected.collect::<BTreeMap<_, _>>(),
        "{schedule:?}"
    );
}

/// The tiles of `rows` rows: enough, and the last one not empty.
fn assert_covers(tiles: u32, block: u32, rows: usize) {
    assert_eq!(u64::from(tiles), (rows as u64).div_ceil(block.into()));
}

/// A backward kernel's padded length and turns are those of its own blocks of queries.
fn assert_padded(plan: &Plan, launch: &PlannedLaunch) {
    let Params::Backward(params) = launch.params else {
        panic!("{} is no backward kernel", launch.variant.name)
    };
    let block_q = u64::from(launch.variant.footprint.block_q);
    let padded_q = (plan.problem.seqlen_q as u64)
        .max(1)
        .next_multiple_of(block_q);
    assert_eq!(params.padded_q, padded_q, "{}", launch.variant.name);
    let heads_q = (plan.problem.batch * plan.problem.heads_q) as u64;
    let turns = plan
        .workspace
        .pieces()
        .iter()
        .find(|piece| piece.name == "turns");
    assert_eq!(turns.unwrap().n_bytes, padded_q / block_q * heads_q * 4);
}

fn hold_launch(plan: &Plan, launch: &PlannedLaunch) {
    let problem = &plan.problem;
    let footprint = &launch.variant.footprint;
    let queries = |block: u32| (problem.seqlen_q as u64).div_ceil(block.into());
    let keys = |block: u32| (problem.seqlen_k as u64).div_ceil(block.into());
    let columns = (problem.head_dim as u64).div_ceil(128);
    let (heads_q, heads_k) = (
        (problem.batch * problem.heads_q) as u64,
        (problem.batch * problem.heads_k) as u64,
    );
    let grid = u64::from(launch.grid);
    match launch.params {
        Params::Forward(params) => {
            let schedule = &params.schedule;
            assert_covers(schedule.tiles, footprint.block_q, problem.seqlen_q);
            assert_eq!(
                (u64::from(schedule.heads), grid),
                (heads_q, queries(footprint.block_q) * heads_q)
            );
            for work in [Work::Even, Work::Growing] {
                let tiles = (0..launch.grid).map(|idx| schedule::forward(schedule, work, idx));
                assert_once(schedule, tiles.map(|tile| (tile.tile, tile.head)));
            }
        }
        Params::TmaForward(params) => {
            let schedule = &params.schedule;
            let n_tiles = schedule.tiles * schedule.heads;
            let packed = 1 << params.packed_log2;
            assert!(packed == 1 || launch.variant.tiles == TileShape::Compact);
            assert!(problem.group_size().is_multiple_of(packed as usize));
            assert_covers(schedule.tiles, footprint.block_q / packed, problem.seqlen_q);
            assert!(
                u64::from(schedule.heads * packed) == heads_q
                    && 0 < launch.grid
                    && launch.grid <= n_tiles
            );
            for map in [params.q, params.o] {
                let expected = (u64::from(64 / packed), u64::from(packed));
                assert_eq!((map.box_rows, map.box_heads), expected);
            }
            for work in [Work::Even, Work::Growing] {
                let tiles = (0..n_tiles).map(|ticket| schedule::forward(schedule, work, ticket));
                assert_once(schedule, tiles.map(|tile| (tile.tile, tile.head)));
            }
        }
        Params::Backward(params) if launch.variant.kind == Kind::Backward => {
            assert_padded(plan, launch);
            let schedule = &params.schedule;
            let n_tiles = schedule.tiles * schedule.heads;
            assert_covers(schedule.tiles, footprint.block_k, problem.seqlen_k);
            assert!(
                u64::from(schedule.heads) == heads_k && 0 < launch.grid && launch.grid <= n_tiles
            );
            for work in [Work::Even, Work::Growing] {
                let tiles = (0..n_tiles).map(|ticket| schedule::backward(schedule, work, ticket));
                assert_once(schedule, tiles.map(|tile| (tile.tile, tile.head)));
            }
        }
        Params::Backward(params) => {
            assert_padded(plan, launch);
            assert_eq!(
                grid,
                params.padded_q / u64::from(footprint.block_q) * heads_q
            );
        }
        Params::Standard(_) => {
            let expected = match launch.variant.kind {
                Kind::StandardScores | Kind::StandardDWeights => queries(128) * keys(128) * heads_q,
                Kind::StandardOutput | Kind::StandardDq => queries(128) * columns * heads_q,
                Kind::StandardDv | Kind::StandardDk => keys(128) * columns * heads_k,
                _ => queries(4) * heads_q,
            };
            assert_eq!(grid, expected, "{}", launch.variant.name);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn grids_cover_every_tile_once(
        (batch, heads_k) in (1usize..4, 1usize..5),
        group in select(vec![1usize, 2, 3, 4, 6, 8]),
        (seqlen_q, seqlen_k) in (prop_oneof![1usize..100, 1usize..3000], 1usize..1200),
        head_dim in select(vec![32usize, 64, 128]),
        mask in select(vec![Mask::Full, Mask::Causal]),
        algorithm in select(vec![None, Some(Algorithm::Flash2), Some(Algorithm::Standard)]),
        pass in select(vec![Pass::Forward, Pass::Backward]),
        device in select(vec![
            DeviceInfo::a100(), DeviceInfo::h200(), DeviceInfo::rtx3060(), DeviceInfo::rtx4090(), DeviceInfo::emulated(),
            DeviceInfo::emulated_hopper(),
        ]),
    ) {
        let problem = Problem::builder(Dtype::Bf16)
            .batch(batch).heads_q(heads_k * group).heads_k(heads_k).seqlen_q(seqlen_q).seqlen_k(seqlen_k)
            .head_dim(head_dim).mask(mask).build().unwrap();
        let plan = plan_of(&problem, pass, &device, algorithm);
        prop_assert!(!plan.launches.is_empty());
        plan.launches.iter().for_each(|launch| hold_launch(&plan, launch));
    }

    /// Whatever shared memory a device has, the kernels of a pass are of one shape, the first that fits.
    #[test]
    fn kernels_of_a_pass_are_of_one_shape(
        shared_bytes_per_block in 0u32..(232 << 10),
        head_dim in select(vec![32usize, 64, 128]),
        (dtype, mask) in (select(vec![Dtype::Bf16, Dtype::F16]), select(vec![Mask::Full, Mask::Causal])),
        pass in select(vec![Pass::Forward, Pass::Backward]),
    ) {
        let problem = Problem::builder(dtype).seqlen(500).heads(2).head_dim(head_dim).mask(mask).build().unwrap();
        let device = DeviceInfo { shared_bytes_per_block, ..DeviceInfo::rtx3060() };
        let checked = validate::without_tensors(&problem, pass, Place::Cuda(0)).unwrap();
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

//! Grids cover every tile exactly once, and what the kernels of a pass share fits all of them.

use std::collections::BTreeMap;

use ferroflash::Fp8;
use ferroflash::plan::PlannedLaunch;
use ferroflash_kernels::attention::mask::Work;
use ferroflash_kernels::attention::schedule;
use ferroflash_kernels::params::{
    BackwardParams, Descales, Params, SHIFTED, ScaleStrides, Schedule, SplitKv,
};
use ferroflash_kernels::spec::{Constant, Spec};
use ferroflash_kernels::variants::Kind;

use super::*;

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

/// What a backward kernel is told of its pass.
fn pass_params(launch: &PlannedLaunch) -> &BackwardParams {
    let pass = launch.params.backward();
    pass.unwrap_or_else(|| panic!("{} is no backward kernel", launch.variant.name))
}

/// The kernels of backward passes that multiply.
const MAIN_BACKWARD: [Kind; 3] = [Kind::Flash1Backward, Kind::Backward, Kind::TmaBackward];

/// A backward pass's padded length and dQ semaphore are those of its main kernel's blocks of queries.
fn assert_padded(plan: &Plan, launch: &PlannedLaunch) {
    let params = pass_params(launch);
    let main = |kind| MAIN_BACKWARD.contains(&kind);
    let mut launches = plan.launches.iter();
    let main = launches.find(|launch| main(launch.variant.kind)).unwrap();
    let block_q = u64::from(main.variant.tile_config.block_q);
    let padded_q = (plan.problem.seqlen_q() as u64)
        .max(1)
        .next_multiple_of(block_q);
    assert_eq!(params.padded_q, padded_q, "{}", launch.variant.name);
    let heads_q = (plan.problem.batch() * plan.problem.heads_q()) as u64;
    let semaphore = plan
        .workspace
        .pieces()
        .iter()
        .find(|piece| piece.name == "dq_semaphore");
    // Each block of a cluster has its own.
    let n = padded_q / block_q * heads_q * u64::from(main.variant.tile_config.cluster);
    assert_eq!(semaphore.unwrap().n_bytes, n * 4);
}

fn hold_backward(plan: &Plan, launch: &PlannedLaunch, device: &DeviceInfo) {
    assert_padded(plan, launch);
    let problem = &plan.problem;
    let tile_config = &launch.variant.tile_config;
    let params = pass_params(launch);
    let (heads_q, heads_k) = (
        (problem.batch() * problem.heads_q()) as u64,
        (problem.batch() * problem.heads_k()) as u64,
    );
    if !MAIN_BACKWARD.contains(&launch.variant.kind) {
        let blocks = params.padded_q / u64::from(tile_config.block_q);
        assert_eq!(u64::from(launch.grid), blocks * heads_q);
        return;
    }
    let schedule = &params.schedule;
    let n_tiles = schedule.tiles * schedule.heads;
    assert_covers(schedule.tiles, tile_config.block_k, problem.seqlen_k());
    assert_eq!(
        u64::from(schedule.heads),
        heads_k * u64::from(params.n_head_splits)
    );
    if launch.variant.kind == Kind::Flash1Backward {
        assert_eq!(u64::from(launch.grid), heads_k);
        return;
    }
    let cluster = tile_config.cluster;
    let resident = (device.n_sms * tile_config.blocks_per_sm / cluster).max(1) * cluster;
    // Flash3's blocks without a tile round dQ, if it has rows.
    let q_blocks = match launch.variant.kind {
        Kind::TmaBackward if problem.seqlen_q() > 0 => {
            params.padded_q / u64::from(tile_config.block_q) * heads_q
        }
        _ => 0,
    };
    let useful = q_blocks
        .max(u64::from(n_tiles * cluster))
        .next_multiple_of(cluster.into())
        .min(resident.into());
    assert!(launch.grid > 0 && u64::from(launch.grid) == useful);
    if schedule.order == SHIFTED {
        assert_eq!(cluster, 1, "a device may not hold all clusters of a grid");
        let group = schedule.tiles / schedule.stride * schedule.heads_per_group;
        let unmasked = Spec::PLAIN.with(Constant::HeadSplits);
        assert!(group <= launch.grid && [Spec::PLAIN, unmasked].contains(&launch.spec));
        assert_eq!(
            params.n_larger_head_splits, 0,
            "shifted tiles are of one length"
        );
    }
    for work in [Work::Even, Work::Growing, Work::Shrinking] {
        let tiles = (0..n_tiles).map(|tile_idx| schedule::backward(schedule, work, tile_idx));
        assert_once(schedule, tiles.map(|tile| (tile.k_block, tile.head)));
    }
}

/// Splits, if there are any, have every key once, and are merged once.
fn hold_splits(plan: &Plan, launch: &PlannedLaunch, split: SplitKv) {
    let problem = &plan.problem;
    let SplitKv { keys, n, rows, .. } = split;
    if n == 0 {
        return;
    }
    assert!(launch.spec.has(Constant::SplitKv) && n > 1);
    assert_eq!(keys % launch.variant.tile_config.block_k, 0);
    assert_covers(n, keys, problem.seqlen_k());
    assert_eq!(rows, problem.shape_lse().iter().product::<usize>() as u64);
    let combines = plan.launches.iter();
    let combines = combines.filter(|launch| launch.variant.kind == Kind::Combine);
    assert_eq!(combines.count() as u32, 1 - split.tiles_merge);
}

fn hold_launch(plan: &Plan, launch: &PlannedLaunch, device: &DeviceInfo) {
    let problem = &plan.problem;
    let tile_config = &launch.variant.tile_config;
    let queries = |block: u32| (problem.seqlen_q() as u64).div_ceil(block.into());
    let keys = |block: u32| (problem.seqlen_k() as u64).div_ceil(block.into());
    let columns = (problem.head_dim() as u64).div_ceil(128);
    let heads_q = (problem.batch() * problem.heads_q()) as u64;
    let heads_k = (problem.batch() * problem.heads_k()) as u64;
    let grid = u64::from(launch.grid);
    match launch.params {
        // Plans here are of sequences as long as the problem says.
        Params::TileList(_) | Params::BlockList(_) | Params::MaskMap(_) => {
            panic!("{} lists nothing", launch.variant.name)
        }
        Params::Forward(params) if launch.variant.tiles == TileShape::Compact => {
            let rows = problem.seqlen_q() as u64 * problem.group_size() as u64;
            let tiles = rows.div_ceil(tile_config.block_q.into()) * heads_k;
            assert_eq!(grid, tiles * u64::from(params.split.n.max(1)));
            hold_splits(plan, launch, params.split);
            hold_scales(problem, &params.descales);
        }
        Params::Forward(params) => {
            let schedule = &params.schedule;
            assert_covers(schedule.tiles, tile_config.block_q, problem.seqlen_q());
            assert_eq!(
                (u64::from(schedule.heads), grid),
                (heads_q, queries(tile_config.block_q) * heads_q)
            );
            for work in [Work::Even, Work::Growing, Work::Shrinking] {
                let tiles = (0..launch.grid).map(|idx| schedule::forward(schedule, work, idx));
                assert_once(schedule, tiles.map(|tile| (tile.q_block, tile.head)));
            }
        }
        Params::Flash1Forward(_) => assert_eq!(grid, heads_q),
        Params::TmaForward(params) => {
            let schedule = &params.schedule;
            let n_tiles = schedule.tiles * schedule.heads;
            let packed = 1 << params.pack_gqa_log2;
            let packs = [TileShape::Compact, TileShape::Grouped];
            assert!(packed == 1 || packs.contains(&launch.variant.tiles));
            assert!(problem.group_size().is_multiple_of(packed as usize));
            let splits = params.split.n.max(1);
            assert_eq!(schedule.tiles % splits, 0);
            assert_covers(
                schedule.tiles / splits,
                tile_config.block_q / packed,
                problem.seqlen_q(),
            );
            hold_splits(plan, launch, params.split);
            assert!(
                u64::from(schedule.heads * packed) == heads_q
                    && 0 < launch.grid
                    && launch.grid <= n_tiles
            );
            for map in [params.q, params.o] {
                let expected = (u64::from(64 / packed), u64::from(packed));
                assert_eq!((map.box_rows, map.box_heads), expected);
            }
            for work in [Work::Even, Work::Growing, Work::Shrinking] {
                let tiles =
                    (0..n_tiles).map(|tile_idx| schedule::forward(schedule, work, tile_idx));
                assert_once(schedule, tiles.map(|tile| (tile.q_block, tile.head)));
            }
        }
        Params::Backward(_) | Params::TmaBackward(_) => hold_backward(plan, launch, device),
        Params::Combine(_) => {
            let rows = problem.shape_lse().iter().product::<usize>() as u64;
            assert_eq!(grid, rows.div_ceil(tile_config.block_q.into()));
        }
        Params::Merge(_) | Params::Append(_) | Params::Quantize(_) => {
            panic!("no plan of attention does what is beside it")
        }
        Params::TensorGradient(_) => panic!("no score is edited here"),
        Params::SinkGradient(params) => {
            assert_eq!(grid, problem.heads_q() as u64);
            assert_eq!(
                (params.block_q, params.batch as usize),
                (0, problem.batch())
            );
        }
        Params::Dequantize(params) => {
            hold_scales(problem, &params.descales);
            let blocks = queries(tile_config.block_q) + 2 * keys(tile_config.block_q);
            assert_eq!(grid, blocks * problem.batch() as u64);
            assert_eq!(plan.launches[0], *launch);
        }
        Params::Clear(_) => assert_eq!(grid, keys(64) * problem.batch() as u64),
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

/// Kernels find the scales where the problem has them: in blocks of 128 rows of a sequence and head of keys.
fn hold_scales(problem: &Problem, descales: &Descales) {
    let sides = [
        (descales.strides_q, problem.seqlen_q()),
        (descales.strides_k, problem.seqlen_k()),
    ];
    for (strides, seqlen) in sides {
        let (blocks, step) = match problem.fp8() {
            Some(Fp8::PerBlock) => (seqlen.div_ceil(128), 1),
            Some(Fp8::PerHead) => (1, 0),
            Some(Fp8::PerTensor) | None => (0, 0),
        };
        let expected = ScaleStrides {
            batch: (problem.heads_k() * blocks) as u32,
            head: blocks as u32,
            block: step,
        };
        assert_eq!(strides, expected);
    }
}

/// Where scales are of blocks, flash3's tiles of keys lie within one; wide ones of head_dim 64 do not. Of flash2's tiles each chunk of 16 keys does.
#[test]
fn tiles_lie_within_blocks_of_scales() {
    let device = DeviceInfo::h200();
    for head_dim in [16, 64, 80, 96, 128, 176, 192, 256] {
        for seqlen in [1, 300, 4096] {
            for mask in [Mask::Full, Mask::Causal] {
                let problem = Problem::builder(Dtype::Bf16).batch(2).seqlen(seqlen);
                let problem = problem.heads_q(8).heads_k(2).head_dim(head_dim).mask(mask);
                let problem = problem.fp8(Fp8::PerBlock).build().unwrap();
                let place = Location::Cuda(0);
                let checked = validate::without_tensors(&problem, Pass::Forward, place).unwrap();
                let of = |asked| plan(&checked, &device, Backend::Cuda, Some(asked));
                if head_dim <= 128 {
                    let few = of(Algorithm::Flash2).unwrap();
                    assert!(few.launches[0].spec.has(Constant::ScaleBlocks));
                    few.launches
                        .iter()
                        .for_each(|launch| hold_launch(&few, launch, &device));
                }
                let planned = of(Algorithm::Flash3).unwrap();
                let launch = planned.launches.last().unwrap();
                let spec = launch.spec;
                assert!(spec.has(Constant::ScaleBlocks));
                assert!(128u32.is_multiple_of(launch.variant.tile_config.block_k));
                let wide = seqlen >= 2048 && (65..=128).contains(&head_dim);
                assert_eq!(launch.variant.tiles == TileShape::Wide, wide, "{planned}");
                let Params::TmaForward(params) = &launch.params else {
                    panic!("{planned}")
                };
                hold_scales(&problem, &params.descales);
            }
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
        head_dim in select(vec![32usize, 64, 128, 256]),
        mask in select(vec![
            Mask::Full, Mask::Causal, Mask::Window { left: Some(40), right: Some(0) },
            Mask::Window { left: Some(1000), right: None }, Mask::PrefixLm { prefix: 40 },
        ]),
        algorithm in select(vec![
            None, Some(Algorithm::Flash1), Some(Algorithm::Flash2), Some(Algorithm::Standard),
        ]),
        pass in select(vec![Pass::Forward, Pass::Backward]),
        has_sinks in any::<bool>(),
        fp8 in select(vec![None, Some(Fp8::PerHead), Some(Fp8::PerBlock)]),
        device in select(vec![
            DeviceInfo::a100(), DeviceInfo::h200(), DeviceInfo::rtx3060(), DeviceInfo::rtx4090(), DeviceInfo::emulated(),
            DeviceInfo::emulated_hopper(),
        ]),
    ) {
        let problem = Problem::builder(Dtype::Bf16)
            .batch(batch).heads_q(heads_k * group).heads_k(heads_k).seqlen_q(seqlen_q).seqlen_k(seqlen_k)
            .head_dim(head_dim).mask(mask);
        let problem = if has_sinks { problem.sinks() } else { problem };
        // Gradients of it are any algorithm's.
        let fp8 = fp8.filter(|_| pass == Pass::Backward);
        let problem = fp8.map_or(problem, |scales| problem.fp8(scales));
        let problem = problem.build().unwrap();
        // At head_dim 256 a block of flash1's takes more shared memory than some devices have.
        let algorithm = algorithm.filter(|&asked| asked != Algorithm::Flash1 || head_dim <= 128);
        // Flash2 has no kernels above head_dim 128.
        let algorithm = algorithm.filter(|&asked| asked != Algorithm::Flash2 || head_dim <= 128);
        let plan = plan_of(&problem, pass, &device, algorithm);
        prop_assert!(!plan.launches.is_empty());
        let takes_out = plan.launches.iter().filter(|launch| launch.variant.kind == Kind::Dequantize);
        prop_assert_eq!(takes_out.count(), usize::from(fp8.is_some()));
        prop_assert_eq!(plan.algorithm == Algorithm::Flash1, algorithm == Some(Algorithm::Flash1));
        plan.launches.iter().for_each(|launch| hold_launch(&plan, launch, &device));
    }
}

//! Timelines of plans: every tile once, shares that add up, and what is refused.

use super::*;
use ferroflash::plan::{Backend, Moment, Stamp, plan};
use ferroflash::tensor::Location;
use ferroflash::validate::without_tensors;
use ferroflash::{Dtype, Mask, Order, Problem};

fn planned(
    sizes: (usize, usize),
    mask: Mask,
    pass: Pass,
    algorithm: Algorithm,
    order: Order,
) -> Plan {
    let (seqlen, heads) = sizes;
    let builder = Problem::builder(Dtype::Bf16).seqlen(seqlen).heads(heads);
    let problem = builder.head_dim(128).mask(mask).order(order);
    let problem = problem.build().unwrap();
    let checked = without_tensors(&problem, pass, Location::Cuda(0)).unwrap();
    let device = DeviceInfo::h200();
    plan(&checked, &device, Backend::Cuda, Some(algorithm)).unwrap()
}

fn timeline(sizes: (usize, usize), mask: Mask, pass: Pass, algorithm: Algorithm) -> Timeline {
    let plan = planned(sizes, mask, pass, algorithm, Order::Deterministic);
    Timeline::of_plan(&plan, &DeviceInfo::h200()).unwrap()
}

#[test]
fn every_tile_is_done_once_and_a_place_does_one_thing_at_a_time() {
    for algorithm in [Algorithm::Flash1, Algorithm::Flash2, Algorithm::Flash3] {
        for (pass, mask) in [
            (Pass::Forward, Mask::Full),
            (Pass::Forward, Mask::Causal),
            (Pass::Backward, Mask::Full),
            (Pass::Backward, Mask::Causal),
        ] {
            let timeline = timeline((2048, 16), mask, pass, algorithm);
            let mut tiles = std::collections::HashSet::new();
            for lane in &timeline.lanes {
                for (one, next) in lane.iter().zip(lane.iter().skip(1)) {
                    assert!(one.from < one.until && one.until <= next.from, "{lane:?}");
                }
                tiles.extend(lane.iter().filter_map(|stretch| match stretch.doing {
                    Doing::Tile { head, tile } => Some((head, tile)),
                    Doing::Step { .. } | Doing::Wait => None,
                }));
            }
            let main = planned((2048, 16), mask, pass, algorithm, Order::Deterministic);
            let tile_config = main_kernel(&main).unwrap().variant.tile_config;
            let rows = match (pass, algorithm) {
                (Pass::Backward, _) | (_, Algorithm::Flash1) => tile_config.block_k,
                _ => tile_config.block_q,
            };
            assert_eq!(tiles.len(), 16 * 2048_usize.div_ceil(rows as usize));
            let idle = timeline.idle();
            assert!(idle.edges > 0.0 && idle.without_tile >= 0.0 && idle.waits >= 0.0);
            assert!(idle.all() < 1.0, "{algorithm} {pass:?}: {idle:?}");
        }
    }
}

/// The other end of the same numbers: `tests/tests/schedule/idle.rs`, the row of 4096 rows, batch 4.
#[test]
fn shares_of_idle_time_add_up() {
    let full = timeline((4096, 64), Mask::Full, Pass::Backward, Algorithm::Flash3);
    assert_eq!(format!("{:.1}", 100.0 * full.idle().all()), "7.2");
    let busy = (full.n_steps * STEP) as f64 / (full.end() * u64::from(full.n_places)) as f64;
    assert!((1.0 - busy - full.idle().all()).abs() < 1e-9);
}

/// A head is one block's, tile after tile, in both passes; under a causal mask with as many steps as blocks of queries see the tile.
#[test]
fn a_head_of_flash1_is_one_blocks() {
    for (mask, steps) in [(Mask::Full, 4 * 4), (Mask::Causal, 4 + 3 + 2 + 1)] {
        let forward = timeline((512, 3), mask, Pass::Forward, Algorithm::Flash1);
        assert_eq!((forward.lanes.len(), forward.n_steps), (3, 3 * steps));
        for (head, lane) in (0..).zip(&forward.lanes) {
            assert!(lane.iter().zip(&lane[1..]).all(|(a, b)| a.until == b.from));
            let tiles = lane.iter().map(|stretch| stretch.doing);
            let expected = (0..4).map(|tile| Doing::Tile { head, tile });
            assert_eq!(tiles.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
        }
    }
    let backward = timeline((512, 3), Mask::Full, Pass::Backward, Algorithm::Flash1);
    assert_eq!(backward.lanes.len(), 3);
    let plan = planned(
        (512, 3),
        Mask::Full,
        Pass::Backward,
        Algorithm::Flash1,
        Order::Deterministic,
    );
    let refused = backward::Launch::of_plan(&plan, &DeviceInfo::h200()).unwrap_err();
    assert_eq!(refused, NoTimeline::NoTiles(Algorithm::Flash1));
}

/// Steps told apart take as long together, and wait where tiles wait.
#[test]
fn steps_are_parts_of_their_tiles() {
    for (mask, algorithm) in [
        (Mask::Full, Algorithm::Flash3),
        (Mask::Causal, Algorithm::Flash2),
    ] {
        let plan = planned(
            (4480, 16),
            mask,
            Pass::Backward,
            algorithm,
            Order::Deterministic,
        );
        let launch = backward::Launch::of_plan(&plan, &DeviceInfo::h200()).unwrap();
        let of = |detail| backward::trace(&launch, &launch.ways(), detail).unwrap();
        let (tiles, steps) = (of(Detail::Tiles), of(Detail::Steps));
        assert_eq!(tiles.idle(), steps.idle());
        assert!(steps.idle().waits > 0.0, "{mask:?}");
        let all = steps.lanes.iter().flatten();
        let is_step = |stretch: &&Stretch| matches!(stretch.doing, Doing::Step { .. });
        let all: Vec<_> = all.filter(is_step).collect();
        assert_eq!(all.len() as u64, steps.n_steps);
        assert!(all.iter().all(|step| step.until - step.from == STEP));
    }
}

/// Two tiles on a GPU of many places, and nobody to wait for.
#[test]
fn a_few_tiles_leave_the_rest_idle() {
    let timeline = timeline((256, 1), Mask::Full, Pass::Forward, Algorithm::Flash2);
    let idle = timeline.idle();
    assert_eq!(idle.waits, 0.0);
    assert!(idle.without_tile > 0.9, "{idle:?}");
}

#[test]
fn nobody_waits_where_the_order_is_free() {
    let sizes = (4480, 16);
    let of = |order| {
        let plan = planned(sizes, Mask::Full, Pass::Backward, Algorithm::Flash3, order);
        let timeline = Timeline::of_plan(&plan, &DeviceInfo::h200()).unwrap();
        timeline.idle().waits
    };
    assert!(of(Order::Deterministic) > 0.0);
    assert_eq!(of(Order::Fastest), 0.0);
}

#[test]
fn what_is_not_simulated_says_why() {
    let device = DeviceInfo::h200();
    let standard = planned(
        (256, 1),
        Mask::Full,
        Pass::Forward,
        Algorithm::Standard,
        Order::Deterministic,
    );
    let refused = Timeline::of_plan(&standard, &device).unwrap_err();
    assert_eq!(refused, NoTimeline::NoTiles(Algorithm::Standard));
    let long = planned(
        (1 << 20, 64),
        Mask::Full,
        Pass::Backward,
        Algorithm::Flash3,
        Order::Deterministic,
    );
    let refused = Timeline::of_plan(&long, &device).unwrap_err();
    assert!(matches!(refused, NoTimeline::TooLong { .. }), "{refused}");
}

/// Records of a plan without a mask as its simulation has it, on a device of one place an SM.
fn records(plan: &Plan) -> Vec<Stamp> {
    let device = DeviceInfo::h200();
    let simulated = Timeline::of_plan(plan, &device).unwrap();
    let schedule = main_kernel(plan).unwrap().schedule().unwrap();
    let mut stamps = vec![Stamp::default(); (schedule.heads * schedule.tiles) as usize];
    for (place, lane) in simulated.lanes.iter().enumerate() {
        for stretch in lane {
            let Doing::Tile { head, tile } = stretch.doing else {
                panic!("nobody waits forward")
            };
            let moment = |time| Moment {
                ns: 1 + 32 * time,
                cycles: 64 * time,
            };
            stamps[(head * schedule.tiles + tile) as usize] = Stamp {
                block: place as u32,
                sm: place as u32,
                head,
                tile,
                start: moment(stretch.from),
                end: moment(stretch.until),
            };
        }
    }
    stamps
}

#[test]
fn records_are_the_timeline_that_they_tell_of() {
    let plan = planned(
        (4480, 16),
        Mask::Full,
        Pass::Forward,
        Algorithm::Flash3,
        Order::Deterministic,
    );
    let device = DeviceInfo::h200();
    let simulated = Timeline::of_plan(&plan, &device).unwrap();
    let profiled = plan.profiled().unwrap();
    let measured = Measured::new(&profiled, &device, &records(&plan)).unwrap();
    assert_eq!(measured.lanes.len(), simulated.lanes.len());
    assert_eq!(measured.end(), 32 * simulated.end());
    // All tiles are as long, so the times have more than a tick in common.
    assert_eq!((measured.tick_ns % 32, measured.clock_ghz), (0, 2.0));
    let difference = measured.without_tile() - simulated.idle().without_tile;
    assert!(difference.abs() < 1e-9, "{difference}");
    for (lane, drawn) in measured.lanes.iter().zip(&simulated.lanes) {
        let names =
            |stretches: &[Stretch]| stretches.iter().map(|one| one.doing).collect::<Vec<_>>();
        assert_eq!(names(&lane.stretches), names(drawn));
    }
}

#[test]
fn a_block_keeps_its_place_and_a_later_one_takes_a_free_one() {
    let plan = planned(
        (512, 1),
        Mask::Full,
        Pass::Forward,
        Algorithm::Flash2,
        Order::Deterministic,
    );
    let profiled = plan.profiled().unwrap();
    let moment = |ns| Moment { ns, cycles: ns };
    let stamp = |tile: u32, block, from, until| Stamp {
        block,
        sm: 5,
        head: 0,
        tile,
        start: moment(from),
        end: moment(until),
    };
    // Two blocks at once; the third comes where the second has ended.
    let stamps = [
        stamp(0, 0, 10, 90),
        stamp(1, 1, 12, 40),
        stamp(2, 2, 42, 80),
        stamp(3, 3, 90, 100),
    ];
    let measured = Measured::new(&profiled, &DeviceInfo::h200(), &stamps).unwrap();
    let tiles = |lane: &MeasuredLane| lane.stretches.iter().map(|one| one.doing).collect();
    let lanes: Vec<Vec<Doing>> = measured.lanes.iter().map(tiles).collect();
    let tile = |tile| Doing::Tile { head: 0, tile };
    assert_eq!(lanes, [vec![tile(0), tile(3)], vec![tile(1), tile(2)]]);
    assert_eq!((measured.n_sms(), measured.n_places), (1, 264));
}

#[test]
fn records_that_make_no_sense_say_why() {
    let plan = planned(
        (4480, 16),
        Mask::Full,
        Pass::Forward,
        Algorithm::Flash3,
        Order::Deterministic,
    );
    let (profiled, device) = (plan.profiled().unwrap(), DeviceInfo::h200());
    let good = records(&plan);
    let with = |change: &dyn Fn(&mut Vec<Stamp>)| {
        let mut stamps = good.clone();
        change(&mut stamps);
        Measured::new(&profiled, &device, &stamps).unwrap_err()
    };
    let (head, tile) = (good[40].head, good[40].tile);
    let dropped = with(&|stamps| stamps[40] = Stamp::default());
    assert_eq!(dropped, BadStamps::Missing { head, tile });
    let swapped = with(&|stamps| stamps.swap(40, 41));
    assert!(matches!(swapped, BadStamps::Misplaced { .. }), "{swapped}");
    let unknown = with(&|stamps| stamps[40].block = 1 << 20);
    assert!(matches!(unknown, BadStamps::Misplaced { .. }), "{unknown}");
    let early = with(&|stamps| stamps[40].end.ns = stamps[40].start.ns - 1);
    assert_eq!(early, BadStamps::Backwards { head, tile });
    let both = with(&|stamps| {
        for stamp in stamps.iter_mut() {
            (stamp.block, stamp.sm) = (7, 7);
        }
    });
    assert!(
        matches!(both, BadStamps::Overlap { block: 7, .. }),
        "{both}"
    );
    let moved = with(&|stamps| {
        let first = stamps.iter().position(|stamp| stamp.block == 3).unwrap();
        stamps[first].sm = 100;
    });
    assert!(
        matches!(moved, BadStamps::Overlap { block: 3, .. }),
        "{moved}"
    );
    let few = with(&|stamps| stamps.truncate(3));
    let tiles = good.len();
    assert_eq!(few, BadStamps::Count { given: 3, tiles });
    let plain = Measured::new(&plan, &device, &good).unwrap_err();
    let kernel = plan.main_launch().unwrap().variant.name;
    assert_eq!(plain, BadStamps::NotStamped { kernel });
}

//! What the planner chooses for speed: tiles, shares, the order of tiles, and its figures of time. All choices give the same results,
//! so no other test sees them change. The text is golden: `UPDATE_EXPECT=1` accepts a change, and the diff is what to review.

use std::fmt::Write;

use ferroflash::plan::PlannedLaunch;
use ferroflash::plan::schedule::tma_backward;
use ferroflash_kernels::params::{BackwardParams, FASTEST, Schedule};

use super::*;

/// `(batch, heads_q, heads_k)`.
const HEADS: [(usize, usize, usize); 9] = [
    (1, 16, 16),
    (4, 32, 8),
    (2, 32, 1),
    (1, 71, 1),
    (1, 28, 4),
    (1, 6, 2),
    (8, 12, 12),
    (1, 1, 1),
    (3, 40, 5),
];

/// `(seqlen_q, seqlen_k)`.
const SEQLENS: [(usize, usize); 9] = [
    (1, 4096),
    (65, 1000),
    (512, 512),
    (1000, 3000),
    (2048, 2048),
    (4096, 4096),
    (8192, 8192),
    (24576, 24576),
    (65536, 65536),
];

const HEAD_DIMS: [usize; 4] = [64, 96, 128, 256];

const MASKS: [Mask; 3] = [
    Mask::Full,
    Mask::Causal,
    Mask::Window {
        left: Some(1000),
        right: Some(0),
    },
];

/// A third of all combinations, with each two of these in some of them. Every fifth takes the fastest order.
fn problems() -> Vec<Problem> {
    let mut all = Vec::new();
    for (h, (batch, heads_q, heads_k)) in HEADS.into_iter().enumerate() {
        for (s, (seqlen_q, seqlen_k)) in SEQLENS.into_iter().enumerate() {
            for (d, head_dim) in HEAD_DIMS.into_iter().enumerate() {
                let problem = Problem::builder(Dtype::Bf16)
                    .batch(batch)
                    .heads_q(heads_q)
                    .heads_k(heads_k)
                    .seqlen_q(seqlen_q)
                    .seqlen_k(seqlen_k)
                    .head_dim(head_dim)
                    .mask(MASKS[(h + s + d) % 3])
                    .order(match (h + 2 * s + d) % 5 {
                        0 => Order::Fastest,
                        _ => Order::Deterministic,
                    });
                all.push(problem.build().unwrap());
            }
        }
    }
    all.push(a_few_tiles_more_than_blocks());
    all
}

/// Under a mask, in groups of a few more tiles than an H200 has blocks: 136 and 132.
fn a_few_tiles_more_than_blocks() -> Problem {
    let problem = Problem::builder(Dtype::Bf16).seqlen(8704).heads(16);
    let problem = problem.head_dim(128).mask(Mask::Causal);
    problem.build().unwrap()
}

fn described(schedule: &Schedule) -> String {
    let order = match (schedule.order, schedule.stride) {
        (ORDERED, 1) => "list".to_owned(),
        (SHIFTED, stride) => format!("shifted by {stride}"),
        (FASTEST, 1) => "fastest".to_owned(),
        other => panic!("{other:?}"),
    };
    format!(
        "{} tiles of {} heads, {} together, {order}",
        schedule.tiles, schedule.heads, schedule.heads_per_group
    )
}

fn forward(launch: &PlannedLaunch) -> String {
    let Params::TmaForward(params) = &launch.params else {
        panic!("{launch:?}")
    };
    let packed = 1 << params.pack_gqa_log2;
    format!(
        "{:?} grid {}, {packed} packed, {}",
        launch.variant.tiles,
        launch.grid,
        described(&params.schedule)
    )
}

fn backward(problem: &Problem, device: &DeviceInfo, launch: &PlannedLaunch) -> String {
    let Params::TmaBackward(params) = &launch.params else {
        panic!("{launch:?}")
    };
    let chosen = tma_backward(problem, device, &launch.variant.tile_config);
    assert_eq!(chosen.schedule, params.pass.schedule);
    let BackwardParams {
        shape,
        n_head_splits,
        n_larger_head_splits,
        ..
    } = params.pass;
    // A share counts as a KV head.
    assert_eq!(shape.heads_k, problem.heads_k() as u32 * n_head_splits);
    let heads = shape.group_size * n_head_splits + n_larger_head_splits;
    assert_eq!(heads, problem.group_size() as u32);
    format!(
        "{:?} grid {}, {} shares ({} larger), {}, time {}",
        launch.variant.tiles,
        launch.grid,
        n_head_splits,
        n_larger_head_splits,
        described(&params.pass.schedule),
        chosen.time
    )
}

#[test]
fn choices() {
    let device = DeviceInfo::h200();
    let mut text = String::new();
    for problem in problems() {
        let last = |pass| {
            plan_of(&problem, pass, &device, Some(Algorithm::Flash3))
                .launches
                .pop()
        };
        writeln!(
            text,
            "q {:?} k {:?} {} {:?}\n  forward   {}\n  backward  {}",
            problem.shape_q(),
            problem.shape_k(),
            problem.mask(),
            problem.order(),
            forward(&last(Pass::Forward).unwrap()),
            backward(&problem, &device, &last(Pass::Backward).unwrap())
        )
        .unwrap();
    }
    expect_file!["../../golden/plan_choices.txt"].assert_eq(&text);
}

/// `(longest, average)` of packed sequences.
const PACKED: [(usize, usize); 5] = [
    (512, 100),
    (4096, 4),
    (4096, 3000),
    (16384, 3000),
    (16384, 12000),
];

#[test]
fn choices_of_packed_sequences() {
    let device = DeviceInfo::h200();
    let mut text = String::new();
    let lengths = PACKED.into_iter().enumerate();
    let grouped = lengths.flat_map(|(n, lengths)| {
        let many = std::iter::once((1, 64, 64));
        let heads = HEADS.into_iter().chain(many);
        heads.map(move |(batch, heads_q, heads_k)| (n, lengths, (batch + 3, heads_q, heads_k)))
    });
    for (n, (longest, average), (batch, heads_q, heads_k)) in grouped {
        let problem = Problem::builder(Dtype::F16)
            .batch(batch)
            .heads_q(heads_q)
            .heads_k(heads_k)
            .head_dim(HEAD_DIMS[(n + heads_q) % 4])
            .mask(MASKS[(n + heads_k) % 3])
            .seqlen(longest)
            .packed_q(batch * average)
            .packed_k(batch * average);
        let problem = problem.build().unwrap();
        let last = |pass| {
            let plan = plan_of(&problem, pass, &device, Some(Algorithm::Flash3));
            plan.launches.last().copied().unwrap()
        };
        let main = last(Pass::Backward);
        let Params::TmaBackward(params) = &main.params else {
            panic!("{main:?}")
        };
        writeln!(
            text,
            "q {:?} of {longest} at most, over {heads_k} {}\n  forward   {}\n  backward  {:?} grid {}, {}",
            problem.shape_q(),
            problem.mask(),
            forward(&last(Pass::Forward)),
            main.variant.tiles,
            main.grid,
            described(&params.pass.schedule)
        )
        .unwrap();
    }
    expect_file!["../../golden/plan_choices_packed.txt"].assert_eq(&text);
}

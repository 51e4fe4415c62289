//! A launch of a main forward kernel: tiles in their order, each in the place that is free first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use ferroflash_kernels::attention::mask::{Band, Rows};
use ferroflash_kernels::attention::schedule;
use ferroflash_kernels::params::{Params, Schedule, Shape, Window};
use ferroflash_kernels::variants::TileShape;

use super::{
    Doing, Lane, MOST_STEPS, NoTimeline, STEP, Timeline, bounds, main_kernel, not_on_device,
};
use crate::plan::schedule::resident_blocks;
use crate::plan::{DeviceInfo, Plan, PlannedLaunch};
use crate::terms::Algorithm;

/// FLOPs of an SM of an H200 in a microsecond, at the peak of bf16: 989.4 TFLOP/s of 132 SMs.
const SM_FLOPS_PER_US: f64 = 989.4e6 / 132.0;

/// What tiles take beside their steps on an H200, in microseconds, as the estimate has it (`estimate/efficiency.rs`); and which
/// share of the peak steps reach at head_dim 128.
const EDGES_US: f64 = 1.0;
const FLASH3_SHARE: f64 = 0.72;
const FLASH2_SHARE: f64 = 0.43;

/// The timeline of a plan's main kernel.
pub(super) fn timeline(plan: &Plan, device: &DeviceInfo) -> Result<Timeline, NoTimeline> {
    let main = main_kernel(plan)?;
    not_on_device(main)?;
    if let TileShape::Compact | TileShape::Grouped = main.variant.tiles {
        return Err(NoTimeline::FewQueries);
    }
    let (schedule, shape, window) = parts(plan, main)?;
    let footprint = &main.variant.footprint;
    let tiles = u64::from(schedule.tiles) * u64::from(schedule.heads);
    if tiles > MOST_STEPS {
        return Err(NoTimeline::TooLong {
            steps: tiles,
            most: MOST_STEPS,
        });
    }
    let band = Band::new(shape.seqlen_q, shape.seqlen_k, window, bounds(main));
    let n_places = resident_blocks(device, footprint);
    let n_lanes = main.grid.min(n_places);
    let mut lanes = vec![Lane::default(); n_lanes as usize];
    let mut free: BinaryHeap<_> = (0..n_lanes).map(|lane| Reverse((0, lane))).collect();
    let (edges, mut all_steps) = (edges(plan, main), 0);
    for idx in 0..tiles as u32 {
        let Some(Reverse((now, place))) = free.pop() else {
            break;
        };
        let tile = schedule::forward(&schedule, band.bounds().work(), idx);
        let first = tile.q_block * footprint.block_q;
        let queries = Rows::of_sequence(first, footprint.block_q, shape.seqlen_q);
        // A tile that sees no key makes a step, too.
        let steps = u64::from(band.kv_blocks(queries, footprint.block_k).n().max(1));
        let end = now + edges + steps * STEP;
        let doing = Doing::Tile {
            head: tile.head,
            tile: tile.q_block,
        };
        let lane = &mut lanes[place as usize];
        lane.begin(now);
        lane.end(end, doing);
        free.push(Reverse((end, place)));
        all_steps += steps;
    }
    Ok(Timeline::new(lanes, n_places, all_steps))
}

/// Order, sizes and mask.
fn parts(plan: &Plan, main: &PlannedLaunch) -> Result<(Schedule, Shape, Window), NoTimeline> {
    match main.params {
        Params::Forward(params) => Ok((params.schedule, params.shape, params.window)),
        Params::TmaForward(params) => Ok((params.schedule, params.shape, params.window)),
        _ => Err(NoTimeline::NoTiles(plan.algorithm)),
    }
}

/// A tile's time beside its steps, in hundredths of a step: the proportion of an H200.
fn edges(plan: &Plan, main: &PlannedLaunch) -> u64 {
    let footprint = &main.variant.footprint;
    let columns = plan.problem.head_dim() + plan.problem.head_dim_v();
    let flops = 2.0 * f64::from(footprint.block_q) * f64::from(footprint.block_k) * columns as f64;
    let share = match plan.algorithm {
        Algorithm::Flash3 => FLASH3_SHARE,
        _ => FLASH2_SHARE,
    };
    // Blocks of threads on an SM share its speed.
    let step_us = flops * f64::from(footprint.blocks_per_sm.max(1)) / (SM_FLOPS_PER_US * share);
    (STEP as f64 * EDGES_US / step_us.max(f64::MIN_POSITIVE)) as u64
}

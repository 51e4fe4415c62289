//! The deterministic backward pass of flash3: tiles of keys add to blocks of dQ one after the other, in a fixed order.

use std::collections::HashMap;

use anyhow::{Result, bail};
use ferroflash::plan::Algorithm;
use ferroflash::validate::Pass;
use ferroflash_kernels::attention::block_order::{self, BlockOrder};
use ferroflash_kernels::attention::schedule;
use ferroflash_kernels::params::SHIFTED;

use ferroflash::Problem;

use super::{Doing, Planned, Stretch, Timeline};

/// In which order a tile visits blocks of queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deterministic {
    /// The planner's.
    Planned,
    /// Every tile from block 0 up.
    FromFirst,
}

/// A step: which block of dQ, of all heads, and how many tiles add to it before.
#[derive(Clone, Copy, Debug)]
struct Step {
    block: u32,
    of_head: u32,
    rank: u32,
}

/// The steps of each tile, in the order in which tiles are claimed.
fn ways(planned: &Planned, order: Deterministic) -> Vec<Vec<Step>> {
    let footprint = planned.launch.variant.footprint;
    let (block_q, block_k) = (footprint.block_q, footprint.block_k);
    let band = planned.band;
    let blocks_of_head = planned.shape.seqlen_q.div_ceil(block_q);
    let way = |idx| {
        let tile = schedule::backward(&planned.schedule, band.bounds().work(), idx);
        let blocks = block_order::q_blocks(&band, tile.k_block, block_q, block_k);
        let first = tile.head * blocks_of_head;
        let step = |block, rank| Step {
            block: first + block,
            of_head: block,
            rank,
        };
        if order == Deterministic::FromFirst {
            let blocks = blocks.first..blocks.end;
            return blocks.map(|block| step(block, tile.k_block)).collect();
        }
        let mut order = BlockOrder::begin(band, tile, blocks, &planned.schedule, 1);
        let mut steps = Vec::new();
        for _ in 0..order.steps() {
            steps.push(step(order.block, order.rank(block_q, block_k)));
            order.advance();
        }
        steps
    };
    (0..planned.schedule.tiles * planned.schedule.heads)
        .map(way)
        .collect()
}

/// Where a block of threads is.
#[derive(Clone, Copy)]
struct At {
    tile: usize,
    step: usize,
}

/// The backward pass on so many SMs. A tile adds to a block of dQ when so many have added as its rank says; before, it waits. What one adds in a step, the
/// next may follow in the step after. Query heads do not share keys here.
pub fn deterministic(problem: &Problem, n_sms: u32, order: Deterministic) -> Result<Timeline> {
    let planned = Planned::new(problem, Pass::Backward, Algorithm::Flash3, n_sms)?;
    if planned.shape.group_size != 1 {
        bail!("heads of their own only");
    }
    let ways = ways(&planned, order);
    let n_lanes = planned.launch.grid.min(planned.resident(n_sms)) as usize;
    let mut lanes: Vec<At> = (0..n_lanes).map(|tile| At { tile, step: 0 }).collect();
    // In shifted order a block's next tile is fixed; otherwise it is claimed.
    let shifted = planned.schedule.order == SHIFTED;
    let mut claimed = n_lanes;
    let mut added: HashMap<u32, u32> = HashMap::new();
    let mut timeline = Timeline {
        lanes: vec![Vec::new(); n_lanes],
    };
    let blocks_of_head = planned
        .shape
        .seqlen_q
        .div_ceil(planned.launch.variant.footprint.block_q);
    let all: usize = ways.iter().map(Vec::len).sum();
    let mut done = 0;
    for now in 0.. {
        if done == all {
            break;
        }
        let mut adding = Vec::new();
        for (lane, at) in timeline.lanes.iter_mut().zip(&mut lanes) {
            let Some(&step) = ways.get(at.tile).and_then(|way| way.get(at.step)) else {
                continue;
            };
            let may = added.get(&step.block).copied().unwrap_or(0) == step.rank;
            let doing = match may {
                true => Doing::Step {
                    block: step.of_head,
                    of: blocks_of_head,
                },
                false => Doing::Wait,
            };
            lane.push(Stretch {
                from: now,
                len: 1,
                doing,
            });
            if !may {
                continue;
            }
            adding.push(step.block);
            at.step += 1;
            if at.step == ways[at.tile].len() {
                let next = if shifted { at.tile + n_lanes } else { claimed };
                claimed += 1;
                *at = At {
                    tile: next,
                    step: 0,
                };
            }
        }
        if adding.is_empty() {
            bail!("every block of threads waits");
        }
        done += adding.len();
        for block in adding {
            *added.entry(block).or_default() += 1;
        }
    }
    Ok(timeline)
}

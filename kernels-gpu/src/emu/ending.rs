//! Threads that leave the kernel, and what they may not leave behind.

use super::asynchronous::Asynchronous;
use super::block::Block;
use super::cluster;
use super::fault::{Access, Fault, Kind};
use super::machine::{ALL, LANES, Who};
use super::site::Site;

/// A thread has left the kernel: whether its block ended with it.
pub(super) fn leave(block: &mut Block, who: Who) -> Result<bool, Fault> {
    let lane = &block.lanes[who.warp * LANES + who.lane];
    let unfinished = lane
        .copies
        .unfinished()
        .or_else(|| lane.stores.unfinished());
    if let Some((count, site)) = unfinished {
        return Err(copies(who, site, count));
    }
    let warp = &mut block.warps[who.warp];
    warp.exited |= 1 << who.lane;
    warp.runnable &= !(1 << who.lane);
    if warp.arrived != 0 {
        let first = Who {
            lane: warp.arrived.trailing_zeros() as usize,
            ..who
        };
        let access = Access {
            thread: first.thread(),
            instruction: warp.instruction,
            at: warp.at,
        };
        return Err(Kind::Exited {
            access,
            lanes: warp.exited,
        }
        .into());
    }
    if warp.exited == ALL {
        if let Some(chain) = warp.tensor_core.chains.first() {
            let product = who.access(chain.site);
            return Err(Asynchronous::ProductUnfinished { product }.into());
        }
        block.live_warps -= 1;
    }
    if block.live_warps > 0 {
        return Ok(false);
    }
    end(block)?;
    Ok(true)
}

fn copies(who: Who, site: Site, count: u32) -> Fault {
    Kind::CopiesUnfinished {
        copy: who.access(site),
        count,
    }
    .into()
}

/// All threads have left: nobody must be missing anywhere.
fn end(block: &Block) -> Result<(), Fault> {
    for (id, barrier) in block.barriers.iter().enumerate() {
        if let (Some((last, site)), true) = (barrier.last, barrier.arrived > 0) {
            return Err(Kind::BarrierUnfinished {
                access: last.access(site),
                barrier: id as u32,
                arrived: barrier.arrived,
                expected: barrier.expected,
            }
            .into());
        }
    }
    if let Some(fault) = block
        .agreements
        .iter()
        .find_map(|agreement| agreement.unfinished())
    {
        return Err(fault);
    }
    match block.mbarriers.unfinished() {
        Some((who, site, count)) => Err(copies(who, site, count)),
        None => cluster::end(block),
    }
}

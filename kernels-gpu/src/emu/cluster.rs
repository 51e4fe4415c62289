//! Clusters: the blocks' shared memory for each other, and the barrier that they have in common.
//!
//! As on the hardware, an address has the block's rank in its high bits, that of the own block, too. A block reaches
//! another's memory only when something that the other did is ordered before: then it has started. When a block ends, every
//! access of other blocks' threads must be ordered before, so it does not matter who comes first in a run.

use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::Location;
use std::rc::Rc;

use super::block::{Block, Blocked, Fences, Parts};
use super::clock::Stamp;
use super::cluster_fault::Cluster;
use super::fault::Fault;
use super::knowledge::Knowledge;
use super::machine::{ALL, Machine, Who};
use super::shared::{RANK_SHIFT, WINDOW};
use super::site::{self, Site};
use super::warp::{Meeting, collective};

/// Most blocks of a cluster that every GPU with clusters runs.
pub(super) const MOST_BLOCKS: u32 = 8;

/// The last access of each thread of other blocks, by block, warp and lane.
pub(super) type Visits = HashMap<(u32, u8, u8), Stamp>;

/// `%cluster_ctarank`
pub(crate) fn rank() -> u32 {
    let machine = Machine::current();
    machine.current.get().block % machine.launch.cluster
}

/// `%cluster_nctarank`
pub(crate) fn size() -> u32 {
    Machine::current().launch.cluster
}

/// `mapa`
#[track_caller]
pub(crate) fn mapa(instruction: &'static str, address: u32, rank: u32) -> u32 {
    let machine = Machine::current();
    let site = site::intern(instruction, Location::caller());
    let found = slot(machine, site, rank).map(|_| with_rank(address, rank));
    machine.settle(found, 0)
}

/// The same place in the shared memory of the block with this rank.
pub(super) fn with_rank(address: u32, rank: u32) -> u32 {
    address & WINDOW | rank << RANK_SHIFT
}

/// The rank of the block in whose shared memory an address is.
pub(super) fn rank_of(address: u32) -> u32 {
    address >> RANK_SHIFT
}

/// The slot of the block with this rank in the running thread's cluster.
fn slot(machine: &Machine, site: Site, rank: u32) -> Result<usize, Fault> {
    let who = machine.current.get();
    let blocks = machine.launch.cluster;
    if rank >= blocks {
        return Err(Cluster::NoSuchRank {
            access: who.access(site),
            rank,
            blocks,
        }
        .into());
    }
    Ok(who.slot - who.slot % blocks as usize + rank as usize)
}

/// The running thread accesses the shared memory of the block at whose address this is, its own or another's of the cluster.
/// `act` gets the block's slot.
pub(super) fn access<R>(
    machine: &Machine,
    site: Site,
    address: u32,
    act: impl FnOnce(usize, Parts) -> Result<R, Fault>,
) -> Result<R, Fault> {
    let who = machine.current.get();
    let visit = |slot, parts: Parts| {
        let stamp = parts.actor.stamp;
        act(slot, parts).map(|result| (slot, stamp, result))
    };
    let (slot, stamp, result) = reach(machine, site, address, visit)?;
    if slot != who.slot {
        let mut peer = machine.blocks[slot].borrow_mut();
        let thread = (stamp.block, stamp.warp, stamp.lane);
        peer.visits.insert(thread, stamp);
    }
    Ok(result)
}

/// The same for the copy engine, whose access is over when the block to which it goes has waited for it.
pub(super) fn reach<R>(
    machine: &Machine,
    site: Site,
    address: u32,
    act: impl FnOnce(usize, Parts) -> Result<R, Fault>,
) -> Result<R, Fault> {
    let who = machine.current.get();
    let slot = slot(machine, site, rank_of(address))?;
    let mut own = machine.blocks[who.slot].borrow_mut();
    if slot == who.slot {
        return act(slot, own.parts(who, site));
    }
    let actor = own.parts(who, site).actor;
    let mut peer = machine.blocks[slot].borrow_mut();
    let peer = &mut *peer;
    let (access, block) = (actor.access(), peer.index);
    if peer.live_warps == 0 {
        return Err(Cluster::Ended { access, block }.into());
    }
    if !actor.knows_of(block) {
        return Err(Cluster::NotStarted { access, block }.into());
    }
    let parts = Parts {
        actor,
        shared: &mut peer.shared,
        fences: Fences {
            block,
            lanes: &peer.lanes,
        },
        mbarriers: &mut peer.mbarriers,
    };
    act(slot, parts)
}

/// All threads of a block have left: what other blocks' threads did here, and the copies from here, must be over.
pub(super) fn end(block: &Block) -> Result<(), Fault> {
    let knows = |stamp: &Stamp| {
        let acquired = block.lanes.iter().flat_map(|lane| &lane.acquired);
        let over = acquired.clone().map(|acquired| acquired.over());
        let mut over = over.chain(block.warps.iter().map(|warp| warp.known.over()));
        block.warps.iter().any(|warp| warp.known.covers(stamp))
            || acquired.clone().any(|acquired| acquired.covers(stamp))
            || over.any(|over| over.is_some_and(|over| over.covers(stamp)))
    };
    if let Some(visit) = block.visits.values().find(|visit| !knows(visit)) {
        return Err(Cluster::Ended {
            access: visit.access(),
            block: block.index,
        }
        .into());
    }
    let is_over = |landed: &Option<Stamp>| landed.is_some_and(|landed| knows(&landed));
    match block.shared.sent().find(|sent| !is_over(&sent.landed)) {
        Some(sent) => Err(Cluster::EndedSending {
            copy: sent.issued.access(),
        }
        .into()),
        None => Ok(()),
    }
}

/// The barrier of a cluster: warps come to it, and wait for it later.
#[derive(Default)]
pub(super) struct Barrier {
    phase: u32,
    /// Warps that have not ended.
    expected: u32,
    /// Those of them that have come.
    arrived: u32,
    /// What they know.
    arriving: Knowledge,
    /// What those of the phase before knew.
    released: Rc<Knowledge>,
}

impl Barrier {
    /// For a cluster of so many warps that starts.
    pub fn of_warps(expected: u32) -> Barrier {
        Barrier {
            expected,
            ..Barrier::default()
        }
    }

    /// What would let those who wait go on.
    pub fn until(&self) -> String {
        format!(
            "the cluster's barrier, where {} of {} warps have come",
            self.arrived, self.expected
        )
    }

    /// Whether this phase is over: if so, the next one begins.
    fn turn(&mut self) -> bool {
        if self.arrived < self.expected || self.expected == 0 {
            return false;
        }
        self.phase += 1;
        self.arrived = 0;
        self.released = Rc::new(std::mem::take(&mut self.arriving));
        true
    }
}

/// The barrier of the cluster in which a slot is.
pub(super) fn barrier(machine: &Machine, slot: usize) -> &RefCell<Barrier> {
    &machine.clusters[slot / machine.launch.cluster as usize]
}

/// `barrier.cluster.arrive`
#[track_caller]
pub(crate) fn arrive(instruction: &'static str) {
    let machine = Machine::current();
    let [] = collective(instruction, [], |block, who, at| {
        block.meet(who.warp);
        let mut barrier = barrier(machine, who.slot).borrow_mut();
        let warp = &mut block.warps[who.warp];
        if warp.cluster_phase.is_some() {
            let access = who.access(site::intern(instruction, at));
            return Err(Cluster::ArrivedTwice { access }.into());
        }
        warp.cluster_phase = Some(barrier.phase);
        let given = warp
            .known
            .release_warp(block.index, who.warp, warp.now.clock);
        warp.advance();
        barrier.arriving.join(&given);
        barrier.arrived += 1;
        if barrier.turn() {
            wake_all(machine, &barrier, block, who.slot);
        }
        Ok(Meeting::Over)
    });
}

/// `barrier.cluster.wait`
#[track_caller]
pub(crate) fn wait(instruction: &'static str) {
    let machine = Machine::current();
    let [] = collective(instruction, [], |block, who, at| {
        block.meet(who.warp);
        let barrier = barrier(machine, who.slot).borrow();
        match block.warps[who.warp].cluster_phase {
            None => {
                let access = who.access(site::intern(instruction, at));
                Err(Cluster::NotArrived { access }.into())
            }
            Some(phase) if phase == barrier.phase => {
                block.warps[who.warp].blocked = Some(Blocked::Cluster);
                Ok(Meeting::Blocked)
            }
            Some(_) => {
                learn(&barrier, block, who.warp);
                Ok(Meeting::Over)
            }
        }
    });
}

/// A warp has waited.
fn learn(barrier: &Barrier, block: &mut Block, warp: usize) {
    let state = &mut block.warps[warp];
    state.cluster_phase = None;
    state.known.learn(block.index, &barrier.released);
}

/// A phase is over: the warps that wait for it go on. `own` is the block in this slot.
fn wake_all(machine: &Machine, barrier: &Barrier, own: &mut Block, slot: usize) {
    let blocks = machine.launch.cluster as usize;
    let first = slot - slot % blocks;
    for other in first..first + blocks {
        match other == slot {
            true => wake_block(machine, barrier, own, slot),
            false => {
                let mut block = machine.blocks[other].borrow_mut();
                wake_block(machine, barrier, &mut block, other);
            }
        }
    }
    machine.progress();
}

fn wake_block(machine: &Machine, barrier: &Barrier, block: &mut Block, slot: usize) {
    for warp in 0..block.warps.len() {
        if block.warps[warp].blocked == Some(Blocked::Cluster) {
            block.warps[warp].blocked = None;
            learn(barrier, block, warp);
            machine.wake(slot, block, warp, ALL);
        }
    }
}

/// A thread has left: nobody waits for it any more.
pub(super) fn leave(machine: &Machine, block: &mut Block, who: Who) {
    let warp = &block.warps[who.warp];
    if warp.exited != ALL {
        return;
    }
    let mut barrier = barrier(machine, who.slot).borrow_mut();
    barrier.expected -= 1;
    if warp.cluster_phase == Some(barrier.phase) {
        barrier.arrived -= 1;
    }
    if barrier.turn() {
        wake_all(machine, &barrier, block, who.slot);
    }
}

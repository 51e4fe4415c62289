//! `cp.async`: copies that take effect at a random moment between their issue and the wait for them.
//!
//! Until the thread that issued a copy has waited for its group, any access to its destination is a fault, whatever
//! the moment at which the bytes arrive: a wait that is missing or counts wrongly shows under every seed.

use std::collections::VecDeque;
use std::panic::Location;

use super::fault::{Fault, Kind};
use super::machine::{LANES, Machine, Who};
use super::memory::Strength;
use super::site::{self, Site};

/// The most bytes of a copy.
const MOST_BYTES: usize = 16;

/// An instruction that copies.
#[derive(Clone, Copy)]
pub(crate) struct Instruction {
    pub(crate) name: &'static str,
    /// Bytes of a copy: what lies behind those that are read becomes 0.
    pub(crate) bytes: u32,
}

struct Copy {
    /// Offset into shared memory.
    offset: usize,
    bytes: u32,
    src: u64,
    src_bytes: u32,
    group: u64,
    site: Site,
    landed: bool,
}

/// The copies of one thread that it has not waited for.
#[derive(Default)]
pub(super) struct Copies {
    unfinished: VecDeque<Copy>,
    /// Groups committed so far; the open group has this number.
    committed: u64,
}

impl Copies {
    /// How many there are, and where the oldest was issued.
    pub fn unfinished(&self) -> Option<(u32, Site)> {
        self.unfinished
            .front()
            .map(|copy| (self.unfinished.len() as u32, copy.site))
    }
}

/// `cp.async.….shared.global [dst], [src], bytes, src_bytes`
#[track_caller]
pub(crate) fn issue(instruction: Instruction, dst: u32, src: u64, src_bytes: u32) {
    let machine = Machine::current();
    let site = site::intern(instruction.name, Location::caller());
    let who = machine.current.get();
    let issued = try_issue(machine, who, site, instruction.bytes, dst, src, src_bytes);
    machine.settle(issued, ());
    land_some(machine, who);
}

fn try_issue(
    machine: &Machine,
    who: Who,
    site: Site,
    bytes: u32,
    dst: u32,
    src: u64,
    src_bytes: u32,
) -> Result<(), Fault> {
    if src_bytes > bytes {
        let (access, what) = (who.access(site), "no more bytes are read than copied");
        return Err(Kind::Operand {
            access,
            what,
            value: src_bytes,
        }
        .into());
    }
    let mut block = machine.blocks[who.slot].borrow_mut();
    let (actor, shared) = block.actor(who, site);
    if src_bytes > 0 {
        let mut buffers = machine.buffers.borrow_mut();
        buffers.align(&actor, src, bytes)?;
        buffers.read(&actor, src, src_bytes, Strength::Plain)?;
    }
    let offset = shared.begin_copy(&actor, dst, bytes)?;
    shared.poison(offset, bytes as usize);
    let copies = &mut block.lanes[who.warp * LANES + who.lane].copies;
    let group = copies.committed;
    copies.unfinished.push_back(Copy {
        offset,
        bytes,
        src,
        src_bytes,
        group,
        site,
        landed: false,
    });
    Ok(())
}

/// `cp.async.commit_group`
#[track_caller]
pub(crate) fn commit() {
    let machine = Machine::current();
    let who = machine.current.get();
    machine.blocks[who.slot].borrow_mut().lanes[who.warp * LANES + who.lane]
        .copies
        .committed += 1;
    land_some(machine, who);
}

/// `cp.async.wait_group newest`
#[track_caller]
pub(crate) fn wait(newest: u32) {
    let machine = Machine::current();
    let who = machine.current.get();
    let mut block = machine.blocks[who.slot].borrow_mut();
    let index = who.warp * LANES + who.lane;
    loop {
        let copies = &mut block.lanes[index].copies;
        let done = copies.committed.saturating_sub(u64::from(newest));
        let Some(mut copy) = copies.unfinished.pop_front_if(|copy| copy.group < done) else {
            break;
        };
        move_bytes(machine, &mut block.shared, &mut copy);
        let (actor, shared) = block.actor(who, copy.site);
        shared.land(&actor.stamp, copy.offset, copy.bytes);
    }
}

/// Copies may arrive before they are waited for, in any order.
fn land_some(machine: &Machine, who: Who) {
    if !machine.chance(4) {
        return;
    }
    let mut block = machine.blocks[who.slot].borrow_mut();
    let block = &mut *block;
    let copies = &mut block.lanes[who.warp * LANES + who.lane].copies;
    let count = copies.unfinished.len() as u64;
    if count > 0 {
        let copy = &mut copies.unfinished[(machine.draw() % count) as usize];
        move_bytes(machine, &mut block.shared, copy);
    }
}

fn move_bytes(machine: &Machine, shared: &mut super::shared::Shared, copy: &mut Copy) {
    if !copy.landed {
        let mut bytes = [0; MOST_BYTES];
        machine
            .buffers
            .borrow()
            .load(copy.src, &mut bytes[..copy.src_bytes as usize]);
        shared.fill(copy.offset, &bytes[..copy.bytes as usize]);
        copy.landed = true;
    }
}

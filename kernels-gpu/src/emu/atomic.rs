//! Atomic accesses of global memory, what they release and what they acquire.

use std::collections::hash_map::Entry;
use std::panic::Location;
use std::rc::Rc;

use super::fault::Fault;
use super::knowledge::{self, Knowledge};
use super::machine::{LANES, Machine, Who};
use super::memory::Strength;
use super::site::{self, Site};

/// Bytes of an atomic access.
const BYTES: u32 = 4;

/// What an access orders besides itself.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Nothing, except through a fence of the same thread.
    Relaxed,
    /// A load: what was released at its address comes before it.
    Acquire,
    /// A store: what this thread did comes before it.
    Release,
}

/// `ld.relaxed`, `ld.acquire`: others run first, so that a loop around it is no prison.
#[track_caller]
pub(crate) fn load(instruction: &'static str, addr: u64, order: Order) -> u32 {
    let machine = Machine::current();
    let site = site::intern(instruction, Location::caller());
    machine.spin(site);
    let who = machine.current.get();
    let loaded = try_load(machine, who, site, addr, order);
    let value = machine.settle(loaded, 0);
    let mut block = machine.blocks[who.slot].borrow_mut();
    let last = &mut block.lanes[who.warp * LANES + who.lane].loaded;
    if *last != (addr, value) {
        *last = (addr, value);
        machine.progress();
    }
    value
}

fn try_load(
    machine: &Machine,
    who: Who,
    site: Site,
    addr: u64,
    order: Order,
) -> Result<u32, Fault> {
    check(machine, who, site, addr, Access::Load)?;
    acquire(machine, who, addr, order);
    Ok(peek(machine, addr))
}

/// `st.release`
#[track_caller]
pub(crate) fn store(instruction: &'static str, addr: u64, order: Order, value: u32) {
    let machine = Machine::current();
    let site = site::intern(instruction, Location::caller());
    machine.spin(site);
    let who = machine.current.get();
    let stored = check(machine, who, site, addr, Access::Store).map(|()| {
        machine.released.borrow_mut().remove(&addr);
        release(machine, who, site, addr, order);
        machine
            .buffers
            .borrow_mut()
            .store(addr, &value.to_le_bytes());
    });
    machine.settle(stored, ());
    machine.progress();
}

/// `atom`, `red`: replaces the number by `change` of it; what it was.
#[track_caller]
pub(crate) fn update(
    instruction: &'static str,
    addr: u64,
    order: Order,
    change: impl FnOnce(u32) -> u32,
) -> u32 {
    let machine = Machine::current();
    let site = site::intern(instruction, Location::caller());
    machine.spin(site);
    let who = machine.current.get();
    let updated = check(machine, who, site, addr, Access::Update).map(|()| {
        acquire(machine, who, addr, Order::Relaxed);
        release(machine, who, site, addr, order);
        let old = peek(machine, addr);
        let new = change(old);
        machine.buffers.borrow_mut().store(addr, &new.to_le_bytes());
        if new != old {
            machine.progress();
        }
        old
    });
    machine.settle(updated, 0)
}

/// `red.add.v4.f32`: four additions, each atomic by itself.
#[track_caller]
pub(crate) fn add_f32x4(instruction: &'static str, addr: u64, x: [f32; 4]) {
    let machine = Machine::current();
    let site = site::intern(instruction, Location::caller());
    let who = machine.current.get();
    let aligned = {
        let mut block = machine.blocks[who.slot].borrow_mut();
        let (actor, _) = block.actor(who, site);
        machine.buffers.borrow().align(&actor, addr, 4 * BYTES)
    };
    machine.settle(aligned, ());
    for (addr, x) in (addr..).step_by(BYTES as usize).zip(x) {
        update(instruction, addr, Order::Relaxed, |old| {
            (f32::from_bits(old) + x).to_bits()
        });
    }
}

/// `fence.acq_rel`
#[track_caller]
pub(crate) fn fence(instruction: &'static str) {
    let machine = Machine::current();
    let site = site::intern(instruction, Location::caller());
    let who = machine.current.get();
    let mut block = machine.blocks[who.slot].borrow_mut();
    let index = who.warp * LANES + who.lane;
    if let Some(pending) = block.lanes[index].pending.take() {
        block.acquire(who, &pending);
    }
    let given = block.actor(who, site).0.release();
    let lane = &mut block.lanes[index];
    lane.fenced = Some(Box::new(given));
    block.warps[who.warp].advance_sub();
}

enum Access {
    Load,
    Store,
    Update,
}

fn check(machine: &Machine, who: Who, site: Site, addr: u64, access: Access) -> Result<(), Fault> {
    let mut block = machine.blocks[who.slot].borrow_mut();
    let (actor, _) = block.actor(who, site);
    let mut buffers = machine.buffers.borrow_mut();
    buffers.align(&actor, addr, BYTES)?;
    if !matches!(access, Access::Store) {
        buffers.read(&actor, addr, BYTES, Strength::Atomic)?;
    }
    if !matches!(access, Access::Load) {
        buffers.write(&actor, addr, BYTES, Strength::Atomic)?;
    }
    Ok(())
}

fn peek(machine: &Machine, addr: u64) -> u32 {
    let mut bytes = [0; BYTES as usize];
    machine.buffers.borrow().load(addr, &mut bytes);
    u32::from_le_bytes(bytes)
}

/// What was released at this address becomes known: at once, or at the next fence.
fn acquire(machine: &Machine, who: Who, addr: u64, order: Order) {
    let released = machine.released.borrow();
    let Some(knowledge) = released.get(&addr) else {
        return;
    };
    let mut block = machine.blocks[who.slot].borrow_mut();
    if order == Order::Acquire {
        block.acquire(who, knowledge);
    } else {
        let lane = &mut block.lanes[who.warp * LANES + who.lane];
        knowledge::share(&mut lane.pending, knowledge);
    }
}

/// What this thread knows, or knew at its last fence, can be acquired at this address.
fn release(machine: &Machine, who: Who, site: Site, addr: u64, order: Order) {
    let mut block = machine.blocks[who.slot].borrow_mut();
    let index = who.warp * LANES + who.lane;
    let given: Knowledge = if order == Order::Release {
        let given = block.actor(who, site).0.release();
        block.warps[who.warp].advance_sub();
        given
    } else if let Some(fenced) = &block.lanes[index].fenced {
        (**fenced).clone()
    } else {
        return;
    };
    match machine.released.borrow_mut().entry(addr) {
        Entry::Vacant(entry) => {
            entry.insert(Rc::new(given));
        }
        Entry::Occupied(mut entry) => Rc::make_mut(entry.get_mut()).join(&given),
    }
}

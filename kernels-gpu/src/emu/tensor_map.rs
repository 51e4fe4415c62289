//! Tensor maps: where the copy engine finds them, and those that kernels make.
//!
//! Among a kernel's parameters a map needs nothing. In global memory it is read by a proxy of its own, whoever wrote it: a
//! thread that writes one, or comes after who wrote it, releases it by a fence, and the thread that has the copy engine use
//! it acquires it by another, after the first. The fences are wanted even if a kernel that has ended wrote the map.

use std::panic::Location;
use std::rc::Rc;

use super::asynchronous::Asynchronous;
use super::block::Actor;
use super::clock::Stamp;
use super::fault::{Fault, Kind};
use super::knowledge::Knowledge;
use super::machine::{LANES, Machine};
use super::memory::Strength;
use super::proxy::{self, Proxy};
use super::site;
use crate::params::TensorMap;

/// Bytes of a map, and what one in global memory is aligned to.
const BYTES: u32 = size_of::<TensorMap>() as u32;
/// The dimension of a map's rows.
const ROWS: usize = 1;

/// What had been released of tensor maps at a moment, as far as a thread knew.
#[derive(Clone, Default)]
pub(super) struct Released(Vec<Rc<Knowledge>>);

impl Released {
    /// What a thread knows now.
    pub fn known_to(actor: &Actor) -> Released {
        let known = actor.published(Proxy::TensorMap);
        Released(known.into_iter().flatten().cloned().collect())
    }

    pub fn covers(&self, write: &Stamp) -> bool {
        self.0.iter().any(|known| known.covers(write))
    }

    /// Whether there was any fence, which came after all that earlier launches wrote.
    pub fn is_any(&self) -> bool {
        !self.0.is_empty()
    }
}

/// A map in global memory that a thread has acquired.
pub(super) struct AcquiredMap {
    pub address: u64,
    pub released: Released,
}

/// What a map lacks that is to be used: of the write that made it so, if that was in this launch.
pub(super) enum Lacks {
    /// A fence after the write that releases it.
    Release(Option<Stamp>),
    /// A fence after that one by which the thread acquires it.
    Acquire(Option<Stamp>),
}

impl Lacks {
    fn fault(self, actor: &Actor, machine: &Machine, address: u64) -> Fault {
        let (writer, fence) = match self {
            Lacks::Release(writer) => (writer, "fence.proxy.tensormap release"),
            Lacks::Acquire(writer) => (writer, "fence.proxy.tensormap acquire"),
        };
        Asynchronous::TensorMapUnfenced {
            access: actor.access(),
            writer: writer.map(|write| write.access()),
            fence,
            place: machine.buffers.borrow().place(address).0,
        }
        .into()
    }
}

/// A map that an instruction names.
#[derive(Clone, Copy)]
pub(super) struct Found {
    pub map: TensorMap,
    /// Where it lies, if in global memory.
    pub address: Option<u64>,
}

/// The map at an address, which the copy engine is to use for this thread.
pub(super) fn find(machine: &Machine, actor: &Actor, address: u64) -> Result<Found, Fault> {
    if address == 0 || !address.is_multiple_of(align_of::<TensorMap>() as u64) {
        return Err(Kind::Operand {
            access: actor.access(),
            what: "the tensor map must be aligned and not at address 0",
            value: address as u32,
        }
        .into());
    }
    if !machine.buffers.borrow().holds(address) {
        // SAFETY: the instruction's contract: a tensor map lies at this address of the process, among the parameters
        // that the kernel borrows.
        let map = unsafe { *std::ptr::with_exposed_provenance::<TensorMap>(address as usize) };
        return Ok(Found { map, address: None });
    }
    let mut buffers = machine.buffers.borrow_mut();
    buffers.align(actor, address, BYTES)?;
    buffers.read(actor, address, BYTES, Strength::Plain)?;
    if let Some(lacks) = buffers.map_lacks(actor, address, BYTES) {
        drop(buffers);
        return Err(lacks.fault(actor, machine, address));
    }
    let mut bytes = [0; BYTES as usize];
    buffers.load(address, &mut bytes);
    let words = bytes.as_chunks().0;
    let map = TensorMap::from_driver(std::array::from_fn(|i| u64::from_le_bytes(words[i])));
    Ok(Found {
        map,
        address: Some(address),
    })
}

impl Found {
    /// The copy engine reads the map as long as the copy lasts, which leaves this stamp.
    pub fn keep(&self, machine: &Machine, actor: &Actor, trace: Stamp) -> Result<(), Fault> {
        let Some(address) = self.address else {
            return Ok(());
        };
        let engine = actor.by_engine(Proxy::TensorMap, trace);
        let mut buffers = machine.buffers.borrow_mut();
        buffers.read(&engine, address, BYTES, Strength::Plain)
    }
}

/// `tensormap.replace`: an access of the whole map that changes one number of it.
#[track_caller]
fn replace(
    instruction: &'static str,
    address: u64,
    offset: usize,
    number: impl FnOnce(&Actor) -> Result<u64, Fault>,
) {
    let machine = Machine::current();
    let site = site::intern(instruction, Location::caller());
    let who = machine.current.get();
    let replaced = (|| {
        let mut block = machine.blocks[who.slot].borrow_mut();
        let (actor, _) = block.actor(who, site);
        let number = number(&actor)?;
        let mut buffers = machine.buffers.borrow_mut();
        buffers.align(&actor, address, BYTES)?;
        buffers.read(&actor, address, BYTES, Strength::Plain)?;
        buffers.write(&actor, address, BYTES, Strength::Plain)?;
        buffers.store(address + offset as u64, &number.to_le_bytes());
        Ok(())
    })();
    machine.settle(replaced, ());
    machine.progress();
}

/// `tensormap.replace.tile.global_address`
#[track_caller]
pub(crate) fn replace_address(instruction: &'static str, map: u64, address: u64) {
    replace(
        instruction,
        map,
        std::mem::offset_of!(TensorMap, base),
        |_| Ok(address),
    );
}

/// `tensormap.replace.tile.global_dim` of the rows
#[track_caller]
pub(crate) fn replace_rows(instruction: &'static str, map: u64, rows: u32) {
    let offset = std::mem::offset_of!(TensorMap, sizes) + ROWS * size_of::<u64>();
    replace(instruction, map, offset, |actor| match rows {
        0 => Err(Kind::Operand {
            access: actor.access(),
            what: "a tensor has at least one row",
            value: rows,
        }
        .into()),
        rows => Ok(rows.into()),
    });
}

/// `fence.proxy.tensormap::generic.release`
#[track_caller]
pub(crate) fn release(instruction: &'static str) {
    let machine = Machine::current();
    let site = site::intern(instruction, Location::caller());
    let who = machine.current.get();
    let mut block = machine.blocks[who.slot].borrow_mut();
    let given = proxy::fence(&mut block, who, site, Proxy::TensorMap);
    let mut released = machine.released_maps.borrow_mut();
    released.get_or_insert_default().join(&given);
}

/// `fence.proxy.tensormap::generic.acquire` of a map
#[track_caller]
pub(crate) fn acquire(instruction: &'static str, address: u64) {
    let machine = Machine::current();
    let site = site::intern(instruction, Location::caller());
    let who = machine.current.get();
    let mut block = machine.blocks[who.slot].borrow_mut();
    let (actor, _) = block.actor(who, site);
    let buffers = machine.buffers.borrow();
    let inside = buffers
        .align(&actor, address, BYTES)
        .and_then(|()| buffers.check_bounds(&actor, address, BYTES));
    let released = Released::known_to(&actor);
    drop(buffers);
    let maps = &mut block.lanes[who.warp * LANES + who.lane].maps;
    maps.retain(|map| map.address != address);
    maps.push(AcquiredMap { address, released });
    drop(block);
    machine.settle(inside, ());
}

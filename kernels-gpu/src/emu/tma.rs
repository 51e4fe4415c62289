//! The tensor memory accelerator's instructions: boxes of a tensor to and from shared memory, and bytes to it.
//!
//! All that orders a copy and the threads' accesses is checked when the copy is issued and over the whole time until it
//! has been waited for, so it does not matter at which moment of that time the bytes move ([`super::bulk`]).

use std::panic::Location;
use std::rc::Rc;

use super::block::{Actor, Parts};
use super::bulk::{MOST_WORD_BYTES, Moved, Region, Source, Step, Target};
use super::clock::MOST_STORERS;
use super::cluster::{self, rank_of, with_rank};
use super::cluster_fault::Cluster;
use super::fault::{Fault, Kind};
use super::knowledge::Knowledge;
use super::machine::{LANES, Machine};
use super::memory::Strength;
use super::proxy::{self, Proxy, Reach};
use super::shared::{Piece, Reader};
use super::site::{self, Site};
use super::tensor_map::{self, Found};

/// What a box in the 128-byte swizzle is aligned to.
const ALIGNMENT: u32 = 128;
/// Bytes after which the swizzle, which goes by addresses of shared memory, begins again.
const SWIZZLE_BYTES: u32 = 1024;
/// What bytes that lie side by side are aligned to, and a multiple of.
const BYTES_ALIGNMENT: u32 = 16;
/// Most rows, and most heads, of a box.
const MOST: u64 = 256;

/// The box of a tensor that `map` and `at` name, which is at `address` in shared memory, and where it found the map.
fn region(
    machine: &Machine,
    actor: &Actor,
    map: u64,
    at: [u32; 4],
    address: u32,
) -> Result<(Region, Found), Fault> {
    let wrong = |what, value: u64| {
        let access = actor.access();
        Err(Kind::Operand {
            access,
            what,
            value: value as u32,
        }
        .into())
    };
    let found = tensor_map::find(machine, actor, map)?;
    let map = found.map;
    if !(1..=MOST).contains(&map.box_rows) {
        return wrong("a box has between 1 and 256 rows", map.box_rows);
    }
    if ![1, 2, 4].contains(&map.element_bytes) {
        return wrong("elements have 1, 2 or 4 bytes", map.element_bytes);
    }
    if !(1..=MOST).contains(&map.box_heads) {
        return wrong("a box has between 1 and 256 heads", map.box_heads);
    }
    if let Some(bytes) = [map.base]
        .iter()
        .chain(&map.strides)
        .find(|bytes| !bytes.is_multiple_of(16))
    {
        return wrong("base and strides must be multiples of 16 bytes", *bytes);
    }
    if let Some(size) = map.sizes.iter().find(|size| !(1..=1 << 32).contains(*size)) {
        return wrong(
            "a tensor has between 1 and 2^32 elements in a dimension",
            *size,
        );
    }
    // A box that lies outside the tensor reads nothing, and yet an H200 reports an illegal access where the map's address is 0.
    let buffers = machine.buffers.borrow();
    buffers.check_bounds(actor, map.base, 1)?;
    let at = at.map(|x| i64::from(x as i32));
    let phase = address % SWIZZLE_BYTES;
    Ok((Region { map, at, phase }, found))
}

/// `cp.async.bulk.tensor` from global to shared memory
#[track_caller]
pub(crate) fn load(instruction: &'static str, to: u32, map: u64, at: [u32; 4], mbarrier: u32) {
    let machine = Machine::current();
    let site = site::intern(instruction, Location::caller());
    let begun = try_load(machine, site, (to, ALIGNMENT), mbarrier, |actor| {
        let (region, found) = region(machine, actor, map, at, to)?;
        Ok((Source::Box(region), Some(found)))
    });
    machine.settle(begun, ());
    machine.progress();
}

/// `cp.async.bulk` from global to shared memory
#[track_caller]
pub(crate) fn load_bytes(
    instruction: &'static str,
    to: u32,
    (from, bytes): (u64, u32),
    mbarrier: u32,
) {
    let machine = Machine::current();
    let site = site::intern(instruction, Location::caller());
    let begun = try_load(machine, site, (to, BYTES_ALIGNMENT), mbarrier, |actor| {
        check_bytes(actor, bytes)?;
        let buffers = machine.buffers.borrow();
        buffers.align(actor, from, BYTES_ALIGNMENT)?;
        Ok((Source::Bytes(from, bytes), None))
    });
    machine.settle(begun, ());
    machine.progress();
}

fn check_bytes(actor: &Actor, bytes: u32) -> Result<(), Fault> {
    if bytes.is_multiple_of(BYTES_ALIGNMENT) {
        return Ok(());
    }
    Err(Kind::Operand {
        access: actor.access(),
        what: "a multiple of 16 bytes is copied",
        value: bytes,
    }
    .into())
}

fn try_load(
    machine: &Machine,
    site: Site,
    (to, alignment): (u32, u32),
    mbarrier: u32,
    source: impl FnOnce(&Actor) -> Result<(Source, Option<Found>), Fault>,
) -> Result<(), Fault> {
    let who = machine.current.get();
    let mut block = machine.blocks[who.slot].borrow_mut();
    let parts = block.parts(who, site);
    let (source, map) = source(&parts.actor)?;
    begin_load(
        machine,
        site,
        who.slot,
        parts,
        (source, map),
        (to, alignment),
        mbarrier,
    )
}

/// A load to the block in a slot begins.
fn begin_load(
    machine: &Machine,
    site: Site,
    slot: usize,
    parts: Parts,
    (source, map): (Source, Option<Found>),
    (to, alignment): (u32, u32),
    mbarrier: u32,
) -> Result<(), Fault> {
    let Parts {
        actor,
        shared,
        fences,
        mbarriers,
    } = parts;
    let barrier = mbarriers.find_for_engine(&actor, fences, mbarrier)?;
    let bytes = source.bytes();
    let piece = Piece {
        addr: to,
        bytes,
        alignment,
    };
    let offset = shared.begin_bulk_copy(&actor, fences, piece)?;
    shared.poison(offset, bytes as usize);
    let (number, stamp) = barrier.begin_load(machine.current.get(), site);
    if let Some(map) = map {
        map.keep(machine, &actor, stamp)?;
    }
    let engine = actor.by_engine(Proxy::Async, stamp);
    let mut buffers = machine.buffers.borrow_mut();
    for (addr, bytes) in source.spans() {
        buffers.read(&engine, addr, bytes, Strength::Plain)?;
    }
    let step = Step::Load {
        source,
        offset,
        mbarrier: (mbarrier, number),
    };
    machine.engine.borrow_mut().push(slot, step);
    Ok(())
}

/// `cp.async.bulk.tensor` with `.multicast::cluster`
#[track_caller]
pub(crate) fn load_multicast(
    instruction: &'static str,
    to: u32,
    map: u64,
    at: [u32; 4],
    mbarrier: u32,
    blocks: u16,
) {
    let machine = Machine::current();
    let site = site::intern(instruction, Location::caller());
    let begun = try_load_multicast(machine, site, to, (map, at), mbarrier, blocks);
    machine.settle(begun, ());
    machine.progress();
}

fn try_load_multicast(
    machine: &Machine,
    site: Site,
    to: u32,
    (map, at): (u64, [u32; 4]),
    mbarrier: u32,
    blocks: u16,
) -> Result<(), Fault> {
    if blocks == 0 {
        let access = machine.current.get().access(site);
        return Err(Cluster::NoBlock { access }.into());
    }
    for rank in (0..u16::BITS).filter(|rank| blocks & 1 << rank != 0) {
        let (to, mbarrier) = (with_rank(to, rank), with_rank(mbarrier, rank));
        cluster::reach(machine, site, to, |slot, parts| {
            let (region, found) = region(machine, &parts.actor, map, at, to)?;
            let source = (Source::Box(region), Some(found));
            begin_load(
                machine,
                site,
                slot,
                parts,
                source,
                (to, ALIGNMENT),
                mbarrier,
            )
        })?;
    }
    Ok(())
}

/// `st.async` of `N` registers
#[track_caller]
pub(crate) fn store_words<const N: usize>(
    instruction: &'static str,
    to: u32,
    words: [u32; N],
    mbarrier: u32,
) {
    let machine = Machine::current();
    let site = site::intern(instruction, Location::caller());
    let mut bytes = [0; MOST_WORD_BYTES];
    for (bytes, word) in bytes.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    let n_bytes = (N * 4) as u32;
    let piece = Piece {
        addr: to,
        bytes: n_bytes,
        alignment: n_bytes,
    };
    let begun = begin_move(machine, site, piece, mbarrier, Moved::Words(bytes, n_bytes));
    machine.settle(begun, ());
    machine.progress();
}

/// `cp.async.bulk` from shared memory to that of a block of the cluster
#[track_caller]
pub(crate) fn store_cluster(
    instruction: &'static str,
    to: u32,
    from: u32,
    bytes: u32,
    mbarrier: u32,
) {
    let machine = Machine::current();
    let site = site::intern(instruction, Location::caller());
    let begun = try_store_cluster(machine, site, (to, from, bytes), mbarrier);
    machine.settle(begun, ());
    machine.progress();
}

fn try_store_cluster(
    machine: &Machine,
    site: Site,
    (to, from, bytes): (u32, u32, u32),
    mbarrier: u32,
) -> Result<(), Fault> {
    let who = machine.current.get();
    let piece = |addr| Piece {
        addr,
        bytes,
        alignment: BYTES_ALIGNMENT,
    };
    let offset = {
        let mut block = machine.blocks[who.slot].borrow_mut();
        let Parts {
            actor,
            shared,
            fences,
            ..
        } = block.parts(who, site);
        check_bytes(&actor, bytes)?;
        let number = machine.engine.borrow().next_number();
        shared.begin_sending(&actor, fences, piece(from), number)?
    };
    let moved = Moved::Shared(who.slot, offset, bytes);
    begin_move(machine, site, piece(to), mbarrier, moved)
}

/// A copy to the shared memory of a block of the cluster begins.
fn begin_move(
    machine: &Machine,
    site: Site,
    to: Piece,
    mbarrier: u32,
    bytes: Moved,
) -> Result<(), Fault> {
    let who = machine.current.get();
    cluster::reach(machine, site, to.addr, |slot, parts| {
        let Parts {
            actor,
            shared,
            fences,
            mbarriers,
        } = parts;
        if rank_of(mbarrier) != rank_of(to.addr) {
            let (access, block) = (actor.access(), fences.block);
            return Err(Cluster::MbarrierElsewhere { access, block }.into());
        }
        let barrier = mbarriers.find_for_engine(&actor, fences, mbarrier)?;
        let offset = match bytes {
            Moved::Words(..) => shared.begin_store(&actor, to)?,
            Moved::Shared(..) => shared.begin_bulk_copy(&actor, fences, to)?,
        };
        shared.poison(offset, to.bytes as usize);
        let (number, _) = barrier.begin_load(who, site);
        let step = Step::Move {
            bytes,
            offset,
            mbarrier: (mbarrier, number),
        };
        machine.engine.borrow_mut().push(slot, step);
        Ok(())
    })
}

/// `cp.async.bulk.tensor` from shared to global memory
#[track_caller]
pub(crate) fn store(instruction: &'static str, map: u64, at: [u32; 4], from: u32) {
    let machine = Machine::current();
    let site = site::intern(instruction, Location::caller());
    let begun = try_store(machine, site, (from, ALIGNMENT), |actor| {
        let (region, found) = region(machine, actor, map, at, from)?;
        Ok((Target::Box(region), Some(found)))
    });
    machine.settle(begun, ());
    machine.progress();
}

/// `cp.async.bulk` from shared to global memory
#[track_caller]
pub(crate) fn store_bytes(instruction: &'static str, to: u64, from: u32, bytes: u32) {
    store_linear(instruction, Target::Bytes(to, bytes), from);
}

/// `cp.reduce.async.bulk` from shared to global memory, which adds f32
#[track_caller]
pub(crate) fn add_bytes(instruction: &'static str, to: u64, from: u32, bytes: u32) {
    store_linear(instruction, Target::Sums(to, bytes), from);
}

#[track_caller]
fn store_linear(instruction: &'static str, target: Target, from: u32) {
    let machine = Machine::current();
    let site = site::intern(instruction, Location::caller());
    let begun = try_store(machine, site, (from, BYTES_ALIGNMENT), |actor| {
        check_bytes(actor, target.bytes())?;
        for (to, _) in target.spans() {
            machine.buffers.borrow().align(actor, to, BYTES_ALIGNMENT)?;
        }
        Ok((target, None))
    });
    machine.settle(begun, ());
    machine.progress();
}

fn try_store(
    machine: &Machine,
    site: Site,
    (from_address, alignment): (u32, u32),
    target: impl FnOnce(&Actor) -> Result<(Target, Option<Found>), Fault>,
) -> Result<(), Fault> {
    let who = machine.current.get();
    let index = who.warp * LANES + who.lane;
    let mut block = machine.blocks[who.slot].borrow_mut();
    let mut storers = block.storers;
    let stamp = block.parts(who, site).actor.stamp;
    let trace = block.lanes[index].stores.next_stamp(&mut storers, stamp);
    block.storers = storers;
    let Parts {
        actor,
        shared,
        fences,
        ..
    } = block.parts(who, site);
    if storers > MOST_STORERS {
        return Err(Kind::Operand {
            access: actor.access(),
            what: "no more than 12 threads of a block that store are modelled",
            value: storers as u32,
        }
        .into());
    }
    let (target, map) = target(&actor)?;
    let piece = Piece {
        addr: from_address,
        bytes: target.bytes(),
        alignment,
    };
    let offset = shared.locate(&actor, piece)?;
    for (from, bytes) in target.pieces() {
        let piece = Piece {
            addr: from_address + from as u32,
            bytes: bytes as u32,
            alignment: 1,
        };
        shared.begin_reading(&actor, fences, Reader::Engine, piece)?;
    }
    if let Some(map) = map {
        map.keep(machine, &actor, trace)?;
    }
    let engine = actor.by_engine(Proxy::Async, trace);
    let mut buffers = machine.buffers.borrow_mut();
    for (addr, bytes) in target.spans() {
        if let Target::Sums(..) = target {
            buffers.read(&engine, addr, bytes, Strength::Atomic)?;
            buffers.write(&engine, addr, bytes, Strength::Atomic)?;
        } else {
            buffers.write(&engine, addr, bytes, Strength::Plain)?;
        }
    }
    let mut engine = machine.engine.borrow_mut();
    let number = engine.push(who.slot, Step::Read { target, offset });
    block.lanes[index].stores.push(number, site, target, offset);
    Ok(())
}

/// `cp.async.bulk.commit_group`
#[track_caller]
pub(crate) fn commit_group(_: &'static str) {
    let machine = Machine::current();
    let who = machine.current.get();
    machine.blocks[who.slot].borrow_mut().lanes[who.warp * LANES + who.lane]
        .stores
        .commit();
}

/// `cp.async.bulk.wait_group.read newest`
#[track_caller]
pub(crate) fn wait_group_read(instruction: &'static str, newest: u32) {
    let machine = Machine::current();
    let site = site::intern(instruction, Location::caller());
    end_reading(machine, site, newest);
}

fn end_reading(machine: &Machine, site: Site, newest: u32) {
    let who = machine.current.get();
    let mut block = machine.blocks[who.slot].borrow_mut();
    let done = block.lanes[who.warp * LANES + who.lane]
        .stores
        .take_read(newest);
    for store in done {
        let mut engine = machine.engine.borrow_mut();
        engine.read(store.number, &block.shared);
        let Parts { actor, shared, .. } = block.parts(who, site);
        for (from, bytes) in store.target.pieces() {
            let offset = store.offset + from;
            shared.end_reading(Reader::Engine, offset, bytes as u32, &actor.stamp);
        }
    }
}

/// `cp.async.bulk.wait_group newest`
#[track_caller]
pub(crate) fn wait_group(instruction: &'static str, newest: u32) {
    let machine = Machine::current();
    let site = site::intern(instruction, Location::caller());
    end_reading(machine, site, newest);
    let who = machine.current.get();
    let mut block = machine.blocks[who.slot].borrow_mut();
    let index = block.index;
    let lane = &mut block.lanes[who.warp * LANES + who.lane];
    let done = lane.stores.take_written(newest);
    let (Some(last), Some(storer)) = (done.last(), lane.stores.lane()) else {
        return;
    };
    let mut written = Knowledge::default();
    written.join_engine(index, storer, last.count);
    block.acquire(who, &Rc::new(written));
    let (mut engine, mut buffers) = (machine.engine.borrow_mut(), machine.buffers.borrow_mut());
    for store in done {
        engine.write(store.number, &mut buffers);
    }
}

/// `fence.proxy.async.global`
#[track_caller]
pub(crate) fn fence_proxy_async_global(instruction: &'static str) {
    let machine = Machine::current();
    let site = site::intern(instruction, Location::caller());
    let who = machine.current.get();
    let mut block = machine.blocks[who.slot].borrow_mut();
    proxy::fence(&mut block, who, site, Proxy::Async);
}

/// `fence.proxy.async.shared::cta`
#[track_caller]
pub(crate) fn fence_proxy_async(instruction: &'static str) {
    fence_shared(instruction, Reach::Block);
}

/// `fence.proxy.async.shared::cluster`
#[track_caller]
pub(crate) fn fence_proxy_async_cluster(instruction: &'static str) {
    fence_shared(instruction, Reach::Cluster);
}

#[track_caller]
fn fence_shared(instruction: &'static str, reach: Reach) {
    let machine = Machine::current();
    let who = machine.current.get();
    let mut block = machine.blocks[who.slot].borrow_mut();
    let now = block.warps[who.warp].now;
    let lane = &mut block.lanes[who.warp * LANES + who.lane];
    lane.proxy_fences.push(now);
    if machine.launch.cluster > 1 {
        let site = site::intern(instruction, Location::caller());
        proxy::fence_shared(&mut block, who, site, reach);
    }
    block.warps[who.warp].advance_sub();
}

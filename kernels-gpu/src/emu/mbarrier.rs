//! Barriers in shared memory that count threads and the bytes of copies: `mbarrier`.
//!
//! An arrival releases what its thread knows and did, a copy that has landed what it wrote; who waits for the phase
//! acquires both. A wait looks at the parity of the current phase and at nothing else, as the hardware does.

use std::collections::BTreeMap;
use std::panic::Location;
use std::rc::Rc;

use super::asynchronous::Asynchronous;
use super::block::{Actor, Block, Parts};
use super::clock::{ENGINE, MOST_MBARRIERS, Stamp};
use super::cluster;
use super::fault::{Fault, Kind, MemoryLocation};
use super::knowledge::Knowledge;
use super::machine::{LANES, Machine, Who};
use super::shared::{BASE, WINDOW};
use super::site::{self, Site};

/// Most arrivals, and most bytes, that a phase counts.
const MOST: u32 = (1 << 20) - 1;

/// A copy that counts on a barrier and has not been waited for.
struct Load {
    number: u64,
    who: Who,
    site: Site,
    /// The phase on which its bytes counted.
    landed: Option<u32>,
}

/// A thread that waits.
struct Waiter {
    who: Who,
    site: Site,
}

/// One barrier.
pub(super) struct Mbarrier {
    /// Index of its block.
    block: u32,
    number: u8,
    count: u32,
    /// Arrivals that the phase lacks.
    pending: u32,
    /// Bytes that the phase lacks; negative when more have come than were expected so far.
    bytes: i64,
    phase: u32,
    init: Stamp,
    /// What the current phase releases.
    arriving: Knowledge,
    /// What phases that are over have released.
    released: Rc<Knowledge>,
    /// The same of threads of other blocks of the cluster.
    arriving_peers: Knowledge,
    released_peers: Rc<Knowledge>,
    waiting: Vec<Waiter>,
    loads: Vec<Load>,
    next_load: u64,
}

impl Mbarrier {
    /// Where those who arrived or landed left off: the next phase begins if this one lacks nothing. Who may go on.
    fn turn(&mut self) -> Vec<Waiter> {
        if self.pending > 0 || self.bytes != 0 {
            return Vec::new();
        }
        self.phase += 1;
        self.pending = self.count;
        Rc::make_mut(&mut self.released).join(&std::mem::take(&mut self.arriving));
        if !self.arriving_peers.is_empty() {
            let arriving = std::mem::take(&mut self.arriving_peers);
            Rc::make_mut(&mut self.released_peers).join(&arriving);
        }
        std::mem::take(&mut self.waiting)
    }

    fn is_over(&self, parity: u32) -> bool {
        self.phase & 1 != parity
    }

    /// A copy begins whose bytes will count here: its number, and the stamp of what it accesses.
    pub fn begin_load(&mut self, who: Who, site: Site) -> (u64, Stamp) {
        let number = self.next_load;
        self.next_load += 1;
        self.loads.push(Load {
            number,
            who,
            site,
            landed: None,
        });
        (number, self.engine_stamp(site))
    }

    /// An arrival, with so many bytes to wait for: who may go on.
    fn arrive(
        &mut self,
        actor: &Actor,
        place: MemoryLocation,
        n_bytes: u32,
        releases: Releases,
    ) -> Result<Vec<Waiter>, Fault> {
        let access = actor.access();
        if self.pending == 0 {
            return Err(Asynchronous::TooManyArrivals {
                access,
                place,
                count: self.count,
            }
            .into());
        }
        self.bytes += i64::from(n_bytes);
        if self.bytes > i64::from(MOST) {
            let (what, value) = ("a phase waits for at most 2^20 - 1 bytes", n_bytes);
            return Err(Kind::Operand {
                access,
                what,
                value,
            }
            .into());
        }
        let peers = actor.stamp.block != self.block;
        match releases {
            Releases::Reuse if peers => self.arriving.join(&actor.release().into_over()),
            Releases::All if peers => self.arriving_peers.join(&actor.release()),
            _ => self.arriving.join(&actor.release()),
        }
        self.pending -= 1;
        Ok(self.turn())
    }

    fn engine_stamp(&self, site: Site) -> Stamp {
        Stamp {
            block: self.block,
            clock: self.phase + 1,
            site,
            sub: 0,
            warp: ENGINE,
            lane: self.number,
        }
    }
}

/// The barriers of a block, by their addresses.
#[derive(Default)]
pub(super) struct Mbarriers {
    /// Index of the block.
    block: u32,
    barriers: BTreeMap<u32, Mbarrier>,
}

/// The place of an address of this block's shared memory, as told to a thread of that one.
fn place(block: u32, to: u32, address: u32) -> MemoryLocation {
    let offset = i64::from(address & WINDOW) - i64::from(BASE);
    match block == to {
        true => MemoryLocation::Shared(offset),
        false => MemoryLocation::Peer { block, offset },
    }
}

impl Mbarriers {
    /// None yet, of the block with this index.
    pub fn of_block(block: u32) -> Mbarriers {
        Mbarriers {
            block,
            barriers: BTreeMap::new(),
        }
    }

    fn place(&self, actor: &Actor, address: u32) -> MemoryLocation {
        place(self.block, actor.stamp.block, address)
    }

    /// The barrier at this address, if the thread knows that it was made.
    pub fn find(&mut self, actor: &Actor, address: u32) -> Result<&mut Mbarrier, Fault> {
        let place = self.place(actor, address);
        let Some(barrier) = self.barriers.get_mut(&address) else {
            let access = actor.access();
            return Err(Asynchronous::NoMbarrier { access, place }.into());
        };
        if !actor.sees(&barrier.init) {
            return Err(Kind::Race {
                earlier: barrier.init.access(),
                later: actor.access(),
                place,
            }
            .into());
        }
        Ok(barrier)
    }

    /// The same for the copy engine, which sees only barriers that were fenced.
    pub fn find_for_engine(
        &mut self,
        actor: &Actor,
        fences: super::block::Fences,
        address: u32,
    ) -> Result<&mut Mbarrier, Fault> {
        let place = self.place(actor, address);
        let barrier = self.find(actor, address)?;
        if !fences.publish_init(actor, &barrier.init) {
            return Err(Asynchronous::Unfenced {
                access: actor.access(),
                earlier: barrier.init.access(),
                fence: "fence.mbarrier_init",
                place,
            }
            .into());
        }
        Ok(barrier)
    }

    /// The first copy that nobody waited for, and how many there are.
    pub fn unfinished(&self) -> Option<(Who, Site, u32)> {
        let mut loads = self.barriers.values().flat_map(|barrier| &barrier.loads);
        let first = loads.next()?;
        Some((first.who, first.site, 1 + loads.count() as u32))
    }

    /// Who waits, where, and for what.
    pub fn waiting(&self) -> impl Iterator<Item = (Who, Site, String)> {
        self.barriers.iter().flat_map(|(address, barrier)| {
            let place = place(self.block, self.block, *address);
            let Mbarrier {
                phase,
                pending,
                bytes,
                ..
            } = barrier;
            barrier.waiting.iter().map(move |Waiter { who, site }| {
                let until = format!(
                    "the end of phase {phase} of the mbarrier at {place}, which lacks {pending} arrivals and {bytes} bytes"
                );
                (*who, *site, until)
            })
        })
    }
}

/// `mbarrier.init`
#[track_caller]
pub(crate) fn init(instruction: &'static str, address: u32, count: u32) {
    let machine = Machine::current();
    let site = site::intern(instruction, Location::caller());
    let who = machine.current.get();
    let mut block = machine.blocks[who.slot].borrow_mut();
    let made = try_init(block.parts(who, site), address, count);
    drop(block);
    machine.settle(made, ());
}

fn try_init(parts: Parts, address: u32, count: u32) -> Result<(), Fault> {
    let Parts {
        actor,
        shared,
        mbarriers,
        ..
    } = parts;
    let wrong = |what, value| {
        let access = actor.access();
        Kind::Operand {
            access,
            what,
            value,
        }
    };
    if count == 0 || count > MOST {
        return Err(wrong("a phase has between 1 and 2^20 - 1 arrivals", count).into());
    }
    if let Some(earlier) = mbarriers.barriers.get(&address) {
        return Err(Asynchronous::MbarrierTouched {
            access: actor.access(),
            init: earlier.init.access(),
            place: mbarriers.place(&actor, address),
        }
        .into());
    }
    let number = mbarriers.barriers.len();
    if number >= MOST_MBARRIERS {
        return Err(wrong("no more than 240 mbarriers are modelled", number as u32).into());
    }
    shared.make_mbarrier(&actor, address)?;
    mbarriers.barriers.insert(
        address,
        Mbarrier {
            block: actor.stamp.block,
            number: number as u8,
            count,
            pending: count,
            bytes: 0,
            phase: 0,
            init: actor.stamp,
            arriving: Knowledge::default(),
            released: Rc::default(),
            arriving_peers: Knowledge::default(),
            released_peers: Rc::default(),
            waiting: Vec::new(),
            loads: Vec::new(),
            next_load: 0,
        },
    );
    Ok(())
}

/// `fence.mbarrier_init`
#[track_caller]
pub(crate) fn fence_init(_: &'static str) {
    let machine = Machine::current();
    let who = machine.current.get();
    let mut block = machine.blocks[who.slot].borrow_mut();
    let now = block.warps[who.warp].now;
    let lane = &mut block.lanes[who.warp * LANES + who.lane];
    lane.init_fences.push(now);
    block.warps[who.warp].advance_sub();
}

/// `mbarrier.arrive`
#[track_caller]
pub(crate) fn arrive(instruction: &'static str, address: u32) {
    arrive_expect_tx(instruction, address, 0);
}

/// `mbarrier.arrive.expect_tx`
#[track_caller]
pub(crate) fn arrive_expect_tx(instruction: &'static str, address: u32, n_bytes: u32) {
    let machine = Machine::current();
    let site = site::intern(instruction, Location::caller());
    let arrived = try_arrive(machine, site, address, n_bytes);
    machine.settle(arrived, ());
}

fn try_arrive(machine: &Machine, site: Site, address: u32, n_bytes: u32) -> Result<(), Fault> {
    let who = machine.current.get();
    let mut block = machine.blocks[who.slot].borrow_mut();
    let Parts {
        actor, mbarriers, ..
    } = block.parts(who, site);
    let place = mbarriers.place(&actor, address);
    let woken = mbarriers
        .find(&actor, address)?
        .arrive(&actor, place, n_bytes, Releases::All)?;
    block.warps[who.warp].advance_sub();
    wake(machine, who.slot, &mut block, woken);
    Ok(())
}

/// What an arrival on a barrier of another block releases.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Releases {
    /// All that the thread did.
    All,
    /// The places that it accessed, to be overwritten.
    Reuse,
}

/// `mbarrier.arrive` on a barrier of any block of the cluster
#[track_caller]
pub(crate) fn arrive_cluster(instruction: &'static str, address: u32, releases: Releases) {
    let machine = Machine::current();
    let site = site::intern(instruction, Location::caller());
    let arrived = try_arrive_cluster(machine, site, address, releases);
    machine.settle(arrived, ());
}

fn try_arrive_cluster(
    machine: &Machine,
    site: Site,
    address: u32,
    releases: Releases,
) -> Result<(), Fault> {
    let who = machine.current.get();
    let arrive = |slot, parts: Parts| {
        let Parts {
            actor, mbarriers, ..
        } = parts;
        let place = mbarriers.place(&actor, address);
        let barrier = mbarriers.find(&actor, address)?;
        Ok((slot, barrier.arrive(&actor, place, 0, releases)?))
    };
    let (slot, woken) = cluster::access(machine, site, address, arrive)?;
    machine.blocks[who.slot].borrow_mut().warps[who.warp].advance_sub();
    wake(machine, slot, &mut machine.blocks[slot].borrow_mut(), woken);
    Ok(())
}

fn wake(machine: &Machine, slot: usize, block: &mut Block, woken: Vec<Waiter>) {
    for Waiter { who, .. } in woken {
        machine.wake(slot, block, who.warp, 1 << who.lane);
    }
    machine.progress();
}

/// A copy has landed, and its bytes count: the stamp of what it wrote.
pub(super) fn complete(
    machine: &Machine,
    slot: usize,
    block: &mut Block,
    (address, load): (u32, u64),
    n_bytes: u32,
) -> Option<Stamp> {
    let index = block.index;
    let barrier = block.mbarriers.barriers.get_mut(&address)?;
    let phase = barrier.phase;
    let load = barrier
        .loads
        .iter_mut()
        .find(|other| other.number == load)?;
    load.landed = Some(phase);
    let site = load.site;
    let stamp = barrier.engine_stamp(site);
    barrier
        .arriving
        .join_engine(index, barrier.number, stamp.clock);
    barrier.bytes -= i64::from(n_bytes);
    let woken = barrier.turn();
    wake(machine, slot, block, woken);
    Some(stamp)
}

/// Whose arrivals a wait acquires.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Those of threads of its own block.
    Block,
    /// Those of other blocks of the cluster, too.
    Cluster,
}

/// `mbarrier.try_wait.parity`, until it succeeds
#[track_caller]
pub(crate) fn wait(instruction: &'static str, address: u32, parity: u32, scope: Scope) {
    let machine = Machine::current();
    let site = site::intern(instruction, Location::caller());
    loop {
        let over = try_wait(machine, site, (address, parity), scope);
        if machine.settle(over, true) || std::thread::panicking() {
            return;
        }
        machine.suspend();
    }
}

/// Whether the phase is over; if not, the thread is one of those who wait.
fn try_wait(
    machine: &Machine,
    site: Site,
    (address, parity): (u32, u32),
    scope: Scope,
) -> Result<bool, Fault> {
    let who = machine.current.get();
    let mut block = machine.blocks[who.slot].borrow_mut();
    let block = &mut *block;
    let Parts {
        actor, mbarriers, ..
    } = block.parts(who, site);
    if parity > 1 {
        let (access, what) = (actor.access(), "a parity is 0 or 1");
        return Err(Kind::Operand {
            access,
            what,
            value: parity,
        }
        .into());
    }
    let barrier = mbarriers.find(&actor, address)?;
    if !barrier.is_over(parity) {
        barrier.waiting.push(Waiter { who, site });
        block.warps[who.warp].runnable &= !(1 << who.lane);
        return Ok(false);
    }
    let phase = barrier.phase;
    barrier
        .loads
        .retain(|load| load.landed.is_none_or(|landed| landed >= phase));
    let released = Rc::clone(&barrier.released);
    let peers = (scope == Scope::Cluster).then(|| Rc::clone(&barrier.released_peers));
    block.acquire(who, &released);
    if let Some(peers) = peers.filter(|peers| !peers.is_empty()) {
        block.acquire(who, &peers);
    }
    Ok(true)
}

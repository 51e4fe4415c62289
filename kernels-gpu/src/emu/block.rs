//! A resident block: its lanes, its warps, its barriers, and what each of them knows of memory.

use std::panic::Location;
use std::rc::Rc;

use super::barrier::Barrier;
use super::bulk::Stores;
use super::clock::{BY_STORE, Clock, ENGINE, MAX_WARPS, Stamp, TOGETHER, Time};
use super::cluster::Visits;
use super::copies::Copies;
use super::fault::Access;
use super::knowledge::{self, Knowledge};
use super::machine::{ALL, LANES, MOST_OPERANDS, MOST_RESULTS, Who};
use super::mbarrier::Mbarriers;
use super::proxy::Proxy;
use super::shared::Shared;
use super::site::Site;
use super::tensor_core::TensorCore;
use super::tensor_map::AcquiredMap;
use super::warpgroup::{Agreement, Pool};
use super::{Launch, Options};

/// What one thread carries besides its stack.
#[derive(Default)]
pub(super) struct Lane {
    pub copies: Copies,
    /// Its stores through the copy engine.
    pub stores: Stores,
    /// When it fenced what it wrote for the asynchronous proxy.
    pub proxy_fences: Vec<Time>,
    /// Tensor maps in global memory that it acquired.
    pub maps: Vec<AcquiredMap>,
    /// When it fenced barriers that it made.
    pub init_fences: Vec<Time>,
    /// What it acquired since its warp's lanes last met in memory.
    pub acquired: Option<Rc<Knowledge>>,
    /// What relaxed loads saw: acquired by the next fence.
    pub pending: Option<Rc<Knowledge>>,
    /// What the last fence lets later relaxed stores release.
    pub fenced: Option<Box<Knowledge>>,
    /// Where it spins, while its bit in [`Warp::spinning`] is set.
    pub spin: Site,
    /// Address and value of its last atomic load.
    pub loaded: (u64, u32),
}

/// A warp's lanes, where they are and what they know.
pub(super) struct Warp {
    /// Lanes that can go on.
    pub runnable: u32,
    /// Lanes that came to the collective at `at` and wait for the others.
    pub arrived: u32,
    /// Lanes that left the kernel.
    pub exited: u32,
    /// Lanes that look again and again at an address.
    pub spinning: u32,
    pub instruction: &'static str,
    pub at: &'static Location<'static>,
    /// Why the whole warp waits.
    pub blocked: Option<Blocked>,
    /// The phase of the cluster's barrier in which it has come, if it has not waited since.
    pub cluster_phase: Option<u32>,
    pub operands: [[u32; MOST_OPERANDS]; LANES],
    pub results: [[u32; MOST_RESULTS]; LANES],
    /// Advances where all lanes meet in memory, and with each lane's release.
    pub now: Time,
    pub known: Clock,
    /// Whether a lane acquired something that the warp has not taken over.
    pub acquiring: bool,
    /// Its products in flight.
    pub tensor_core: TensorCore,
}

/// What a whole warp waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Blocked {
    /// The barrier with this number.
    Barrier(u32),
    /// So many registers for each of its threads.
    Registers(u32),
    /// The cluster's barrier.
    Cluster,
}

impl Warp {
    #[track_caller]
    fn new() -> Warp {
        Warp {
            runnable: ALL,
            arrived: 0,
            exited: 0,
            spinning: 0,
            instruction: "",
            at: Location::caller(),
            blocked: None,
            cluster_phase: None,
            operands: [[0; MOST_OPERANDS]; LANES],
            results: [[0; MOST_RESULTS]; LANES],
            now: Time { clock: 1, sub: 0 },
            known: Clock::default(),
            acquiring: false,
            tensor_core: TensorCore::default(),
        }
    }

    /// All lanes have met in memory.
    #[inline]
    pub fn advance(&mut self) {
        self.now.clock += 1;
        self.now.sub = 0;
    }

    /// A lane has released or fenced: what follows comes after that.
    #[inline]
    pub fn advance_sub(&mut self) {
        self.now.sub += 1;
    }
}

/// A resident block.
pub(super) struct Block {
    pub index: u32,
    pub shared: Shared,
    pub warps: Vec<Warp>,
    pub lanes: Vec<Lane>,
    pub barriers: [Barrier; super::barrier::BARRIERS],
    pub mbarriers: Mbarriers,
    /// Per warpgroup, whether its warps do the same.
    pub agreements: Vec<Agreement>,
    pub registers: Pool,
    /// Warps that a barrier has just let go, to be queued.
    pub woken: Vec<usize>,
    pub live_warps: u32,
    /// Threads that have stored through the copy engine.
    pub storers: usize,
    /// Accesses of other blocks' threads to its shared memory.
    pub visits: Visits,
}

impl Block {
    pub fn new(launch: &Launch, options: &Options) -> Block {
        Block {
            index: 0,
            shared: Shared::new(
                launch.shared_bytes,
                launch.threads / LANES as u32,
                options.checks,
            ),
            warps: Vec::new(),
            lanes: Vec::new(),
            barriers: Default::default(),
            mbarriers: Mbarriers::default(),
            agreements: Vec::new(),
            registers: Pool::new(launch),
            woken: Vec::new(),
            live_warps: 0,
            storers: 0,
            visits: Visits::default(),
        }
    }

    /// Makes this the block with this index, about to start.
    pub fn start(&mut self, index: u32, launch: &Launch) {
        let threads = launch.threads;
        let warps = threads as usize / LANES;
        debug_assert!(warps <= MAX_WARPS);
        self.index = index;
        self.shared.start(index, index % launch.cluster);
        self.warps.clear();
        self.warps.extend((0..warps).map(|_| Warp::new()));
        self.lanes.clear();
        self.lanes.resize_with(threads as usize, Lane::default);
        self.barriers = Default::default();
        self.mbarriers = Mbarriers::of_block(index);
        self.agreements.clear();
        self.agreements
            .resize_with(warps.div_ceil(4), Agreement::default);
        self.registers = Pool::new(launch);
        self.live_warps = warps as u32;
        self.storers = 0;
        self.visits.clear();
    }

    /// The running thread as one who accesses memory, and the shared memory that it may access.
    #[inline]
    pub fn actor(&mut self, who: Who, site: Site) -> (Actor<'_>, &mut Shared) {
        let Parts { actor, shared, .. } = self.parts(who, site);
        (actor, shared)
    }

    /// The same, with what tells whether the asynchronous proxy sees what threads wrote, and the barriers.
    #[inline]
    pub fn parts(&mut self, who: Who, site: Site) -> Parts<'_> {
        let warp = &self.warps[who.warp];
        let lane = &self.lanes[who.warp * LANES + who.lane];
        let stamp = Stamp {
            block: self.index,
            clock: warp.now.clock,
            site,
            sub: warp.now.sub,
            warp: who.warp as u8,
            lane: who.lane as u8,
        };
        Parts {
            actor: Actor {
                stamp,
                trace: stamp,
                proxy: Proxy::Generic,
                known: &warp.known,
                acquired: lane.acquired.as_deref(),
                maps: &lane.maps,
            },
            shared: &mut self.shared,
            fences: Fences {
                block: self.index,
                lanes: &self.lanes,
            },
            mbarriers: &mut self.mbarriers,
        }
    }

    /// A lane acquires this; its warp does where the lanes next meet.
    #[inline]
    pub fn acquire(&mut self, who: Who, knowledge: &Rc<Knowledge>) {
        let lane = &mut self.lanes[who.warp * LANES + who.lane];
        knowledge::share(&mut lane.acquired, knowledge);
        self.warps[who.warp].acquiring = true;
    }

    /// The lanes of a warp meet in memory: all of them know what one of them acquired.
    #[inline]
    pub fn meet(&mut self, warp: usize) {
        let state = &mut self.warps[warp];
        if state.acquiring {
            state.acquiring = false;
            let mut last: Option<Rc<Knowledge>> = None;
            for lane in &mut self.lanes[warp * LANES..][..LANES] {
                // Mostly all have acquired the same.
                if let Some(knowledge) = lane.acquired.take()
                    && !last
                        .as_ref()
                        .is_some_and(|last| Rc::ptr_eq(last, &knowledge))
                {
                    state.known.learn(self.index, &knowledge);
                    last = Some(knowledge);
                }
            }
        }
    }
}

/// A thread about to do something, and what of its block it does that with.
pub(super) struct Parts<'a> {
    pub actor: Actor<'a>,
    pub shared: &'a mut Shared,
    pub fences: Fences<'a>,
    pub mbarriers: &'a mut Mbarriers,
}

/// The fences of all threads of a block.
#[derive(Clone, Copy)]
pub(super) struct Fences<'a> {
    pub block: u32,
    pub lanes: &'a [Lane],
}

impl Fences<'_> {
    /// Whether what was written to the block's memory was fenced afterwards for the asynchronous proxy, ordered before the present
    /// access: by the thread that wrote, or, where another block wrote or `st.async` did, by anybody who knew of it.
    #[inline]
    pub fn publish(&self, actor: &Actor, write: &Stamp) -> bool {
        if write.warp == ENGINE {
            write.sub != BY_STORE || actor.knows_fenced(write)
        } else if write.block == self.block {
            first_after(&self.lane(write).proxy_fences, actor, write)
        } else {
            actor.knows_fenced(write)
        }
    }

    /// Whether the thread that made a barrier fenced it afterwards, ordered before the present access.
    #[inline]
    pub fn publish_init(&self, actor: &Actor, init: &Stamp) -> bool {
        first_after(&self.lane(init).init_fences, actor, init)
    }

    #[inline]
    fn lane(&self, stamp: &Stamp) -> &Lane {
        &self.lanes[usize::from(stamp.warp) * LANES + usize::from(stamp.lane)]
    }
}

#[inline]
fn first_after(fences: &[Time], actor: &Actor, write: &Stamp) -> bool {
    let first = fences.partition_point(|fence| *fence < write.time());
    fences.get(first).is_some_and(|Time { clock, sub }| {
        actor.sees(&Stamp {
            clock: *clock,
            sub: *sub,
            ..*write
        })
    })
}

/// One who accesses memory: the stamp that it leaves, and what is ordered before it.
#[derive(Clone, Copy)]
pub(super) struct Actor<'a> {
    pub stamp: Stamp,
    /// What is left in global memory: the thread's own stamp, or that of the engine that acts for it.
    pub trace: Stamp,
    /// By which it accesses global memory.
    pub proxy: Proxy,
    known: &'a Clock,
    acquired: Option<&'a Knowledge>,
    /// Tensor maps that it acquired.
    pub maps: &'a [AcquiredMap],
}

impl<'a> Actor<'a> {
    pub fn access(&self) -> Access {
        self.stamp.access()
    }

    /// Whether what left this stamp is ordered before the present access.
    #[inline]
    pub fn sees(&self, stamp: &Stamp) -> bool {
        let mine = &self.stamp;
        if stamp.block == mine.block && stamp.warp != ENGINE {
            let by_lane = stamp.lane == mine.lane || stamp.lane == TOGETHER;
            if stamp.warp == mine.warp && by_lane
                || self.sees_warp(usize::from(stamp.warp), stamp.clock)
            {
                return true;
            }
        }
        if stamp.lane == TOGETHER {
            let mut lanes = 0..LANES as u8;
            return lanes.all(|lane| self.has_acquired(&Stamp { lane, ..*stamp }));
        }
        self.has_acquired(stamp)
    }

    /// Whether all that a warp of the own block did up to this clock is ordered before the present access.
    #[inline]
    pub fn sees_warp(&self, warp: usize, clock: u32) -> bool {
        let mine = &self.stamp;
        let known = if warp == usize::from(mine.warp) {
            clock < mine.clock
        } else {
            clock <= self.known.own[warp]
        };
        let acquired = self.acquired;
        known || acquired.is_some_and(|knowledge| knowledge.covers_warp(mine.block, warp, clock))
    }

    /// The same of a warp of any block.
    #[inline]
    pub fn sees_warp_of(&self, block: u32, warp: usize, clock: u32) -> bool {
        if block == self.stamp.block {
            return self.sees_warp(warp, clock);
        }
        let acquired = self.acquired;
        self.known.covers_warp(block, warp, clock)
            || acquired.is_some_and(|knowledge| knowledge.covers_warp(block, warp, clock))
    }

    /// Whether anything that another block did is ordered before the present access.
    pub fn knows_of(&self, block: u32) -> bool {
        let acquired = self.acquired;
        self.known.knows_of(block) || acquired.is_some_and(|knowledge| knowledge.knows_of(block))
    }

    /// Whether what left this stamp is ordered before the present access or at least over, so that its place may be overwritten.
    #[inline]
    pub fn is_over(&self, stamp: &Stamp) -> bool {
        self.sees(stamp) || self.knows_over(stamp)
    }

    #[cold]
    fn knows_over(&self, stamp: &Stamp) -> bool {
        let acquired = self.acquired.and_then(|acquired| acquired.over());
        let over = [self.known.over(), acquired];
        let covers = |stamp: &Stamp| over.into_iter().flatten().any(|over| over.covers(stamp));
        if stamp.lane == TOGETHER {
            let mut lanes = 0..LANES as u8;
            return lanes.all(|lane| covers(&Stamp { lane, ..*stamp }));
        }
        covers(stamp)
    }

    /// Whether a fence of shared memory for the asynchronous proxy, ordered before the present access, came after this.
    fn knows_fenced(&self, stamp: &Stamp) -> bool {
        let mut published = self.published(Proxy::AsyncShared).into_iter().flatten();
        published.any(|published| published.covers(stamp))
    }

    /// Whether the warp, or this lane for itself, has acquired what one lane or the copy engine did.
    #[inline]
    fn has_acquired(&self, stamp: &Stamp) -> bool {
        let acquired = self.acquired;
        self.known.covers(stamp) || acquired.is_some_and(|knowledge| knowledge.covers(stamp))
    }

    /// The copy engine, acting for this thread by a proxy: it leaves this stamp.
    #[inline]
    pub fn by_engine(&self, proxy: Proxy, trace: Stamp) -> Actor<'a> {
        Actor {
            trace,
            proxy,
            ..*self
        }
    }

    /// What came before fences for a proxy that are ordered before the present access: of the warp, and of the lane.
    #[inline]
    pub fn published(&self, proxy: Proxy) -> [Option<&'a Rc<Knowledge>>; 2] {
        let acquired = self.acquired.and_then(|acquired| acquired.published(proxy));
        [self.known.published(proxy), acquired]
    }

    /// Whether what left this stamp, ordered before the present access, is seen by the copy engine: where it went by another
    /// proxy, or by the same one from another block, a fence stands between them.
    #[inline]
    pub fn engine_sees(&self, stamp: &Stamp) -> bool {
        let ours = stamp.warp == ENGINE && stamp.block == self.stamp.block;
        let mut published = self.published(Proxy::Async).into_iter().flatten();
        ours || published.any(|published| published.covers(stamp))
    }

    /// What this thread gives away when it releases now.
    pub fn release(&self) -> Knowledge {
        let mut given = self.known.release(&self.stamp);
        if let Some(acquired) = self.acquired {
            given.join(acquired);
        }
        given
    }
}

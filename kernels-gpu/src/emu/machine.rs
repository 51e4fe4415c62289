//! The state of a running grid, and how an instruction's CPU body reaches it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::collections::VecDeque;
use std::rc::Rc;

use corosensei::Yielder;
use ferroflash_expression::Kept;

use super::block::Block;
use super::bulk::Engine;
use super::cluster;
use super::fault::{Access, Fault, Thread};
use super::knowledge::Knowledge;
use super::memory::Buffers;
use super::score::Scores;
use super::site::{self, Site};
use super::{Launch, Options, Order, Stats};

/// Lanes of a warp.
pub(super) const LANES: usize = 32;
/// One bit for every lane.
pub(super) const ALL: u32 = u32::MAX;
/// Most registers that a collective takes from a lane.
pub(super) const MOST_OPERANDS: usize = 10;
/// Most registers that a collective gives to a lane.
pub(super) const MOST_RESULTS: usize = 4;

/// The thread that is running.
#[derive(Clone, Copy, Default)]
pub(super) struct Who {
    /// Which of the resident blocks.
    pub slot: usize,
    pub block: u32,
    pub warp: usize,
    pub lane: usize,
}

impl Who {
    #[inline]
    pub fn thread(&self) -> Thread {
        Thread {
            block: self.block,
            warp: self.warp as u32,
            lane: Some(self.lane as u32),
        }
    }

    pub fn access(&self, site: Site) -> Access {
        let (instruction, at) = site::resolve(site);
        Access {
            thread: self.thread(),
            instruction,
            at,
        }
    }
}

/// A running grid.
pub(super) struct Machine {
    pub launch: Launch,
    /// What edits scores.
    pub edit: Option<Kept>,
    /// Where the scores of each thread lie; one for every thread of every slot.
    scores: Vec<Cell<Option<Scores>>>,
    pub options: Options,
    pub current: Cell<Who>,
    pub blocks: Vec<RefCell<Block>>,
    /// The barriers of clusters, whose blocks have slots side by side.
    pub clusters: Vec<RefCell<cluster::Barrier>>,
    pub buffers: RefCell<Buffers>,
    /// What was released at each address of global memory.
    pub released: RefCell<HashMap<u64, Rc<Knowledge>>>,
    /// What fences have released for those who read tensor maps; absent where there was none.
    pub released_maps: RefCell<Option<Knowledge>>,
    /// Copies that the copy engine has not finished.
    pub engine: RefCell<Engine>,
    /// The warp whose lanes are getting their turns, as (slot, warp).
    pub running: Cell<Option<(usize, usize)>>,
    /// Warps with lanes that can go on, as (slot, warp).
    pub ready: RefCell<VecDeque<(usize, usize)>>,
    /// How each thread gives the processor back; one for every thread of every slot.
    pub yielders: Vec<Cell<*const Yielder<(), ()>>>,
    pub random: Cell<u64>,
    pub fault: RefCell<Option<Fault>>,
    /// Times that a thread looked at an address in vain since anything last changed.
    pub idle: Cell<u64>,
    /// Loads since a thread last gave the processor back.
    pub streak: Cell<u32>,
    pub stats: Cell<Stats>,
    /// Looks at a clock.
    pub looks: Cell<u64>,
}

thread_local! {
    static MACHINE: Cell<*const Machine> = const { Cell::new(std::ptr::null()) };
}

/// Loads in a row after which a thread is taken to spin.
const LONGEST_STREAK: u32 = 10_000;

impl Machine {
    pub fn new(launch: Launch, edit: Option<Kept>, options: Options, buffers: Buffers) -> Machine {
        let slots = launch.slots() as usize;
        let threads = slots * launch.threads as usize;
        Machine {
            launch,
            edit,
            scores: (0..if edit.is_some() { threads } else { 0 })
                .map(|_| Cell::default())
                .collect(),
            options,
            current: Cell::default(),
            blocks: (0..slots)
                .map(|_| RefCell::new(Block::new(&launch, &options)))
                .collect(),
            clusters: (0..slots / launch.cluster as usize)
                .map(|_| RefCell::default())
                .collect(),
            buffers: RefCell::new(buffers),
            released: RefCell::default(),
            released_maps: RefCell::default(),
            engine: RefCell::default(),
            running: Cell::default(),
            ready: RefCell::default(),
            yielders: (0..threads).map(|_| Cell::new(std::ptr::null())).collect(),
            random: Cell::new(
                (options.seed ^ 0x5851_f42d_4c95_7f2d).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            ),
            fault: RefCell::default(),
            idle: Cell::default(),
            streak: Cell::default(),
            stats: Cell::default(),
            looks: Cell::default(),
        }
    }

    /// The machine whose kernel calls.
    #[inline]
    pub fn current() -> &'static Machine {
        let machine = MACHINE.get();
        assert!(
            !machine.is_null(),
            "an instruction of the GPU was called outside of emu::run"
        );
        // SAFETY: `enter` points it to a machine that outlives the call of `inside`, and only kernels that run
        // within that call come here; they keep the reference no longer than one instruction.
        unsafe { &*machine }
    }

    /// Whether a kernel is running on this OS thread.
    pub fn is_running() -> bool {
        !MACHINE.get().is_null()
    }

    /// Runs `inside` with this machine as the current one.
    pub fn enter<R>(&self, inside: impl FnOnce() -> R) -> R {
        struct Leave;
        impl Drop for Leave {
            fn drop(&mut self) {
                MACHINE.set(std::ptr::null());
            }
        }
        MACHINE.set(self);
        let _leave = Leave;
        inside()
    }

    /// Who the thread with this number among all resident ones is.
    pub fn who(&self, thread: usize) -> Who {
        let threads = self.launch.threads as usize;
        let slot = thread / threads;
        Who {
            slot,
            block: self.blocks[slot].borrow().index,
            warp: thread % threads / LANES,
            lane: thread % LANES,
        }
    }

    /// The next random number.
    #[inline]
    pub fn draw(&self) -> u64 {
        let mut x = self.random.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random.set(x);
        x
    }

    /// Whether chance, where the order is random, says yes: one time in `n`.
    #[inline]
    pub fn chance(&self, n: u64) -> bool {
        matches!(self.options.order, Order::Random) && self.draw().is_multiple_of(n)
    }

    /// The value, or the end of this thread: the fault is noted and the thread never runs again. Only where the
    /// thread is already unwinding from a panic does it go on, with `default`.
    #[inline]
    pub fn settle<T>(&self, result: Result<T, Fault>, default: T) -> T {
        match result {
            Ok(value) => value,
            Err(fault) => {
                self.fault.borrow_mut().get_or_insert(fault);
                while !std::thread::panicking() {
                    self.suspend();
                }
                default
            }
        }
    }

    /// Lets lanes of a warp that waited go on.
    #[inline]
    pub fn wake(&self, slot: usize, block: &mut Block, warp: usize, lanes: u32) {
        let runnable = &mut block.warps[warp].runnable;
        if *runnable == 0 && self.running.get() != Some((slot, warp)) {
            self.ready.borrow_mut().push_back((slot, warp));
        }
        *runnable |= lanes;
        self.progress();
    }

    /// The number of the running thread among all resident ones.
    #[inline]
    fn thread(&self) -> usize {
        let who = self.current.get();
        who.slot * self.launch.threads as usize + who.warp * LANES + who.lane
    }

    /// Where the running thread's scores lie, in a launch with an edit.
    #[inline]
    pub fn scores_of_thread(&self) -> &Cell<Option<Scores>> {
        &self.scores[self.thread()]
    }

    /// Gives the processor back to the scheduler. A panicking thread is not kept from unwinding.
    #[inline]
    pub fn suspend(&self) {
        if std::thread::panicking() {
            return;
        }
        self.streak.set(0);
        let yielder = self.yielders[self.thread()].get();
        // SAFETY: the scheduler runs a thread on its coroutine only, which set this pointer to its own yielder
        // before it called the kernel; the yielder lives as long as the coroutine.
        unsafe { (*yielder).suspend(()) };
    }

    /// Lets others go first: this thread looks at something that only others can change.
    pub fn spin(&self, site: Site) {
        let who = self.current.get();
        let bit = 1 << who.lane;
        {
            let mut block = self.blocks[who.slot].borrow_mut();
            block.warps[who.warp].spinning |= bit;
            block.lanes[who.warp * LANES + who.lane].spin = site;
        }
        self.idle.set(self.idle.get() + 1);
        self.suspend();
        self.blocks[who.slot].borrow_mut().warps[who.warp].spinning &= !bit;
    }

    /// Notes that something changed that another thread may be waiting for.
    #[inline]
    pub fn progress(&self) {
        self.idle.set(0);
    }

    /// Counts a plain load: a thread that does nothing but load is taken to wait for another's store.
    #[inline]
    pub fn count_load(&self, site: Site) {
        let streak = self.streak.get() + 1;
        self.streak.set(streak);
        if streak > LONGEST_STREAK {
            self.spin(site);
        }
    }
}

//! Who runs next, and what is wrong when nobody can.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult};

use super::fault::{Access, Fault, Kind, Waiting};
use super::machine::{ALL, LANES, Machine, Who};
use super::memory::GlobalMemory;
use super::{Launch, Options, Order, Stats};

type Routine = Coroutine<(), (), (), DefaultStack>;

/// Bytes of a thread's stack; untouched pages cost nothing.
const STACK_BYTES: usize = 256 << 10;
/// Most stacks kept for the next run.
const KEPT_STACKS: usize = 2048;

thread_local! {
    /// Stacks of finished threads: making one takes longer than running a small kernel on it.
    static STACKS: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
}

fn refuse(launch: &Launch) -> Option<&'static str> {
    if launch.threads == 0 || !launch.threads.is_multiple_of(LANES as u32) {
        return Some("the number of threads must be a multiple of 32 and not 0");
    }
    if launch.threads > 1024 {
        return Some("a block has at most 1024 threads");
    }
    if launch.shared_bytes > 227 << 10 {
        return Some("a block has at most 227 KiB of shared memory");
    }
    if launch.resident_blocks == 0 {
        return Some("at least one block must be resident");
    }
    Machine::is_running().then_some("a kernel cannot launch a kernel")
}

/// See [`super::run`].
pub(super) fn run(
    launch: &Launch,
    options: &Options,
    memory: &mut GlobalMemory<'_>,
    kernel: &dyn Fn(),
) -> Result<Stats, Fault> {
    if let Some(reason) = refuse(launch) {
        return Err(Kind::BadLaunch { reason }.into());
    }
    let mut buffers = std::mem::take(&mut memory.buffers);
    buffers.begin_launch();
    let machine = Machine::new(*launch, *options, buffers);
    let mut scheduler = Scheduler::new(&machine, kernel);
    let outcome = machine.enter(|| catch_unwind(AssertUnwindSafe(|| scheduler.run())));
    drop(scheduler);
    let fault = machine.fault.take();
    memory.buffers = machine.buffers.into_inner();
    match outcome {
        Ok(outcome) => fault.map_or(outcome, Err).map(|()| machine.stats.get()),
        Err(payload) => {
            let message = payload
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| payload.downcast_ref::<&str>().copied())
                .unwrap_or("no message");
            let thread = machine.current.get().thread();
            Err(Kind::Panic {
                thread,
                message: message.to_owned(),
            }
            .into())
        }
    }
}

struct Scheduler<'a> {
    machine: &'a Machine,
    kernel: &'a dyn Fn(),
    /// One for every thread of every slot.
    routines: Vec<Option<Routine>>,
    /// Index of the next block to start.
    next_block: u32,
    running_blocks: u32,
    resumes: u64,
}

impl<'a> Scheduler<'a> {
    fn new(machine: &'a Machine, kernel: &'a dyn Fn()) -> Scheduler<'a> {
        let mut routines = Vec::new();
        routines.resize_with(machine.yielders.len(), || None);
        Scheduler {
            machine,
            kernel,
            routines,
            next_block: 0,
            running_blocks: 0,
            resumes: 0,
        }
    }

    fn run(&mut self) -> Result<(), Fault> {
        for slot in 0..self.machine.blocks.len() {
            self.start_block(slot);
        }
        // A thread that looks in vain this often, with nothing else happening, looks forever.
        let patience = 10_000 + 100 * self.routines.len() as u64;
        while self.running_blocks > 0 {
            let Some((slot, warp)) = self.pick() else {
                return Err(self.deadlock());
            };
            self.run_warp(slot, warp)?;
            if self.machine.idle.get() > patience {
                return Err(self.deadlock());
            }
        }
        let mut stats = self.machine.stats.get();
        stats.resumes = self.resumes;
        self.machine.stats.set(stats);
        Ok(())
    }

    /// Ends all threads, finished or not, and keeps their stacks.
    fn end(&mut self) {
        for routine in &mut self.routines {
            if let Some(routine) = routine
                && routine.started()
                && !routine.done()
            {
                // SAFETY: the frames of a kernel own nothing that needs its destructor run (`emu::run` says so),
                // and nothing outside the coroutine refers into its stack: the machine keeps copies of operands.
                unsafe { routine.force_reset() };
            }
            keep_stack(routine.take());
        }
    }

    /// Starts the next block of the grid in this slot, if there is one.
    fn start_block(&mut self, slot: usize) {
        let launch = &self.machine.launch;
        if self.next_block >= launch.grid {
            return;
        }
        self.machine.blocks[slot]
            .borrow_mut()
            .start(self.next_block, launch.threads);
        self.next_block += 1;
        self.running_blocks += 1;
        let threads = launch.threads as usize;
        for thread in slot * threads..(slot + 1) * threads {
            let (kernel, yielders) = (self.kernel, &raw const self.machine.yielders);
            let stack = STACKS.with_borrow_mut(Vec::pop);
            let stack = stack
                .unwrap_or_else(|| DefaultStack::new(STACK_BYTES).expect("memory for a stack"));
            // SAFETY: the closure borrows the kernel and the machine, which outlive the scheduler's routines:
            // `end` drops them before `run` returns.
            let routine = unsafe {
                Routine::with_stack_unchecked(stack, move |yielder, ()| {
                    (&*yielders)[thread].set(yielder);
                    kernel();
                })
            };
            self.routines[thread] = Some(routine);
        }
        let warps = threads / LANES;
        self.machine
            .ready
            .borrow_mut()
            .extend((0..warps).map(|warp| (slot, warp)));
    }

    /// The next warp that can go on.
    fn pick(&self) -> Option<(usize, usize)> {
        let mut ready = self.machine.ready.borrow_mut();
        match self.machine.options.order {
            Order::InTurn => ready.pop_front(),
            Order::Random => {
                let count = ready.len() as u64;
                (count > 0)
                    .then(|| ready.swap_remove_back((self.machine.draw() % count) as usize))?
            }
        }
    }

    /// Runs each lane of a warp that can go on once, up to where it waits.
    fn run_warp(&mut self, slot: usize, warp: usize) -> Result<(), Fault> {
        let machine = self.machine;
        let (mut runnable, block) = {
            let block = machine.blocks[slot].borrow();
            (block.warps[warp].runnable, block.index)
        };
        // An odd stride and an offset give one of 512 orders.
        let (stride, offset) = match machine.options.order {
            Order::InTurn => (1, 0),
            Order::Random => {
                let draw = machine.draw() as usize;
                ((draw % LANES) | 1, draw / LANES % LANES)
            }
        };
        for i in 0..LANES {
            let lane = (i * stride + offset) % LANES;
            if runnable & 1 << lane == 0 {
                continue;
            }
            runnable &= !(1 << lane);
            machine.current.set(Who {
                slot,
                block,
                warp,
                lane,
            });
            self.resumes += 1;
            let thread = (slot * machine.launch.threads as usize) + warp * LANES + lane;
            let routine = self.routines[thread]
                .as_mut()
                .expect("a runnable lane has a routine");
            if let CoroutineResult::Return(()) = routine.resume(()) {
                keep_stack(self.routines[thread].take());
                if self.finish_lane()? {
                    return Ok(());
                }
            }
            if let Some(fault) = machine.fault.take() {
                return Err(fault);
            }
        }
        if machine.blocks[slot].borrow().warps[warp].runnable != 0 {
            machine.ready.borrow_mut().push_back((slot, warp));
        }
        Ok(())
    }

    /// The running thread has left the kernel; whether its block ended with it.
    fn finish_lane(&mut self) -> Result<bool, Fault> {
        let machine = self.machine;
        machine.progress();
        let who = machine.current.get();
        let ended = {
            let mut block = machine.blocks[who.slot].borrow_mut();
            let block = &mut *block;
            if let Some((count, site)) =
                block.lanes[who.warp * LANES + who.lane].copies.unfinished()
            {
                return Err(Kind::CopiesUnfinished {
                    copy: who.access(site),
                    count,
                }
                .into());
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
                block.live_warps -= 1;
            }
            for (id, barrier) in block
                .barriers
                .iter()
                .enumerate()
                .filter(|_| block.live_warps == 0)
            {
                if let (Some((last, site)), true) = (barrier.last, barrier.arrived > 0) {
                    let (arrived, expected) = (barrier.arrived, barrier.expected);
                    let (access, barrier) = (last.access(site), id as u32);
                    return Err(Kind::BarrierUnfinished {
                        access,
                        barrier,
                        arrived,
                        expected,
                    }
                    .into());
                }
            }
            block.live_warps == 0
        };
        if ended {
            let mut stats = machine.stats.get();
            stats.blocks += 1;
            machine.stats.set(stats);
            self.running_blocks -= 1;
            self.start_block(who.slot);
        }
        Ok(ended)
    }

    /// Who waits for what.
    fn deadlock(&self) -> Fault {
        let mut waiting: Vec<Waiting> = Vec::new();
        let mut add = |access: Access, threads: u32, until: String| {
            let same = |other: &&mut Waiting| {
                (other.access.at, other.access.instruction) == (access.at, access.instruction)
                    && other.access.thread.block == access.thread.block
                    && other.until == until
            };
            match waiting.iter_mut().find(same) {
                Some(other) => other.threads += threads,
                None => waiting.push(Waiting {
                    access,
                    threads,
                    until,
                }),
            }
        };
        for (slot, block) in self.machine.blocks.iter().enumerate() {
            let block = block.borrow();
            for (warp, state) in block
                .warps
                .iter()
                .enumerate()
                .filter(|_| block.live_warps > 0)
            {
                let who = |lane: u32| Who {
                    slot,
                    block: block.index,
                    warp,
                    lane: lane as usize,
                };
                let here = |lane| Access {
                    thread: who(lane).thread(),
                    instruction: state.instruction,
                    at: state.at,
                };
                if let Some(id) = state.blocked {
                    let barrier = &block.barriers[id as usize];
                    let come = format!(
                        "barrier {id}, where {} of {} have come",
                        barrier.arrived, barrier.expected
                    );
                    add(here(0), LANES as u32, come);
                }
                if state.arrived != 0 {
                    let others = format!("lanes {:#010x} of their warp", !state.arrived);
                    add(
                        here(state.arrived.trailing_zeros()),
                        state.arrived.count_ones(),
                        others,
                    );
                }
                for lane in (0..LANES as u32).filter(|lane| state.spinning & 1 << lane != 0) {
                    let spin = block.lanes[warp * LANES + lane as usize].spin;
                    add(who(lane).access(spin), 1, "another value".to_owned());
                }
            }
        }
        Kind::Deadlock { waiting }.into()
    }
}

impl Drop for Scheduler<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

fn keep_stack(routine: Option<Routine>) {
    if let Some(routine) = routine
        && routine.done()
    {
        STACKS.with_borrow_mut(|stacks| {
            if stacks.len() < KEPT_STACKS {
                stacks.push(routine.into_stack());
            }
        });
    }
}

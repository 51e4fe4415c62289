//! Who runs next, and what is wrong when nobody can.

use std::panic::{AssertUnwindSafe, catch_unwind};

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult};
use ferroflash_expression::Kept;

use super::fault::{Fault, Kind};
use super::machine::{LANES, Machine, Who};
use super::memory::GlobalMemory;
use super::stacks::{self, Stacks};
use super::{Launch, Options, Order, Stats, bulk, cluster, deadlock, ending};

type Routine = Coroutine<(), (), (), DefaultStack>;

/// In random order the copy engine gets one turn in so many.
const ENGINE_TURNS: u64 = 4;
/// Times that threads look at addresses in vain before the copy engine gets a turn in any order.
const ENGINE_PATIENCE: u64 = 1000;
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
    if launch.blocks_per_sm == 0 {
        return Some("a multiprocessor holds at least one block");
    }
    // Each block takes 1 KiB for itself.
    if u64::from(launch.blocks_per_sm) * u64::from(launch.shared_bytes + 1024) > 228 << 10 {
        return Some("a multiprocessor has 228 KiB of shared memory");
    }
    if launch.blocks_per_sm > 2048 / launch.threads {
        return Some("a multiprocessor has at most 2048 threads");
    }
    if launch.cluster == 0 || launch.cluster > cluster::MOST_BLOCKS {
        return Some("a cluster has between 1 and 8 blocks");
    }
    if !launch.grid.is_multiple_of(launch.cluster) {
        return Some("the grid must be a multiple of the cluster");
    }
    if launch.slots() as usize * launch.threads as usize > stacks::MOST {
        return Some("more threads are resident than a process has stacks for");
    }
    // Destructors are no place for a kernel: a thread that unwinds is never suspended.
    if std::thread::panicking() {
        return Some("a thread that panics cannot launch a kernel");
    }
    Machine::is_running().then_some("a kernel cannot launch a kernel")
}

/// See [`super::run`].
pub(super) fn run(
    launch: &Launch,
    edit: Option<Kept>,
    options: &Options,
    memory: &mut GlobalMemory<'_>,
    kernel: &dyn Fn(),
) -> Result<Stats, Fault> {
    if let Some(reason) = refuse(launch) {
        return Err(Kind::BadLaunch { reason }.into());
    }
    let mut buffers = std::mem::take(&mut memory.buffers);
    buffers.begin_launch();
    let machine = Machine::new(*launch, edit, *options, buffers);
    let mut scheduler = Scheduler::new(&machine, kernel);
    let (outcome, thread, fault) = machine.enter(|| {
        let outcome = catch_unwind(AssertUnwindSafe(|| scheduler.run()));
        let (thread, fault) = (machine.current.get().thread(), machine.fault.take());
        scheduler.end();
        (outcome, thread, fault)
    });
    drop(scheduler);
    let mut buffers = machine.buffers.into_inner();
    buffers.end_launch(machine.released_maps.into_inner().as_ref());
    memory.buffers = buffers;
    match outcome {
        Ok(outcome) => fault.map_or(outcome, Err).map(|()| machine.stats.get()),
        Err(payload) => {
            let message = payload
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| payload.downcast_ref::<&str>().copied())
                .unwrap_or("no message");
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
    stacks: Stacks,
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
            stacks: Stacks::reserve(routines.len()),
            routines,
            next_block: 0,
            running_blocks: 0,
            resumes: 0,
        }
    }

    fn run(&mut self) -> Result<(), Fault> {
        let machine = self.machine;
        for first in (0..machine.blocks.len()).step_by(machine.launch.cluster as usize) {
            self.start_cluster(first);
        }
        // A thread that looks in vain this often, with nothing else happening, looks forever.
        let patience = 10_000 + 100 * self.routines.len() as u64;
        while self.running_blocks > 0 {
            if machine.chance(ENGINE_TURNS) {
                bulk::advance(machine);
            }
            let Some((slot, warp)) = self.pick() else {
                if bulk::advance(machine) {
                    continue;
                }
                return Err(deadlock::report(machine));
            };
            machine.running.set(Some((slot, warp)));
            self.run_warp(slot, warp)?;
            machine.running.set(None);
            if machine.idle.get() > patience {
                return Err(deadlock::report(machine));
            }
            if machine.idle.get() > ENGINE_PATIENCE {
                bulk::advance(machine);
            }
        }
        while bulk::advance(machine) {}
        let mut stats = machine.stats.get();
        stats.resumes = self.resumes;
        machine.stats.set(stats);
        Ok(())
    }

    /// Ends all threads, finished or not, and keeps their stacks. Whoever is suspended unwinds: what its frames hold is
    /// dropped, as it must be before their stack serves again.
    fn end(&mut self) {
        let machine = self.machine;
        for (thread, routine) in self.routines.iter_mut().enumerate() {
            let Some(mut routine) = routine.take() else {
                continue;
            };
            // A destructor may ask who it is.
            machine.current.set(machine.who(thread));
            // The run has its outcome: a kernel that answers its end by a panic of its own changes nothing.
            let _ = catch_unwind(AssertUnwindSafe(|| routine.force_unwind()));
            if routine.done() {
                self.stacks.keep(routine.into_stack());
            }
        }
    }

    /// Starts the next cluster of the grid in the slots from this one on, if there is one.
    fn start_cluster(&mut self, first: usize) {
        let launch = &self.machine.launch;
        if self.next_block >= launch.grid {
            return;
        }
        if launch.cluster > 1 {
            let warps = launch.cluster * launch.threads / LANES as u32;
            let barrier = cluster::Barrier::of_warps(warps);
            *cluster::barrier(self.machine, first).borrow_mut() = barrier;
        }
        for slot in first..first + launch.cluster as usize {
            self.start_block(slot);
        }
    }

    /// Starts the next block of the grid in this slot.
    fn start_block(&mut self, slot: usize) {
        let launch = &self.machine.launch;
        self.machine.blocks[slot]
            .borrow_mut()
            .start(self.next_block, launch);
        self.next_block += 1;
        self.running_blocks += 1;
        let threads = launch.threads as usize;
        for thread in slot * threads..(slot + 1) * threads {
            let (kernel, yielders) = (self.kernel, &raw const self.machine.yielders);
            let stack = self.stacks.take().expect("memory for a stack");
            // SAFETY: the closure borrows the kernel and the machine, which outlive the scheduler's routines: a routine
            // is dropped with the scheduler at the latest, before `run` returns, and unwinds first.
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
                if let Some(routine) = self.routines[thread].take() {
                    self.stacks.keep(routine.into_stack());
                }
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
        let blocks = machine.launch.cluster as usize;
        let ended = {
            let mut block = machine.blocks[who.slot].borrow_mut();
            let ended = ending::leave(&mut block, who)?;
            if blocks > 1 {
                cluster::leave(machine, &mut block, who);
            }
            ended
        };
        if ended {
            let mut stats = machine.stats.get();
            stats.blocks += 1;
            machine.stats.set(stats);
            self.running_blocks -= 1;
            let first = who.slot - who.slot % blocks;
            let mut cluster = machine.blocks[first..first + blocks].iter();
            if cluster.all(|block| block.borrow().live_warps == 0) {
                self.start_cluster(first);
            }
        }
        Ok(ended)
    }
}

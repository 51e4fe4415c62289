//! Two teams of warps that hand one place of shared memory to each other by turns, as the consumers of flash3's kernel for values in the keys hand
//! over P: the owner of a round writes it and says so by its own barrier; the other reads it, and owns the next round. A warp reads and writes
//! its own row alone.

use ferroflash_kernels::emu::{self, Fault, GlobalMemory, Kind, Launch, MemoryLocation, Options};
use ferroflash_kernels::ptx::{barrier, global, mbarrier, shared, special};
use ferroflash_kernels::spec::Spec;

use crate::accept;

#[derive(Clone, Copy, PartialEq)]
enum Bug {
    None,
    OneBarrierForBoth,
    LanesDoNotMeet,
    SaysSoBeforeWriting,
    NobodyWaits,
    WritesBeforeReading,
}

const TEAMS: u32 = 2;
const WARPS: u32 = 4;
const ROUNDS: u32 = 24;
const ROW_BYTES: u32 = 32 * 4;

#[derive(Clone, Copy)]
struct Owners {
    sums: u64,
    bug: Bug,
}

/// What a lane of a warp's row holds in a round.
fn number(round: u32, column: u32) -> f32 {
    (round * WARPS * 32 + column) as f32
}

impl Owners {
    fn is(&self, bug: Bug) -> bool {
        self.bug == bug
    }

    /// The barrier by which an owner says that its round's place is full, and the parity of that.
    fn full(&self, round: u32) -> (u32, u32) {
        let barriers = special::shared_base() + WARPS * ROW_BYTES;
        match self.bug {
            Bug::OneBarrierForBoth => (barriers, round % 2),
            _ => (barriers + round % TEAMS * 8, round / TEAMS % 2),
        }
    }

    fn say_so(&self, round: u32) {
        let leads = (special::lane_idx() == 0) as u32;
        // SAFETY: the barriers have been made.
        unsafe { mbarrier::mbarrier_arrive_if(self.full(round).0, leads) };
    }

    fn own(&self, round: u32, at: u32, column: u32) {
        // SAFETY: who read the last round's number is this lane; what is wrong is wrong on purpose.
        unsafe {
            if self.is(Bug::SaysSoBeforeWriting) {
                self.say_so(round);
            }
            shared::st_shared_f32(at, number(round, column));
            if !self.is(Bug::LanesDoNotMeet) {
                barrier::warp_sync();
            }
            if !self.is(Bug::SaysSoBeforeWriting) {
                self.say_so(round);
            }
        }
    }

    fn read(&self, round: u32, at: u32) -> f32 {
        let (full, parity) = self.full(round);
        // SAFETY: the owner has written it, or somebody forgot to wait.
        unsafe {
            if !self.is(Bug::NobodyWaits) {
                mbarrier::mbarrier_wait(full, parity);
            }
            shared::ld_shared_f32(at)
        }
    }

    fn kernel(&self) {
        let thread = special::thread_idx_x();
        let (team, column) = (thread / (WARPS * 32), thread % (WARPS * 32));
        let at = special::shared_base() + column * 4;
        // SAFETY: one thread makes the barriers, before all others meet them.
        unsafe {
            if thread == 0 {
                let barriers = special::shared_base() + WARPS * ROW_BYTES;
                for owner in 0..TEAMS {
                    mbarrier::mbarrier_init(barriers + owner * 8, WARPS);
                }
            }
            barrier::barrier_sync_all();
        }
        let mut sum = 0.0;
        for round in 0..ROUNDS {
            let owns = |round: u32| round % TEAMS == team;
            if owns(round) {
                if !(self.is(Bug::WritesBeforeReading) && round > 0) {
                    self.own(round, at, column);
                }
            } else {
                if self.is(Bug::WritesBeforeReading) && round + 1 < ROUNDS {
                    self.own(round + 1, at, column);
                }
                sum += self.read(round, at);
            }
        }
        // SAFETY: a word for each thread.
        unsafe { global::st_global_f32(self.sums + u64::from(thread) * 4, sum) };
    }
}

fn run(bug: Bug, options: Options) -> Result<bool, Fault> {
    let mut sums = vec![0.0f32; (TEAMS * WARPS * 32) as usize];
    let mut memory = GlobalMemory::new();
    let kernel = Owners {
        sums: memory.in_out("sums", &mut sums),
        bug,
    };
    let launch = Launch {
        grid: 1,
        threads: TEAMS * WARPS * 32,
        shared_bytes: WARPS * ROW_BYTES + TEAMS * 8,
        resident_blocks: 1,
        blocks_per_sm: 1,
        cluster: 1,
        spec: Spec::PLAIN,
    };
    emu::run(&launch, &options, &mut memory, &|| kernel.kernel())?;
    let sum = |thread: u32| -> f32 {
        let (team, column) = (thread / (WARPS * 32), thread % (WARPS * 32));
        let others = (0..ROUNDS).filter(|round| round % TEAMS != team);
        others.map(|round| number(round, column)).sum()
    };
    Ok((0..).zip(&sums).all(|(thread, x)| *x == sum(thread)))
}

#[test]
fn the_right_kernel_passes() {
    accept(|options| run(Bug::None, options));
}

/// What one thread wrote and another read or wrote without an order, or before it was written.
fn unordered(kind: &Kind) -> bool {
    match kind {
        Kind::Race { place, .. } => matches!(place, MemoryLocation::Shared { .. }),
        Kind::Uninitialised { .. } => true,
        _ => false,
    }
}

caught! {
    one_barrier_for_both_owners: OneBarrierForBoth => unordered;
    lanes_that_do_not_meet_before_one_says_so_for_them: LanesDoNotMeet => unordered;
    an_owner_that_says_so_before_it_has_written: SaysSoBeforeWriting => unordered;
    nobody_waits: NobodyWaits => unordered;
    the_next_round_is_written_before_this_one_is_read: WritesBeforeReading => unordered;
}

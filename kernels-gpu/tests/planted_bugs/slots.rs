//! Slots of shared memory that one thread fills and all lanes of several warps read, each for itself. Every lane
//! releases the slot that it has read; the warp's lanes need not meet.

use ferroflash_kernels::emu::{
    self, Access, Fault, GlobalMemory, Kind, Launch, MemoryLocation, Options,
};
use ferroflash_kernels::ptx::{
    atomic, barrier, global, ldmatrix, mbarrier, shared, shuffle, special,
};
use ferroflash_kernels::spec::Spec;

use crate::accept;

#[derive(Clone, Copy, PartialEq)]
enum Bug {
    None,
    /// Right as well: lane 0 releases for its warp, after the lanes have met.
    LaneZeroAfterMeeting,
    /// Right as well: all of the producer's lanes wait, meet, and write one after the other.
    ProducerMeets,
    /// Right as well: another thread waits for the readers, and the producer for that thread.
    ThroughAnother,
    /// Right as well: the lanes read together.
    ReadsTogether,
    OneReleasesEarly,
    OneReleasesBeforeReadingTogether,
    OneNeverReleases,
    CountTooSmall,
    CountTooLarge,
    LaneZeroAlone,
    LaneZeroAfterReadingTogether,
    LaneZeroAfterReadingAgain,
    AnotherLaneWritesAfterShuffle,
    OverwritesAfterReadingTogether,
}

const SLOTS: u32 = 2;
const ROUNDS: u32 = 7;
const READERS: u32 = 2;
/// The lane that does something else than the others, in the last warp of readers.
const ODD: u32 = 13;
/// The warp of the thread that stands between readers and producer.
const BETWEEN: u32 = READERS + 1;

#[derive(Clone, Copy)]
struct Slots {
    sums: u64,
    never: u64,
    bug: Bug,
}

fn slot(round: u32) -> u32 {
    special::shared_base() + round % SLOTS * 16
}

/// Of a slot: full, empty, and what the thread in between says.
#[derive(Clone, Copy)]
enum Event {
    Full = 0,
    Empty = 1,
    Passed = 2,
}

fn event(event: Event, round: u32) -> u32 {
    special::shared_base() + 64 + (event as u32 * SLOTS + round % SLOTS) * 8
}

fn parity(round: u32) -> u32 {
    (round / SLOTS) & 1
}

impl Slots {
    fn is(&self, bug: Bug) -> bool {
        self.bug == bug
    }

    /// How many arrive when a slot has been read.
    fn releases(&self) -> u32 {
        match self.bug {
            Bug::LaneZeroAfterMeeting
            | Bug::LaneZeroAlone
            | Bug::LaneZeroAfterReadingTogether
            | Bug::LaneZeroAfterReadingAgain => READERS,
            Bug::OneNeverReleases | Bug::CountTooSmall => READERS * 32 - 1,
            Bug::CountTooLarge => READERS * 32 + 1,
            _ => READERS * 32,
        }
    }

    /// # Safety
    /// One thread does it.
    unsafe fn make_barriers(&self) {
        for round in 0..SLOTS {
            // SAFETY: as the caller promises.
            unsafe {
                mbarrier::mbarrier_init(event(Event::Full, round), 1);
                mbarrier::mbarrier_init(event(Event::Empty, round), self.releases());
                mbarrier::mbarrier_init(event(Event::Passed, round), 1);
            }
        }
    }

    /// Fills the slot of a round.
    fn load(&self, round: u32) {
        let meets = self.is(Bug::ProducerMeets);
        let (waits, writes) = match self.bug {
            Bug::ProducerMeets => (special::lane_idx(), round % 32),
            Bug::AnotherLaneWritesAfterShuffle => (0, 1),
            _ => (0, 0),
        };
        let empty = match self.bug {
            Bug::ThroughAnother => Event::Passed,
            _ => Event::Empty,
        };
        // SAFETY: the slot is written when it is empty; what is wrong is wrong on purpose.
        unsafe {
            if special::lane_idx() == waits {
                mbarrier::mbarrier_wait(event(empty, round), parity(round) ^ 1);
            }
            if meets {
                barrier::warp_sync();
            }
            if self.is(Bug::AnotherLaneWritesAfterShuffle) {
                shuffle::shuffle_idx_u32(0, 0);
            }
            if special::lane_idx() == writes {
                shared::st_shared_x4(slot(round), [round + 1; 4]);
                mbarrier::mbarrier_arrive_if(event(Event::Full, round), 1);
            }
        }
    }

    /// Lets others go first, here and there.
    fn linger(&self, round: u32) {
        if (special::thread_idx_x() + round).is_multiple_of(5) {
            // SAFETY: the word was set before the launch.
            unsafe { atomic::ld_relaxed_u32(self.never) };
        }
    }

    /// What stands in a slot.
    fn read(&self, round: u32) -> u32 {
        // SAFETY: the slot is full; every word of it is the same.
        unsafe {
            match self.bug {
                Bug::ReadsTogether
                | Bug::OneReleasesBeforeReadingTogether
                | Bug::LaneZeroAfterReadingTogether => ldmatrix::ldmatrix_x2(slot(round))[1],
                Bug::LaneZeroAfterReadingAgain => {
                    let [_, word] = ldmatrix::ldmatrix_x2(slot(round));
                    if special::lane_idx() == 0 {
                        shared::ld_shared_x4(slot(round))[1]
                    } else {
                        word
                    }
                }
                _ => shared::ld_shared_x4(slot(round))[3],
            }
        }
    }

    /// One lane reads a place of its warp's own, all read it together, and another lane overwrites it.
    fn overwrite_own(&self) {
        let own = special::shared_base() + 128;
        // SAFETY: wrong on purpose.
        unsafe {
            if special::lane_idx() == ODD {
                shared::st_shared_x4(own, [0; 4]);
            }
            barrier::warp_sync();
            if special::lane_idx() == ODD {
                shared::ld_shared_x4(own);
            }
            ldmatrix::ldmatrix_x2(own);
            if special::lane_idx() == 0 {
                shared::st_shared_x4(own, [1; 4]);
            }
        }
    }

    fn consume(&self) {
        let thread = special::thread_idx_x();
        let leads = u32::from(special::lane_idx() == 0);
        let odd = thread == READERS * 32 + ODD;
        let mut sum = 0;
        if self.is(Bug::OverwritesAfterReadingTogether) && thread / 32 == READERS {
            self.overwrite_own();
        }
        for round in 0..ROUNDS {
            let empty = event(Event::Empty, round);
            let early = match self.bug {
                Bug::OneReleasesEarly | Bug::OneReleasesBeforeReadingTogether => odd,
                _ => false,
            };
            let late = match self.bug {
                Bug::LaneZeroAfterMeeting
                | Bug::LaneZeroAlone
                | Bug::LaneZeroAfterReadingTogether
                | Bug::LaneZeroAfterReadingAgain => leads,
                Bug::OneNeverReleases => u32::from(!odd),
                _ => u32::from(!early),
            };
            // SAFETY: the slot is read when it is full; what is wrong is wrong on purpose.
            unsafe {
                mbarrier::mbarrier_wait(event(Event::Full, round), parity(round));
                mbarrier::mbarrier_arrive_if(empty, u32::from(early));
                self.linger(round);
                sum += self.read(round);
                if self.is(Bug::LaneZeroAfterMeeting) {
                    barrier::warp_sync();
                }
                self.linger(round + 1);
                mbarrier::mbarrier_arrive_if(empty, late);
            }
        }
        // SAFETY: one word for each reader.
        unsafe { global::st_global_u32(self.sums + u64::from(thread - 32) * 4, sum) };
    }

    /// Passes on that a slot is empty.
    fn pass_on(&self) {
        for round in 0..ROUNDS {
            // SAFETY: the barriers were made.
            unsafe {
                mbarrier::mbarrier_wait(event(Event::Empty, round), parity(round));
                mbarrier::mbarrier_arrive_if(event(Event::Passed, round), 1);
            }
        }
    }

    fn kernel(&self) {
        // SAFETY: all threads come here; barriers are made before anyone uses them.
        unsafe {
            if special::thread_idx_x() == 0 {
                self.make_barriers();
            }
            barrier::barrier_sync_all();
        }
        match special::thread_idx_x() / 32 {
            0 => (0..ROUNDS).for_each(|round| self.load(round)),
            BETWEEN if special::lane_idx() == 0 && self.is(Bug::ThroughAnother) => self.pass_on(),
            BETWEEN => {}
            _ => self.consume(),
        }
    }
}

fn run(bug: Bug, options: Options) -> Result<bool, Fault> {
    let mut sums = vec![0u32; READERS as usize * 32];
    let never = [0u32];
    let mut memory = GlobalMemory::new();
    let kernel = Slots {
        sums: memory.output("sums", &mut sums),
        never: memory.input("never", &never),
        bug,
    };
    let launch = Launch {
        grid: 1,
        threads: (BETWEEN + 1) * 32,
        shared_bytes: 256,
        resident_blocks: 1,
        blocks_per_sm: 1,
        cluster: 1,
        spec: Spec::PLAIN,
    };
    emu::run(&launch, &options, &mut memory, &|| kernel.kernel())?;
    Ok(sums.iter().all(|sum| *sum == (1..=ROUNDS).sum()))
}

#[test]
fn the_right_kernels_pass() {
    let right = [
        Bug::None,
        Bug::LaneZeroAfterMeeting,
        Bug::ProducerMeets,
        Bug::ThroughAnother,
        Bug::ReadsTogether,
    ];
    for bug in right {
        accept(|options| run(bug, options));
    }
}

/// Reading and writing race, whichever comes first: what reads, and what writes.
fn sides(kind: &Kind) -> Option<(&Access, &Access)> {
    match kind {
        Kind::Race {
            earlier,
            later,
            place: MemoryLocation::Shared(_),
        } => match later.instruction.starts_with("st.shared") {
            true => Some((earlier, later)),
            false => Some((later, earlier)),
        },
        _ => None,
    }
}

fn race(kind: &Kind) -> bool {
    sides(kind).is_some_and(|(read, write)| {
        (1..=READERS).contains(&read.thread.warp) && write.thread.warp == 0
    })
}

/// A race with the odd lane, which is named.
fn race_with_one(kind: &Kind) -> bool {
    sides(kind).is_some_and(|(read, write)| {
        (read.thread.warp, read.thread.lane) == (READERS, Some(ODD)) && write.thread.warp == 0
    })
}

/// A race of the odd lane with another of its warp.
fn race_in_warp(kind: &Kind) -> bool {
    sides(kind).is_some_and(|(read, write)| {
        let thread = read.thread;
        (thread.warp, thread.lane) == (READERS, Some(ODD)) && write.thread.warp == READERS
    })
}

caught! {
    one_lane_that_releases_before_it_reads: OneReleasesEarly => race_with_one;
    one_lane_that_releases_before_all_read_together: OneReleasesBeforeReadingTogether => race;
    one_lane_that_never_releases: OneNeverReleases => race_with_one;
    a_barrier_made_for_one_lane_too_few: CountTooSmall => race;
    a_barrier_made_for_one_lane_too_many: CountTooLarge => |kind| matches!(kind, Kind::Deadlock { .. });
    lane_0_releasing_for_lanes_that_it_has_not_met: LaneZeroAlone => race;
    lane_0_releasing_what_all_read_together: LaneZeroAfterReadingTogether => race;
    lane_0_releasing_what_it_read_after_all_read_together: LaneZeroAfterReadingAgain => race;
    a_shuffle_taken_for_a_meeting_in_memory: AnotherLaneWritesAfterShuffle => race;
    a_joint_read_taken_for_a_meeting_in_memory: OverwritesAfterReadingTogether => race_in_warp;
}

//! Blocks that add to one buffer through the copy engine, one after the other, as the backward pass adds to dQ: workers write
//! what is to be added to shared memory, and one thread, the semaphore thread, waits at the semaphore, has it added, and lets the
//! next block pass.

use ferroflash_kernels::emu::{
    self, Asynchronous, Fault, GlobalMemory, Kind, Launch, MemoryLocation, Options,
};
use ferroflash_kernels::ptx::{atomic, barrier, global, mbarrier, shared, special, tma};
use ferroflash_kernels::spec::Spec;

use crate::accept;

#[derive(Clone, Copy, PartialEq)]
enum Bug {
    None,
    /// Right as well: the hand-over counts.
    Counts,
    /// Right as well: relaxed accesses, ordered by fences.
    Fences,
    /// Right as well: hands over when the next round's numbers are on their way.
    HandsOverLater,
    /// Right as well: additions in no order to a buffer that was cleared; who reads waits for all.
    Unordered,
    WaitsForReadingOnly,
    OneWaitsForReadingOnly,
    WaitsForTheGroupBefore,
    HandsOverBeforeCommit,
    OneHandsOverBeforeWait,
    NeverCommits,
    OverwrittenWhileRead,
    WorkersDoNotFence,
    SemaphoreDoesNotFence,
    SemaphoreFencesTooEarly,
    FencesThreadsOnly,
    NobodyWaits,
    WaitDoesNotAcquire,
    HandOverDoesNotRelease,
    OneStoresAtOnce,
    NotCleared,
    ReaderDoesNotWait,
    ReaderDoesNotAcquire,
    LeavesWithStoresUnread,
}

const BLOCKS: u32 = 5;
/// What each block adds: in another order the sum is another.
const ADDED: [f32; BLOCKS as usize] = [1e8, 1.0, -1e8, 3.0, 0.5];
/// The block that has a bug where one alone has it.
const ODD: u32 = 2;
const WORKERS: u32 = 64;
/// Each has a part of the sums and a semaphore of its own; all go through the same shared memory.
const ROUNDS: u32 = 3;
/// Of a round's part.
const BYTES: u32 = WORKERS * 4;
const THREADS: u32 = WORKERS + 32;

#[derive(Clone, Copy)]
struct Sums {
    sums: u64,
    semaphores: u64,
    /// What the first block has read of the sums in the end.
    read: u64,
    bug: Bug,
}

fn full() -> u32 {
    special::shared_base() + BYTES
}

fn empty() -> u32 {
    full() + 8
}

fn added(block: u32, round: u32, worker: u32) -> f32 {
    ADDED[block as usize] * (worker % 7 + round + 1) as f32
}

impl Sums {
    fn is(&self, bug: Bug) -> bool {
        self.bug == bug
    }

    fn is_odd(&self, bug: Bug) -> bool {
        self.is(bug) && special::block_idx_x() == ODD
    }

    fn semaphore(&self, round: u32) -> u64 {
        self.semaphores + u64::from(round) * 4
    }

    /// A worker's part of a round.
    fn write(&self, round: u32) {
        let worker = special::thread_idx_x();
        // SAFETY: one word per worker, which the semaphore thread has released.
        unsafe {
            if round > 0 {
                mbarrier::mbarrier_wait(empty(), (round - 1) & 1);
            }
            let mut x = added(special::block_idx_x(), round, worker);
            if matches!(self.bug, Bug::Unordered | Bug::NotCleared) {
                // Exact in every order.
                x = (special::block_idx_x() + worker + round) as f32;
            }
            shared::st_shared_f32(special::shared_base() + worker * 4, x);
            if !self.is(Bug::WorkersDoNotFence) {
                tma::fence_proxy_async();
            }
            mbarrier::mbarrier_arrive_if(full(), 1);
        }
    }

    fn wait_for_rank(&self, round: u32) {
        let (at, rank) = (self.semaphore(round), special::block_idx_x());
        if self.is(Bug::SemaphoreFencesTooEarly) {
            tma::fence_proxy_async_global();
        }
        // SAFETY: the counter was set before the launch.
        unsafe {
            match self.bug {
                _ if rank == 0 => {}
                Bug::Unordered | Bug::NotCleared | Bug::NobodyWaits => {}
                Bug::OneStoresAtOnce if rank == ODD => {}
                Bug::WaitDoesNotAcquire => while atomic::ld_relaxed_u32(at) < rank {},
                Bug::Fences | Bug::FencesThreadsOnly => {
                    while atomic::ld_relaxed_u32(at) < rank {}
                    atomic::fence_acq_rel_gpu();
                }
                _ => while atomic::ld_acquire_u32(at) < rank {},
            }
        }
        if !matches!(
            self.bug,
            Bug::SemaphoreFencesTooEarly | Bug::SemaphoreDoesNotFence | Bug::FencesThreadsOnly
        ) {
            tma::fence_proxy_async_global();
        }
    }

    fn hand_over(&self, round: u32) {
        let at = self.semaphore(round);
        // SAFETY: the counter was set before the launch.
        unsafe {
            match self.bug {
                Bug::Fences => {
                    atomic::fence_acq_rel_gpu();
                    atomic::atom_add_u32(at, 1);
                }
                Bug::HandOverDoesNotRelease => _ = atomic::atom_add_u32(at, 1),
                Bug::Counts | Bug::Unordered | Bug::NotCleared | Bug::NobodyWaits => {
                    atomic::red_release_add_u32(at, 1)
                }
                _ => atomic::st_release_u32(at, special::block_idx_x() + 1),
            }
        }
    }

    /// Begins what a round stores or adds.
    fn add(&self, round: u32) {
        let to = self.sums + u64::from(round * BYTES);
        let cleared = matches!(self.bug, Bug::Unordered | Bug::NotCleared);
        let first = special::block_idx_x() == 0 && !cleared;
        // SAFETY: the workers have written and fenced; the semaphores order the blocks.
        unsafe {
            if first || self.is_odd(Bug::OneStoresAtOnce) {
                tma::bulk_store(to, special::shared_base(), BYTES);
            } else {
                tma::bulk_add_f32(to, special::shared_base(), BYTES);
            }
        }
    }

    /// The semaphore thread's part of a round.
    fn keep(&self, round: u32) {
        let last = round == ROUNDS - 1;
        // SAFETY: the barriers were made; one thread arrives for each phase.
        unsafe {
            mbarrier::mbarrier_wait(full(), round & 1);
            self.wait_for_rank(round);
            self.add(round);
            if self.is(Bug::HandsOverBeforeCommit) {
                self.hand_over(round);
            }
            if !self.is(Bug::NeverCommits) {
                tma::bulk_commit_group();
            }
            let nobody_follows = last && special::block_idx_x() == BLOCKS - 1;
            if self.is(Bug::LeavesWithStoresUnread) && nobody_follows {
                return;
            }
            if !self.is(Bug::OverwrittenWhileRead) {
                tma::bulk_wait_group_read::<0>();
            }
            mbarrier::mbarrier_arrive_if(empty(), 1);
            if self.is_odd(Bug::OneHandsOverBeforeWait) {
                self.hand_over(round);
            }
            match self.bug {
                Bug::WaitsForReadingOnly => {}
                Bug::OneWaitsForReadingOnly if special::block_idx_x() == ODD => {}
                Bug::HandsOverLater => {
                    if round > 0 {
                        tma::bulk_wait_group::<1>();
                        self.hand_over(round - 1);
                    }
                    if !last {
                        return;
                    }
                    tma::bulk_wait_group::<0>();
                }
                Bug::WaitsForTheGroupBefore => tma::bulk_wait_group::<1>(),
                _ => tma::bulk_wait_group::<0>(),
            }
            if !self.is(Bug::HandsOverBeforeCommit) && !self.is_odd(Bug::OneHandsOverBeforeWait) {
                self.hand_over(round);
            }
        }
    }

    /// All of a block wait at all semaphores, and read the sums.
    fn read(&self) {
        let thread = special::thread_idx_x();
        // SAFETY: the whole block comes by; one word per worker.
        unsafe {
            if thread == WORKERS && !self.is(Bug::ReaderDoesNotWait) {
                for round in 0..ROUNDS {
                    match self.bug {
                        Bug::ReaderDoesNotAcquire => {
                            while atomic::ld_relaxed_u32(self.semaphore(round)) != BLOCKS {}
                        }
                        _ => while atomic::ld_acquire_u32(self.semaphore(round)) != BLOCKS {},
                    }
                }
            }
            barrier::barrier_sync_all();
            if thread < WORKERS {
                for round in 0..ROUNDS {
                    let at = u64::from(round * BYTES + thread * 4);
                    global::st_global_f32(self.read + at, global::ld_global_f32(self.sums + at));
                }
            }
        }
    }

    fn kernel(&self) {
        let thread = special::thread_idx_x();
        // SAFETY: the whole block comes by.
        unsafe {
            if thread == 0 {
                mbarrier::mbarrier_init(full(), WORKERS);
                mbarrier::mbarrier_init(empty(), 1);
                mbarrier::fence_mbarrier_init();
            }
            barrier::barrier_sync_all();
        }
        for round in 0..ROUNDS {
            if thread < WORKERS {
                self.write(round);
            } else if thread == WORKERS {
                self.keep(round);
            }
        }
        if special::block_idx_x() == 0 {
            self.read();
        }
    }
}

fn expected(bug: Bug, round: u32, worker: u32) -> f32 {
    if bug == Bug::Unordered {
        return (0..BLOCKS).map(|block| block + worker + round).sum::<u32>() as f32;
    }
    let added = (0..BLOCKS).map(|block| added(block, round, worker));
    added.reduce(|sum, x| sum + x).unwrap_or_default()
}

fn run(bug: Bug, options: Options) -> Result<bool, Fault> {
    let words = (ROUNDS * WORKERS) as usize;
    let mut sums = vec![0.0f32; words];
    let mut read = vec![0.0f32; words];
    let mut semaphores = [0u32; ROUNDS as usize];
    let mut memory = GlobalMemory::new();
    let kernel = Sums {
        sums: match bug {
            Bug::Unordered => memory.in_out("sums", &mut sums),
            _ => memory.scratch("sums", &mut sums),
        },
        semaphores: memory.in_out("semaphores", &mut semaphores),
        read: memory.output("read", &mut read),
        bug,
    };
    let launch = Launch {
        grid: BLOCKS,
        threads: THREADS,
        shared_bytes: BYTES + 16,
        resident_blocks: BLOCKS,
        blocks_per_sm: 1,
        cluster: 1,
        spec: Spec::PLAIN,
    };
    emu::run(&launch, &options, &mut memory, &|| kernel.kernel())?;
    let right = |(i, x): (usize, &f32)| {
        let (round, worker) = (i as u32 / WORKERS, i as u32 % WORKERS);
        x.to_bits() == expected(bug, round, worker).to_bits()
    };
    let all_right = |x: &[f32]| x.iter().enumerate().all(right);
    Ok(all_right(&sums) && all_right(&read))
}

#[test]
fn the_right_kernels_pass() {
    let right = [
        Bug::None,
        Bug::Counts,
        Bug::Fences,
        Bug::HandsOverLater,
        Bug::Unordered,
    ];
    for bug in right {
        accept(|options| run(bug, options));
    }
}

/// Else the right sums would not show in which order they were made.
#[test]
fn another_order_gives_another_sum() {
    for worker in 0..WORKERS {
        let backwards = (0..BLOCKS).rev().map(|block| added(block, 0, worker));
        let backwards = backwards.reduce(|sum, x| sum + x);
        assert_ne!(backwards, Some(expected(Bug::None, 0, worker)));
    }
}

fn between_blocks(kind: &Kind) -> bool {
    match kind {
        Kind::Race {
            earlier,
            later,
            place: MemoryLocation::Global { buffer, .. },
        } => earlier.thread.block != later.thread.block && buffer == "sums",
        _ => false,
    }
}

/// What the one block has added is not known to the one that reads.
fn read_by_another_block(kind: &Kind) -> bool {
    match kind {
        Kind::Race { earlier, later, .. } => {
            let instructions = [earlier.instruction, later.instruction];
            between_blocks(kind) && instructions.contains(&"ld.global.f32")
        }
        _ => false,
    }
}

fn unfenced(kind: &Kind, wanted: &str) -> bool {
    match kind {
        Kind::Asynchronous(Asynchronous::Unfenced { fence, .. }) => *fence == wanted,
        _ => false,
    }
}

fn unfenced_global(kind: &Kind) -> bool {
    unfenced(kind, "fence.proxy.async.global")
}

/// A block that comes before the first may find nothing to add to.
fn between_blocks_or_nothing_there(kind: &Kind) -> bool {
    between_blocks(kind) || matches!(kind, Kind::Uninitialised { .. })
}

caught! {
    a_hand_over_of_what_has_only_been_read: WaitsForReadingOnly => between_blocks;
    one_hand_over_of_what_has_only_been_read: OneWaitsForReadingOnly => read_by_another_block;
    a_wait_for_one_group_too_few: WaitsForTheGroupBefore => between_blocks;
    a_hand_over_before_the_commit: HandsOverBeforeCommit => between_blocks;
    one_hand_over_before_the_wait: OneHandsOverBeforeWait => read_by_another_block;
    a_wait_for_what_was_not_committed: NeverCommits => |kind| matches!(kind, Kind::Race { .. });
    overwritten_while_it_is_read: OverwrittenWhileRead => |kind| {
        matches!(kind, Kind::Race { place: MemoryLocation::Shared(_), .. })
    };
    writes_that_are_not_fenced: WorkersDoNotFence => |kind| unfenced(kind, "fence.proxy.async");
    a_semaphore_that_is_not_fenced: SemaphoreDoesNotFence => unfenced_global;
    a_fence_before_the_wait: SemaphoreFencesTooEarly => unfenced_global;
    a_fence_of_threads_and_none_of_the_copy_engine: FencesThreadsOnly => unfenced_global;
    nobody_waits: NobodyWaits => between_blocks_or_nothing_there;
    a_wait_that_does_not_acquire: WaitDoesNotAcquire => between_blocks;
    a_hand_over_that_does_not_release: HandOverDoesNotRelease => between_blocks;
    a_store_where_others_add: OneStoresAtOnce => between_blocks_or_nothing_there;
    sums_that_were_not_cleared: NotCleared => |kind| matches!(kind, Kind::Uninitialised { .. });
    sums_read_before_they_are_done: ReaderDoesNotWait => between_blocks;
    sums_read_without_acquiring: ReaderDoesNotAcquire => read_by_another_block;
    a_thread_that_leaves_with_stores_unread: LeavesWithStoresUnread => |kind| {
        matches!(kind, Kind::CopiesUnfinished { .. })
    };
}

//! Blocks that add to one buffer in a fixed order, as the backward pass adds to dQ: each waits at a semaphore until all before it have added.

use ferroflash_kernels::emu::{self, Fault, GlobalMemory, Kind, Launch, MemoryLocation, Options};
use ferroflash_kernels::ptx::{atomic, barrier, global, special};
use ferroflash_kernels::spec::Spec;

use crate::accept;

#[derive(Clone, Copy, PartialEq)]
enum Bug {
    None,
    /// Right as well: relaxed accesses, ordered by fences.
    Fences,
    /// Right as well: atomic additions in no order; every block waits for all at the end.
    Unordered,
    RelaxedWait,
    RelaxedHandOver,
    HandsOverTooEarly,
    GoesOnTooEarly,
    NobodyWaits,
    WaitsForTheNext,
    PlainWait,
    NotCleared,
    ReadsUnorderedSum,
    TooFewResident,
}

const THREADS: u32 = 64;

#[derive(Clone, Copy)]
struct Semaphore {
    sums: u64,
    semaphore: u64,
    tile_counter: u64,
    bug: Bug,
}

impl Semaphore {
    fn wait(&self, rank: u32) {
        // SAFETY: the counter was set before the launch.
        unsafe {
            if special::thread_idx_x() == 0 && self.bug != Bug::NobodyWaits {
                match self.bug {
                    Bug::RelaxedWait => while atomic::ld_relaxed_u32(self.semaphore) != rank {},
                    Bug::PlainWait => while global::ld_global_u32(self.semaphore) != rank {},
                    Bug::WaitsForTheNext => {
                        while atomic::ld_acquire_u32(self.semaphore) != rank + 1 {}
                    }
                    Bug::Fences => {
                        while atomic::ld_relaxed_u32(self.semaphore) != rank {}
                        atomic::fence_acq_rel_gpu();
                    }
                    _ => while atomic::ld_acquire_u32(self.semaphore) != rank {},
                }
            }
            if self.bug != Bug::GoesOnTooEarly {
                barrier::barrier_sync_all();
            }
        }
    }

    fn hand_over(&self, rank: u32) {
        // SAFETY: as above.
        unsafe {
            if self.bug != Bug::HandsOverTooEarly {
                barrier::barrier_sync_all();
            }
            if special::thread_idx_x() == 0 {
                match self.bug {
                    Bug::RelaxedHandOver => {
                        atomic::atom_add_u32(self.semaphore, 1);
                    }
                    Bug::Fences => {
                        atomic::fence_acq_rel_gpu();
                        atomic::atom_add_u32(self.semaphore, 1);
                    }
                    Bug::Unordered | Bug::ReadsUnorderedSum => {
                        atomic::red_release_add_u32(self.semaphore, 1)
                    }
                    _ => atomic::st_release_u32(self.semaphore, rank + 1),
                }
            }
        }
    }

    fn kernel(&self) {
        let thread = special::thread_idx_x();
        let mine = self.sums + u64::from(thread) * 4;
        let blocks = special::grid_dim_x();
        // SAFETY: one word per thread; the semaphore orders the blocks.
        unsafe {
            if matches!(self.bug, Bug::Unordered | Bug::ReadsUnorderedSum) {
                atomic::red_add_f32(mine, (special::block_idx_x() + 1) as f32);
                self.hand_over(0);
                if self.bug == Bug::Unordered {
                    self.wait(blocks);
                }
                if special::block_idx_x() == 0 {
                    let sum = global::ld_global_f32(mine);
                    global::st_global_f32(mine, sum + 0.5);
                }
                return;
            }
            if thread == 0 {
                atomic::atom_add_u32(self.tile_counter, 1);
            }
            let rank = match self.bug {
                Bug::TooFewResident => blocks - 1 - special::block_idx_x(),
                _ => special::block_idx_x(),
            };
            self.wait(rank);
            let sum = global::ld_global_f32(mine);
            global::st_global_f32(mine, sum * 2.0 + (special::block_idx_x() + 1) as f32);
            self.hand_over(rank);
        }
    }
}

fn run(bug: Bug, options: Options) -> Result<bool, Fault> {
    let blocks = 5u32;
    let mut sums = vec![0.0f32; THREADS as usize];
    let (mut semaphore, mut tile_counter) = ([0u32], [0u32]);
    let mut memory = GlobalMemory::new();
    let sums_address = match bug {
        Bug::NotCleared => memory.scratch("sums", &mut sums),
        _ => memory.in_out("sums", &mut sums),
    };
    let (semaphore, tile_counter) = (
        memory.in_out("semaphore", &mut semaphore),
        memory.in_out("tile_counter", &mut tile_counter),
    );
    let kernel = Semaphore {
        sums: sums_address,
        semaphore,
        tile_counter,
        bug,
    };
    let resident_blocks = if bug == Bug::TooFewResident {
        2
    } else {
        blocks
    };
    let launch = Launch {
        grid: blocks,
        threads: THREADS,
        shared_bytes: 0,
        resident_blocks,
        blocks_per_sm: 1,
        cluster: 1,
        spec: Spec::PLAIN,
    };
    emu::run(&launch, &options, &mut memory, &|| kernel.kernel())?;
    let expected = match bug {
        Bug::Unordered => (1..=blocks).sum::<u32>() as f32 + 0.5,
        _ => (1..=blocks).fold(0.0, |sum, x| sum * 2.0 + x as f32),
    };
    Ok(sums.iter().all(|sum| *sum == expected))
}

#[test]
fn the_right_kernels_pass() {
    for bug in [Bug::None, Bug::Fences, Bug::Unordered] {
        accept(|options| run(bug, options));
    }
}

fn between_blocks(kind: &Kind) -> bool {
    match kind {
        Kind::Race {
            earlier,
            later,
            place: MemoryLocation::Global { .. },
        } => earlier.thread.block != later.thread.block,
        _ => false,
    }
}

caught! {
    a_wait_that_does_not_acquire: RelaxedWait => between_blocks;
    a_hand_over_that_does_not_release: RelaxedHandOver => between_blocks;
    a_hand_over_before_all_threads_are_done: HandsOverTooEarly => between_blocks;
    threads_that_do_not_wait_for_the_one_that_waits: GoesOnTooEarly => between_blocks;
    nobody_waits: NobodyWaits => between_blocks;
    a_rank_that_never_comes: WaitsForTheNext => |kind| match kind {
        Kind::Deadlock { waiting } => waiting.iter().any(|waiting| waiting.access.instruction == "ld.acquire.u32"),
        _ => false,
    };
    a_wait_by_plain_loads: PlainWait => between_blocks;
    a_sum_that_was_not_cleared: NotCleared => |kind| matches!(kind, Kind::Uninitialised { .. });
    a_sum_read_while_others_add: ReadsUnorderedSum => between_blocks;
    blocks_that_wait_for_blocks_that_cannot_start: TooFewResident => |kind| matches!(kind, Kind::Deadlock { .. });
}

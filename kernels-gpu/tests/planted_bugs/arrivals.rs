//! Blocks that write parts and, when none is left, merge the parts of all, as flash3 merges the splits of its tiles: a counter says how many
//! warps have written, and then how many have merged.

use ferroflash_kernels::emu::{self, Fault, GlobalMemory, Kind, Launch, MemoryLocation, Options};
use ferroflash_kernels::ptx::{atomic, barrier, global, shared, special};
use ferroflash_kernels::spec::Spec;

use crate::accept;

#[derive(Clone, Copy, PartialEq)]
enum Bug {
    None,
    WriterDoesNotFence,
    LanesDoNotMeet,
    CountsBeforeWriting,
    WaitDoesNotAcquire,
    NobodyWaits,
    WaitsForMergers,
    FirstPartByNumber,
    LeavesCount,
}

const BLOCKS: u32 = 4;
const WARPS: u32 = 2;
const PARTS: u32 = 6;
/// Of a part, each written by a warp.
const ROWS: u32 = WARPS;
const WRITERS: u32 = PARTS * WARPS;

#[derive(Clone, Copy)]
struct Arrivals {
    parts: u64,
    sums: u64,
    part_counter: u64,
    arrivals: u64,
    bug: Bug,
}

impl Arrivals {
    fn is(&self, bug: Bug) -> bool {
        self.bug == bug
    }

    fn count(&self) {
        let last = WRITERS + ROWS - if self.is(Bug::LeavesCount) { 0 } else { 1 };
        if special::lane_idx() == 0 {
            // SAFETY: the counter was set before the launch.
            unsafe { atomic::atom_inc_u32(self.arrivals, last) };
        }
    }

    /// A part of a block's own, which its warps learn through a barrier.
    fn claim(&self, first: bool) -> u32 {
        // SAFETY: all threads come here; the block has a word of shared memory.
        unsafe {
            let at = special::shared_base();
            barrier::barrier_sync_all();
            if special::thread_idx_x() == 0 {
                let claimed = match (self.bug, first) {
                    (Bug::FirstPartByNumber, true) => special::block_idx_x(),
                    (Bug::FirstPartByNumber, false) => {
                        BLOCKS + atomic::atom_inc_u32(self.part_counter, PARTS - 1)
                    }
                    _ => atomic::atom_inc_u32(self.part_counter, PARTS + BLOCKS - 1),
                };
                shared::st_shared_u32(at, claimed);
            }
            barrier::barrier_sync_all();
            shared::ld_shared_u32(at)
        }
    }

    fn write(&self, part: u32) {
        let thread = special::thread_idx_x();
        let at = self.parts + u64::from(part * WARPS * 32 + thread) * 4;
        // SAFETY: a word for each thread of each part.
        unsafe {
            if self.is(Bug::CountsBeforeWriting) {
                atomic::fence_acq_rel_gpu();
                self.count();
            }
            global::st_global_f32(at, (part + thread) as f32);
            if !self.is(Bug::LanesDoNotMeet) {
                barrier::warp_sync();
            }
            if !self.is(Bug::WriterDoesNotFence) {
                atomic::fence_acq_rel_gpu();
            }
        }
        if !self.is(Bug::CountsBeforeWriting) {
            self.count();
        }
    }

    fn wait(&self) {
        let writers = match self.bug {
            Bug::WaitsForMergers => WRITERS + ROWS,
            _ => WRITERS,
        };
        // SAFETY: the counter was set before the launch.
        unsafe {
            match self.bug {
                Bug::NobodyWaits => {}
                Bug::WaitDoesNotAcquire => while atomic::ld_relaxed_u32(self.arrivals) < writers {},
                _ => while atomic::ld_acquire_u32(self.arrivals) < writers {},
            }
            // The counter may be 0 again when all have merged.
            barrier::warp_sync();
        }
    }

    fn kernel(&self) {
        let mut part = self.claim(true);
        while part < PARTS {
            self.write(part);
            part = self.claim(false);
        }
        let row = special::thread_idx_x() / 32 * BLOCKS + special::block_idx_x();
        if row >= ROWS {
            return;
        }
        self.wait();
        let column = row * 32 + special::lane_idx();
        let mut sum = 0.0;
        for part in 0..PARTS {
            // SAFETY: the part has been written.
            sum += unsafe {
                global::ld_global_f32(self.parts + u64::from(part * WARPS * 32 + column) * 4)
            };
        }
        // SAFETY: a word for each lane of each row.
        unsafe { global::st_global_f32(self.sums + u64::from(column) * 4, sum) };
        self.count();
    }
}

fn run(bug: Bug, options: Options) -> Result<bool, Fault> {
    let mut parts = vec![0.0f32; (PARTS * WARPS * 32) as usize];
    let mut sums = vec![0.0f32; (ROWS * 32) as usize];
    let (mut part_counter, mut arrivals) = ([0u32], [0u32]);
    let mut memory = GlobalMemory::new();
    let kernel = Arrivals {
        parts: memory.scratch("parts", &mut parts),
        sums: memory.in_out("sums", &mut sums),
        part_counter: memory.in_out("part_counter", &mut part_counter),
        arrivals: memory.in_out("arrivals", &mut arrivals),
        bug,
    };
    let launch = Launch {
        grid: BLOCKS,
        threads: WARPS * 32,
        shared_bytes: 4,
        // As on a device that other work keeps busy.
        resident_blocks: 2,
        blocks_per_sm: 1,
        cluster: 1,
        spec: Spec::PLAIN,
    };
    emu::run(&launch, &options, &mut memory, &|| kernel.kernel())?;
    let sum = |at: usize| {
        (0..PARTS)
            .map(|part| (part + at as u32) as f32)
            .sum::<f32>()
    };
    let right = sums.iter().enumerate().all(|(at, x)| *x == sum(at));
    Ok(right && part_counter == [0] && arrivals == [0])
}

#[test]
fn the_right_kernel_passes() {
    accept(|options| run(Bug::None, options));
}

#[test]
fn a_counter_that_is_not_0_in_the_end() {
    crate::catch(crate::Shows::InNumbers, |options| {
        run(Bug::LeavesCount, options)
    });
}

/// What one thread wrote and another read without an order, or before it was written.
fn unordered(kind: &Kind) -> bool {
    match kind {
        Kind::Race { place, .. } => matches!(place, MemoryLocation::Global { .. }),
        Kind::Uninitialised { .. } => true,
        _ => false,
    }
}

caught! {
    a_writer_that_does_not_fence: WriterDoesNotFence => unordered;
    lanes_that_do_not_meet_before_one_counts_for_them: LanesDoNotMeet => unordered;
    a_count_before_the_writing: CountsBeforeWriting => unordered;
    a_wait_that_does_not_acquire: WaitDoesNotAcquire => unordered;
    nobody_waits: NobodyWaits => unordered;
    a_wait_for_those_who_merge: WaitsForMergers => |kind| matches!(kind, Kind::Deadlock { .. });
    blocks_that_wait_for_the_part_of_one_that_cannot_start: FirstPartByNumber => |kind| matches!(kind, Kind::Deadlock { .. });
}

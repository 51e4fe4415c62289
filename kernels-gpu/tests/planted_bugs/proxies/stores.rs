//! The copy engine stores numbers, which threads of the same block and of another read.

use ferroflash_kernels::emu::{self, Fault, GlobalMemory, Launch, Options};
use ferroflash_kernels::params::TensorMap;
use ferroflash_kernels::ptx::{atomic, barrier, global, special, tma};
use ferroflash_kernels::spec::Spec;

use super::{BYTES, NUMBERS, THREADS, address, fill_shared, map, others, race, value};
use crate::accept;

/// What is read, and how it came there.
#[derive(Clone, Copy, PartialEq)]
enum Store {
    Bytes,
    Box,
    /// Added to zeros.
    Sums,
}

#[derive(Clone, Copy, PartialEq)]
enum Bug {
    None,
    /// Right as well: one of two groups is waited for, the other when it is read.
    WaitsGroupByGroup,
    NobodyWaits,
    WaitsForReadingOnly,
    WaitsBeforeCommit,
    WaitsForTheGroupBefore,
    AnotherThreadWaits,
    OneReadsBeforeBarrier,
    HandsOverBeforeWait,
    WritesAfterReadingOnly,
}

struct Kernel {
    numbers: u64,
    map: TensorMap,
    flag: u64,
    /// What each of the two blocks has seen.
    seen: [u64; 2],
    store: Store,
    bug: Bug,
}

impl Kernel {
    /// One thread stores all numbers, the last 16 bytes of those side by side as a group of their own.
    fn store(&self) {
        let from = special::shared_base();
        let (to, rest) = (self.numbers, BYTES - 16);
        // SAFETY: the numbers were written and fenced before a barrier.
        unsafe {
            match self.store {
                Store::Bytes => tma::bulk_store(to, from, rest),
                Store::Sums => tma::bulk_add_f32(to, from, rest),
                Store::Box => tma::tma_store_if(address(&self.map), [0; 4], from, 1),
            }
            if self.bug == Bug::WaitsBeforeCommit {
                tma::bulk_wait_group::<0>();
            }
            tma::bulk_commit_group();
            match self.store {
                Store::Bytes => tma::bulk_store(to + u64::from(rest), from + rest, 16),
                Store::Sums => tma::bulk_add_f32(to + u64::from(rest), from + rest, 16),
                Store::Box => {}
            }
            if self.bug == Bug::WaitsBeforeCommit {
                tma::bulk_wait_group::<0>();
            }
            if self.store != Store::Box {
                tma::bulk_commit_group();
            }
        }
    }

    fn wait(&self) {
        match self.bug {
            Bug::NobodyWaits => {}
            Bug::WaitsForReadingOnly
            | Bug::WritesAfterReadingOnly
            | Bug::WaitsBeforeCommit
            | Bug::AnotherThreadWaits => tma::bulk_wait_group_read::<0>(),
            Bug::WaitsForTheGroupBefore => tma::bulk_wait_group::<1>(),
            Bug::WaitsGroupByGroup => {
                tma::bulk_wait_group::<1>();
                tma::bulk_wait_group::<0>();
            }
            _ => tma::bulk_wait_group::<0>(),
        }
    }

    fn read(&self) {
        let seen = self.seen[special::block_idx_x() as usize];
        for number in others() {
            let at = u64::from(number) * 4;
            // SAFETY: inside the buffers; one place for every number.
            unsafe { global::st_global_f32(seen + at, global::ld_global_f32(self.numbers + at)) };
        }
    }

    fn give(&self) {
        let thread = special::thread_idx_x();
        fill_shared(self.store == Store::Box);
        tma::fence_proxy_async();
        // SAFETY: the whole block comes by.
        unsafe {
            barrier::barrier_sync_all();
            if thread == 0 {
                self.store();
                if self.bug == Bug::HandsOverBeforeWait {
                    atomic::st_release_u32(self.flag, 1);
                }
                self.wait();
                if self.bug == Bug::WritesAfterReadingOnly {
                    global::st_global_f32(self.numbers, value(0));
                }
            }
            if thread == 1 && self.bug == Bug::AnotherThreadWaits {
                tma::bulk_wait_group::<0>();
            }
            if thread == THREADS - 1 && self.bug == Bug::OneReadsBeforeBarrier {
                self.read();
            }
            barrier::barrier_sync_all();
            if thread == 0 && self.bug != Bug::HandsOverBeforeWait {
                atomic::st_release_u32(self.flag, 1);
            }
            if self.bug != Bug::HandsOverBeforeWait {
                self.read();
            }
        }
    }

    fn take(&self) {
        // SAFETY: the whole block comes by; the flag was set before the launch.
        unsafe {
            if special::thread_idx_x() == 7 {
                while atomic::ld_acquire_u32(self.flag) == 0 {}
            }
            barrier::barrier_sync_all();
        }
        self.read();
    }

    fn run(&self) {
        match special::block_idx_x() {
            0 => self.give(),
            _ => self.take(),
        }
    }
}

fn run_store(store: Store, bug: Bug, options: Options) -> Result<bool, Fault> {
    // On the heap, aligned to 16 bytes.
    let mut numbers = vec![0.0f32; NUMBERS as usize];
    let (mut here, mut there) = (numbers.clone(), numbers.clone());
    let mut flag = [0u32];
    let mut memory = GlobalMemory::new();
    let numbers = memory.in_out("numbers", &mut numbers);
    let kernel = Kernel {
        numbers,
        map: map(numbers),
        flag: memory.in_out("flag", &mut flag),
        seen: [
            memory.output("here", &mut here),
            memory.output("there", &mut there),
        ],
        store,
        bug,
    };
    let launch = Launch {
        grid: 2,
        threads: THREADS,
        shared_bytes: BYTES,
        resident_blocks: 2,
        blocks_per_sm: 1,
        cluster: 1,
        spec: Spec::PLAIN,
    };
    emu::run(&launch, &options, &mut memory, &|| kernel.run())?;
    drop(memory);
    let right = |number: u32| {
        let seen = [here[number as usize], there[number as usize]];
        seen == [value(number); 2]
    };
    Ok((0..NUMBERS).all(right))
}

#[test]
fn the_right_kernels_pass() {
    for store in [Store::Bytes, Store::Box, Store::Sums] {
        for bug in [Bug::None, Bug::WaitsGroupByGroup] {
            accept(|options| run_store(store, bug, options));
        }
    }
}

mod bytes {
    use super::*;

    fn run(bug: Bug, options: Options) -> Result<bool, Fault> {
        run_store(Store::Bytes, bug, options)
    }

    caught! {
        nobody_waits: NobodyWaits => race;
        a_wait_for_reading_only: WaitsForReadingOnly => race;
        a_wait_before_the_commit: WaitsBeforeCommit => race;
        a_wait_for_one_group_too_few: WaitsForTheGroupBefore => race;
        a_wait_by_another_thread: AnotherThreadWaits => race;
        a_read_before_the_barrier: OneReadsBeforeBarrier => race;
        a_hand_over_before_the_wait: HandsOverBeforeWait => race;
        a_write_over_what_has_only_been_read: WritesAfterReadingOnly => race;
    }
}

mod boxes {
    use super::*;

    fn run(bug: Bug, options: Options) -> Result<bool, Fault> {
        run_store(Store::Box, bug, options)
    }

    caught! {
        nobody_waits: NobodyWaits => race;
        a_wait_for_reading_only: WaitsForReadingOnly => race;
        a_wait_by_another_thread: AnotherThreadWaits => race;
        a_read_before_the_barrier: OneReadsBeforeBarrier => race;
        a_hand_over_before_the_wait: HandsOverBeforeWait => race;
        a_write_over_what_has_only_been_read: WritesAfterReadingOnly => race;
    }
}

mod sums {
    use super::*;

    fn run(bug: Bug, options: Options) -> Result<bool, Fault> {
        run_store(Store::Sums, bug, options)
    }

    caught! {
        a_wait_for_reading_only: WaitsForReadingOnly => race;
        a_wait_for_one_group_too_few: WaitsForTheGroupBefore => race;
        a_hand_over_before_the_wait: HandsOverBeforeWait => race;
        a_write_over_what_has_only_been_read: WritesAfterReadingOnly => race;
    }
}

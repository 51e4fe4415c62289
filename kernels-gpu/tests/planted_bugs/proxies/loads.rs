//! Threads of the first block write numbers, which the copy engine loads for the second.

use ferroflash_kernels::emu::{self, Fault, GlobalMemory, Launch, Options};
use ferroflash_kernels::params::TensorMap;
use ferroflash_kernels::ptx::{atomic, barrier, global, mbarrier, shared, special, tma};
use ferroflash_kernels::spec::Spec;

use super::{BYTES, NUMBERS, THREADS, address, bar, make_barrier, map, mine, others, place};
use super::{race, unfenced, value};
use crate::accept;

#[derive(Clone, Copy, PartialEq)]
enum Bug {
    None,
    /// Right as well: not the writers fence but the thread that hands over.
    GiverFences,
    /// Right as well: the thread that loads fences, when it has heard of the numbers.
    ProducerFences,
    /// Right as well: the numbers are added, not written.
    Adds,
    /// Right as well: a box is loaded.
    LoadsBox,
    /// Right as well: numbers are written by the copy engine, over those of the threads.
    Overwrites,
    NobodyFences,
    FencesBeforeWriting,
    FencesSharedMemory,
    OneWriterDoesNotFence,
    GiverFencesBeforeBarrier,
    GiverFencesTooLate,
    ProducerFencesTooEarly,
    AddsWithoutFence,
    LoadsBoxWithoutFence,
    OverwritesWithoutFence,
    ProducerFencesStoresTooEarly,
    ProducerDoesNotWait,
    OverwritesBeforeLoad,
}

struct Kernel {
    numbers: u64,
    map: TensorMap,
    flag: u64,
    /// What the second block has seen.
    seen: u64,
    bug: Bug,
}

impl Kernel {
    fn is(&self, bugs: &[Bug]) -> bool {
        bugs.contains(&self.bug)
    }

    fn is_box(&self) -> bool {
        self.is(&[Bug::LoadsBox, Bug::LoadsBoxWithoutFence])
    }

    /// A thread's numbers, and its fence.
    fn write(&self) {
        use Bug::*;
        let thread = special::thread_idx_x();
        if self.is(&[FencesBeforeWriting]) {
            tma::fence_proxy_async_global();
        }
        for number in mine() {
            let at = self.numbers + u64::from(number) * 4;
            // SAFETY: inside the buffer.
            unsafe {
                if self.is(&[Adds, AddsWithoutFence]) {
                    atomic::red_add_f32(at, value(number));
                } else {
                    global::st_global_f32(at, value(number));
                }
            }
        }
        match self.bug {
            FencesSharedMemory => tma::fence_proxy_async(),
            GiverFencesBeforeBarrier if thread != 0 => {}
            OneWriterDoesNotFence if thread == THREADS - 1 => {}
            None
            | Adds
            | LoadsBox
            | Overwrites
            | OneWriterDoesNotFence
            | GiverFencesBeforeBarrier
            | ProducerDoesNotWait
            | OverwritesBeforeLoad
            | ProducerFencesStoresTooEarly => tma::fence_proxy_async_global(),
            _ => {}
        }
    }

    /// One thread has the copy engine write the same numbers once more.
    fn overwrite(&self) {
        for number in 0..NUMBERS {
            // SAFETY: inside shared memory, which nobody else uses.
            unsafe { shared::st_shared_f32(place(number, false), value(number)) };
        }
        tma::fence_proxy_async();
        // SAFETY: what was written and fenced.
        unsafe { tma::bulk_store(self.numbers, special::shared_base(), BYTES) };
        tma::bulk_commit_group();
        tma::bulk_wait_group::<0>();
    }

    fn give(&self) {
        use Bug::*;
        self.write();
        // SAFETY: the whole block comes by; the flag was set before the launch.
        unsafe {
            barrier::barrier_sync_all();
            if special::thread_idx_x() != 0 {
                return;
            }
            if self.is(&[GiverFences]) {
                tma::fence_proxy_async_global();
            }
            if self.is(&[
                Overwrites,
                OverwritesWithoutFence,
                ProducerFencesStoresTooEarly,
            ]) {
                self.overwrite();
            }
            atomic::st_release_u32(self.flag, 1);
            if self.is(&[GiverFencesTooLate]) {
                tma::fence_proxy_async_global();
            }
            if self.is(&[OverwritesBeforeLoad]) {
                self.overwrite();
            }
        }
    }

    /// One thread hears of the numbers and has them loaded.
    fn load(&self) {
        use Bug::*;
        if self.is(&[ProducerFencesTooEarly, ProducerFencesStoresTooEarly]) {
            tma::fence_proxy_async_global();
        }
        // SAFETY: the barrier was made; the numbers are there when the flag says so.
        unsafe {
            if !self.is(&[ProducerDoesNotWait]) {
                while atomic::ld_acquire_u32(self.flag) == 0 {}
            }
            if self.is(&[ProducerFences, Overwrites]) {
                tma::fence_proxy_async_global();
            }
            mbarrier::mbarrier_arrive_expect_tx(bar(), BYTES);
            if self.is_box() {
                tma::tma_load(special::shared_base(), address(&self.map), [0; 4], bar());
            } else {
                tma::bulk_load(special::shared_base(), self.numbers, BYTES, bar());
            }
        }
    }

    fn take(&self) {
        make_barrier();
        // SAFETY: the whole block comes by; one place for every number.
        unsafe {
            barrier::barrier_sync_all();
            if special::thread_idx_x() == 32 {
                self.load();
            }
            mbarrier::mbarrier_wait(bar(), 0);
            for number in others() {
                let x = shared::ld_shared_f32(place(number, self.is_box()));
                global::st_global_f32(self.seen + u64::from(number) * 4, x);
            }
        }
    }

    fn run(&self) {
        match special::block_idx_x() {
            0 => self.give(),
            _ => self.take(),
        }
    }
}

fn run(bug: Bug, options: Options) -> Result<bool, Fault> {
    // On the heap, aligned to 16 bytes.
    let mut numbers = vec![0.0f32; NUMBERS as usize];
    let (mut seen, mut flag) = (numbers.clone(), [0u32]);
    let mut memory = GlobalMemory::new();
    let numbers = memory.in_out("numbers", &mut numbers);
    let kernel = Kernel {
        numbers,
        map: map(numbers),
        flag: memory.in_out("flag", &mut flag),
        seen: memory.output("seen", &mut seen),
        bug,
    };
    let launch = Launch {
        grid: 2,
        threads: THREADS,
        shared_bytes: BYTES + 8,
        resident_blocks: 2,
        blocks_per_sm: 1,
        cluster: 1,
        spec: Spec::PLAIN,
    };
    emu::run(&launch, &options, &mut memory, &|| kernel.run())?;
    drop(memory);
    Ok((0..NUMBERS).all(|number| seen[number as usize] == value(number)))
}

#[test]
fn the_right_kernels_pass() {
    let right = [
        Bug::None,
        Bug::GiverFences,
        Bug::ProducerFences,
        Bug::Adds,
        Bug::LoadsBox,
        Bug::Overwrites,
    ];
    for bug in right {
        accept(|options| run(bug, options));
    }
}

caught! {
    numbers_that_nobody_fences: NobodyFences => unfenced;
    a_fence_before_the_writes: FencesBeforeWriting => unfenced;
    a_fence_of_shared_memory: FencesSharedMemory => unfenced;
    a_writer_that_does_not_fence: OneWriterDoesNotFence => unfenced;
    a_fence_before_the_others_have_come: GiverFencesBeforeBarrier => unfenced;
    a_fence_after_the_hand_over: GiverFencesTooLate => unfenced;
    a_fence_before_the_news: ProducerFencesTooEarly => unfenced;
    additions_that_nobody_fences: AddsWithoutFence => unfenced;
    a_box_that_nobody_fences: LoadsBoxWithoutFence => unfenced;
    a_store_over_what_nobody_fenced: OverwritesWithoutFence => unfenced;
    another_blocks_stores_fenced_before_the_news: ProducerFencesStoresTooEarly => unfenced;
    a_load_that_waits_for_nobody: ProducerDoesNotWait => race;
    a_store_while_another_block_loads: OverwritesBeforeLoad => race;
}

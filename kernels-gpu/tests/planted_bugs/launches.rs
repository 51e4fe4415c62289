//! Launches: what is refused, what a run leaves behind, and that a fault does no harm to the next run.

use std::cell::Cell;

use ferroflash_kernels::emu::{
    self, Fault, GlobalMemory, Kind, Launch, MemoryLocation, Options, Stats,
};
use ferroflash_kernels::ptx::{barrier, global, special, warpgroup};
use ferroflash_kernels::spec::Spec;

const LAUNCH: Launch = Launch {
    grid: 3,
    threads: 64,
    shared_bytes: 0,
    resident_blocks: 2,
    blocks_per_sm: 1,
    cluster: 1,
    spec: Spec::PLAIN,
};

fn run(launch: Launch, kernel: &dyn Fn()) -> Result<Stats, Fault> {
    emu::run(
        &launch,
        &Options::seeded(7),
        &mut GlobalMemory::new(),
        kernel,
    )
}

#[test]
fn impossible_launches_are_refused() {
    let refused = [
        Launch {
            threads: 0,
            ..LAUNCH
        },
        Launch {
            threads: 48,
            ..LAUNCH
        },
        Launch {
            threads: 1056,
            ..LAUNCH
        },
        Launch {
            shared_bytes: (227 << 10) + 1,
            ..LAUNCH
        },
        Launch {
            resident_blocks: 0,
            ..LAUNCH
        },
        Launch {
            blocks_per_sm: 0,
            ..LAUNCH
        },
        Launch {
            blocks_per_sm: 33,
            ..LAUNCH
        },
        Launch {
            shared_bytes: (113 << 10) + 1,
            blocks_per_sm: 2,
            ..LAUNCH
        },
        Launch {
            grid: 469,
            resident_blocks: 469,
            ..LAUNCH
        },
    ];
    for launch in refused {
        let fault = run(launch, &|| panic!("it runs")).unwrap_err();
        assert!(
            matches!(fault.kind(), Kind::BadLaunch { .. }),
            "{launch:?}: {fault}"
        );
    }
}

/// Together they want more stacks than a process has: they wait for each other.
#[test]
fn large_launches_run_side_by_side() {
    let large = Launch {
        grid: 20,
        threads: 1024,
        resident_blocks: 20,
        ..LAUNCH
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                // SAFETY: the whole block comes by.
                let stats = run(large, &|| unsafe { barrier::barrier_sync_all() });
                assert_eq!(stats.unwrap().blocks, 20);
            });
        }
    });
}

#[test]
fn a_kernel_cannot_launch_a_kernel() {
    let refusals = Cell::new(0);
    let inner = || {
        let fault = run(LAUNCH, &|| {}).unwrap_err();
        refusals.set(refusals.get() + u32::from(matches!(fault.kind(), Kind::BadLaunch { .. })));
    };
    assert!(run(LAUNCH, &inner).is_ok());
    assert_eq!(refusals.get(), LAUNCH.grid * LAUNCH.threads);
}

#[test]
fn every_thread_of_every_block_runs_once() {
    let runs = Cell::new([[0; 64]; 3]);
    let count = || {
        let mut all = runs.get();
        all[special::block_idx_x() as usize][special::thread_idx_x() as usize] += 1;
        runs.set(all);
        assert_eq!((special::block_dim_x(), special::grid_dim_x()), (64, 3));
        assert_eq!(special::lane_idx(), special::thread_idx_x() % 32);
    };
    let stats = run(LAUNCH, &count).unwrap();
    assert_eq!(runs.get(), [[1; 64]; 3]);
    assert_eq!((stats.blocks, stats.warp_instructions), (3, 0));
    assert_eq!(
        run(Launch { grid: 0, ..LAUNCH }, &count).unwrap(),
        Stats::default()
    );
}

/// Each thread adds 1 to its own word.
fn increment(words: u64) {
    let mine = words + u64::from(special::block_idx_x() * 64 + special::thread_idx_x()) * 4;
    // SAFETY: inside the buffer, or wrong on purpose.
    unsafe { global::st_global_u32(mine, global::ld_global_u32(mine) + 1) };
}

#[test]
fn launches_see_what_earlier_launches_wrote() {
    let mut words = [0u32; 192];
    let mut memory = GlobalMemory::new();
    let address = memory.in_out("words", &mut words);
    for _ in 0..3 {
        emu::run(&LAUNCH, &Options::seeded(1), &mut memory, &|| {
            increment(address)
        })
        .unwrap();
    }
    assert_eq!(words, [3; 192]);
}

#[test]
fn after_a_fault_the_memory_serves_on() {
    let mut words = [0u32; 192];
    let mut memory = GlobalMemory::new();
    let address = memory.in_out("words", &mut words);
    let beyond = Launch { grid: 4, ..LAUNCH };
    let fault = emu::run(&beyond, &Options::seeded(1), &mut memory, &|| {
        increment(address)
    });
    assert!(matches!(
        fault.unwrap_err().kind(),
        Kind::OutOfBounds {
            bytes: 4,
            size: 768,
            ..
        }
    ));
    let fault = emu::run(&LAUNCH, &Options::seeded(1), &mut memory, &|| {
        panic!("planted")
    });
    assert!(matches!(fault.unwrap_err().kind(), Kind::Panic { .. }));
    emu::run(&LAUNCH, &Options::seeded(1), &mut memory, &|| {
        increment(address)
    })
    .unwrap();
}

/// Counts those of its kind that are alive.
struct Alive<'a>(&'a Cell<u32>);

impl<'a> Alive<'a> {
    fn new(count: &'a Cell<u32>) -> Alive<'a> {
        count.set(count.get() + 1);
        Alive(count)
    }
}

impl Drop for Alive<'_> {
    fn drop(&mut self) {
        // Instructions of a thread that is ended wait for nobody, and their faults are not reported.
        // SAFETY: wrong on purpose: not all threads come by, and there is no buffer.
        unsafe {
            barrier::barrier_sync_all();
            global::st_global_u32(64, 1);
        }
        self.0.set(self.0.get() - 1);
    }
}

/// Runs a kernel whose first warp comes to `end` while the second waits for it, and asks what is left of the threads.
fn check_ending(end: fn(), accepts: fn(&Kind) -> bool) {
    let (alive, most) = (Cell::new(0), Cell::new(0));
    let kernel = || {
        let _outer = Alive::new(&alive);
        let _inner = Alive::new(&alive);
        most.set(most.get().max(alive.get()));
        // SAFETY: the whole block comes by the first barrier.
        unsafe {
            barrier::barrier_sync_all();
            if special::thread_idx_x() < 32 {
                barrier::warp_sync();
                end();
            }
            barrier::barrier_sync_all();
        }
    };
    let fault = run(LAUNCH, &kernel).unwrap_err();
    assert!(accepts(fault.kind()), "{fault}");
    assert!(
        most.get() >= 2 * LAUNCH.threads,
        "not all threads of a block began"
    );
    assert_eq!(alive.get(), 0, "{fault}");
}

/// However a launch ends, what its threads hold is dropped: it may have borrowed what is gone after the launch.
#[test]
fn a_launch_that_ends_early_drops_what_its_threads_hold() {
    check_ending(
        // SAFETY: wrong on purpose: there is no buffer.
        || _ = unsafe { global::ld_global_u32(64) },
        |kind| matches!(kind, Kind::OutOfBounds { .. }),
    );
    check_ending(
        // SAFETY: wrong on purpose: nobody else comes.
        || unsafe { barrier::barrier_sync(1, 64) },
        |kind| matches!(kind, Kind::Deadlock { .. }),
    );
    check_ending(
        || panic!("planted"),
        |kind| matches!(kind, Kind::Panic { message, .. } if message == "planted"),
    );
}

/// Who is unwinding waits for nothing: a kernel of such a thread would not run as a kernel does.
#[test]
fn a_thread_that_panics_launches_nothing() {
    struct Launches<'a>(&'a Cell<bool>);
    impl Drop for Launches<'_> {
        fn drop(&mut self) {
            let fault = run(LAUNCH, &|| panic!("it runs")).unwrap_err();
            self.0.set(matches!(fault.kind(), Kind::BadLaunch { .. }));
        }
    }
    let refused = Cell::new(false);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _launches = Launches(&refused);
        panic!("planted");
    }));
    assert!(panicked.is_err() && refused.get());
}

/// The end of one buffer is not the beginning of the next, even where it is.
#[test]
fn a_neighbour_is_out_of_bounds() {
    let numbers = [7u32; 384];
    let (first, second) = numbers.split_at(192);
    let mut memory = GlobalMemory::new();
    let first = memory.input("first", first);
    memory.input("second", second);
    let beyond = Launch { grid: 4, ..LAUNCH };
    let read = || {
        let mine = u64::from(special::block_idx_x() * 64 + special::thread_idx_x());
        // SAFETY: wrong on purpose: the fourth block has no words.
        unsafe { global::ld_global_u32(first + mine * 4) };
    };
    let fault = emu::run(&beyond, &Options::seeded(1), &mut memory, &read).unwrap_err();
    let Kind::OutOfBounds { place, .. } = fault.kind() else {
        panic!("{fault}")
    };
    assert!(
        matches!(place, MemoryLocation::Global { buffer, .. } if buffer == "first"),
        "{fault}"
    );
}

#[test]
fn an_address_of_no_buffer_is_out_of_bounds() {
    let fault = run(LAUNCH, &|| {
        // SAFETY: wrong on purpose: there is no buffer.
        unsafe { global::st_global_u32(64, 1) }
    });
    assert!(matches!(
        fault.unwrap_err().kind(),
        Kind::OutOfBounds { .. }
    ));
}

#[test]
fn instructions_outside_of_a_run_panic() {
    assert!(std::panic::catch_unwind(special::thread_idx_x).is_err());
}

/// A warpgroup gives its registers back, all but 24 for each thread, and the other takes them.
fn hand_over<const REGISTERS: u32>() {
    // SAFETY: the warpgroups come by; what is wrong is wrong on purpose.
    unsafe {
        if special::thread_idx_x() < 128 {
            warpgroup::setmaxnreg_dec::<24>();
        } else {
            warpgroup::setmaxnreg_inc::<REGISTERS>();
        }
    }
}

#[test]
fn blocks_that_share_a_multiprocessor_share_its_registers() {
    let alone = Launch {
        threads: 256,
        ..LAUNCH
    };
    let shared = Launch {
        blocks_per_sm: 2,
        ..alone
    };
    run(alone, &hand_over::<256>).unwrap();
    run(shared, &hand_over::<232>).unwrap();
    let fault = run(shared, &hand_over::<240>).unwrap_err();
    let lacks = "240 registers for each thread";
    assert!(
        matches!(fault.kind(), Kind::Deadlock { .. }) && fault.to_string().contains(lacks),
        "{fault}"
    );
}

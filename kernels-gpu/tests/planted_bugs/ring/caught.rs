//! What must be found in which wrong kernel.

use ferroflash_kernels::emu::{Asynchronous, Kind, MemoryLocation, Thread};

use super::{Bug, Problem, Q, run};
use crate::{Shows, accept, catch};

const PROBLEM: Problem = Problem {
    seqlen_q: 200,
    seqlen_k: 170,
    consumers: 2,
    q_from: Q::Shared,
};

#[test]
fn the_right_kernel_with_two_consumers_passes() {
    accept(|options| run(PROBLEM, Bug::None, options));
}

#[test]
fn the_right_kernel_with_one_consumer_passes() {
    let problem = Problem {
        seqlen_q: 150,
        consumers: 1,
        ..PROBLEM
    };
    accept(|options| run(problem, Bug::None, options));
}

#[test]
fn the_right_kernel_with_q_in_registers_passes() {
    let q_from = Q::Registers;
    accept(|options| run(Problem { q_from, ..PROBLEM }, Bug::None, options));
}
macro_rules! caught {
    ($($name:ident: $bug:ident => $shows:expr;)*) => { $(
        #[test]
        fn $name() {
            catch($shows, |options| run(problem(Bug::$bug), Bug::$bug, options));
        }
    )* };
}

/// The problem in which a bug does harm.
fn problem(bug: Bug) -> Problem {
    match bug {
        // With more blocks of keys, the order of V's stages keeps Q until its reads are over.
        Bug::ReleasesAfterLdmatrix => Problem {
            seqlen_k: 60,
            q_from: Q::Registers,
            ..PROBLEM
        },
        _ => PROBLEM,
    }
}

fn in_shared(place: &MemoryLocation) -> bool {
    matches!(place, MemoryLocation::Shared(_))
}

/// A product on what is not there, or not there for this thread.
fn reads_too_early(kind: &Kind) -> bool {
    match kind {
        Kind::InFlight { access, .. } | Kind::Uninitialised { access, .. } => {
            access.instruction == "wgmma.mma_async"
        }
        Kind::Race { earlier, later, .. } => {
            earlier.thread.warp == Thread::ENGINE && later.instruction == "wgmma.mma_async"
        }
        _ => false,
    }
}

/// A copy over what somebody may still read.
fn refills_too_early(kind: &Kind, reader: &str) -> bool {
    match kind {
        Kind::Race {
            earlier,
            later,
            place,
        } => {
            earlier.instruction == reader
                && later.instruction == "cp.async.bulk.tensor (load)"
                && in_shared(place)
        }
        _ => false,
    }
}

fn unfenced(kind: &Kind, missing: &str) -> bool {
    matches!(kind, Kind::Asynchronous(Asynchronous::Unfenced { fence, .. }) if *fence == missing)
}

/// Everybody at the end waits for somebody at this instruction.
fn deadlocked_at(kind: &Kind, instruction: &str) -> bool {
    match kind {
        Kind::Deadlock { waiting } => waiting
            .iter()
            .any(|waiting| waiting.access.instruction == instruction),
        _ => false,
    }
}

fn lacks(kind: &Kind, what: &str) -> bool {
    match kind {
        Kind::Deadlock { waiting } => waiting.iter().any(|waiting| waiting.until.ends_with(what)),
        _ => false,
    }
}

caught! {
    // A wait for the wrong phase passes at once, or never.
    a_wrong_parity: WrongParity => Shows::As(|kind| {
        reads_too_early(kind) || deadlocked_at(kind, "mbarrier.try_wait.parity")
    });
    too_few_bytes_expected: TooFewBytesExpected => Shows::As(reads_too_early);
    too_many_bytes_expected: TooManyBytesExpected => Shows::As(|kind| lacks(kind, "0 arrivals and 128 bytes"));
    no_wait_for_a_full_stage: NoWaitForFull => Shows::As(reads_too_early);
    no_wait_for_an_empty_stage: NoWaitForEmpty => Shows::As(|kind| {
        matches!(kind, Kind::Asynchronous(Asynchronous::TooManyArrivals { count: 1, .. }))
    });
    a_stage_released_before_its_product_is_done: ReleasesBeforeWait => Shows::As(|kind| {
        refills_too_early(kind, "wgmma.mma_async")
    });
    a_barrier_for_too_few_arrivals: TooFewArrivalsAtInit => Shows::As(|kind| {
        refills_too_early(kind, "wgmma.mma_async")
    });
    a_barrier_for_too_many_arrivals: TooManyArrivalsAtInit => Shows::As(|kind| lacks(kind, "1 arrivals and 0 bytes"));
    barriers_not_fenced_for_the_copy_engine: NoInitFence => Shows::As(|kind| unfenced(kind, "fence.mbarrier_init"));
    barriers_used_before_the_block_met: NoBarrierAfterInit => Shows::As(|kind| match kind {
        Kind::Race { earlier, .. } => earlier.instruction == "mbarrier.init",
        kind => matches!(kind, Kind::Asynchronous(Asynchronous::NoMbarrier { .. })),
    });
    a_barrier_made_twice: InitTwice => Shows::As(|kind| {
        matches!(kind, Kind::Asynchronous(Asynchronous::MbarrierTouched { .. }))
    });
    a_store_over_a_barrier: StoresOverMbarrier => Shows::As(|kind| {
        matches!(kind, Kind::Asynchronous(Asynchronous::MbarrierTouched { .. }))
    });
    accumulators_read_in_flight: ReadsAccumulatorInFlight => Shows::InNumbers;
    accumulators_scaled_in_flight: ScalesAccumulatorInFlight => Shows::As(|kind| {
        matches!(kind, Kind::Asynchronous(Asynchronous::AccumulatorTouched { .. }))
    });
    accumulators_cleared_in_flight: ClearsAccumulatorInFlight => Shows::As(|kind| {
        matches!(kind, Kind::Asynchronous(Asynchronous::ProductUnfinished { .. }))
    });
    a_missing_wgmma_fence: NoWgmmaFence => Shows::As(|kind| {
        matches!(kind, Kind::Asynchronous(Asynchronous::MissingFence { .. }))
    });
    a_missing_commit: NoCommit => Shows::As(|kind| refills_too_early(kind, "wgmma.mma_async"));
    a_wait_for_one_group_too_few: WaitsForOneTooFew => Shows::As(|kind| refills_too_early(kind, "wgmma.mma_async"));
    no_wait_for_a_product: NoWaitForProducts => Shows::As(|kind| refills_too_early(kind, "wgmma.mma_async"));
    a_missing_proxy_fence: NoProxyFence => Shows::As(|kind| unfenced(kind, "fence.proxy.async"));
    a_proxy_fence_after_the_barrier: FencesAfterBarrier => Shows::As(|kind| unfenced(kind, "fence.proxy.async"));
    a_missing_barrier_before_the_store: NoBarrierBeforeStore => Shows::As(|kind| match kind {
        Kind::Race { place, .. } | Kind::Uninitialised { place, .. } => in_shared(place),
        _ => false,
    });
    staging_memory_overwritten_while_it_is_stored: OverwritesStaging => Shows::As(|kind| match kind {
        Kind::Race { earlier, later, .. } => {
            earlier.thread.warp == Thread::ENGINE && later.instruction == "st.shared.b32"
        }
        _ => false,
    });
    no_wait_before_exit: NoWaitBeforeExit => Shows::As(|kind| matches!(kind, Kind::CopiesUnfinished { count: 2, .. }));
    stores_not_committed: NoStoreCommit => Shows::As(|kind| match kind {
        Kind::Race { earlier, .. } => earlier.thread.warp == Thread::ENGINE,
        _ => false,
    });
    a_wrong_stride: WrongStride => Shows::InNumbers;
    a_wrong_leading_offset: WrongLeading => Shows::InNumbers;
    a_wrong_step_along_k: WrongStep => Shows::InNumbers;
    a_misaligned_tile: MisalignedTile => Shows::As(|kind| matches!(kind, Kind::Misaligned { alignment: 128, .. }));
    a_wrong_barrier: WrongBarrierId => Shows::As(|kind| match kind {
        Kind::Race { place, .. } | Kind::Uninitialised { place, .. } => in_shared(place),
        _ => false,
    });
    a_barrier_for_too_many_threads: WrongBarrierCount => Shows::As(|kind| lacks(kind, "128 of 160 have come"));
    more_registers_than_there_are: TooManyRegisters => Shows::As(|kind| deadlocked_at(kind, "setmaxnreg.inc"));
    registers_taken_by_one_warp: OneWarpTakesRegisters => Shows::As(|kind| {
        matches!(kind, Kind::Asynchronous(Asynchronous::WarpgroupDiverged { .. }))
    });
    registers_that_nobody_gave_back: ProducerKeepsRegisters => Shows::As(|kind| deadlocked_at(kind, "setmaxnreg.inc"));
    reads_of_ldmatrix_released_unordered: ReleasesAfterLdmatrix => Shows::As(|kind| {
        refills_too_early(kind, "ldmatrix.x4")
    });
    a_warp_that_multiplies_less: OneWarpMultipliesLess => Shows::As(|kind| {
        matches!(kind, Kind::Asynchronous(Asynchronous::WarpgroupDiverged { .. }))
    });
    loads_that_nobody_waits_for: PrefetchesAtTheEnd => Shows::As(|kind| {
        matches!(kind, Kind::CopiesUnfinished { count: 2, .. })
    });
    // Nobody sees within a launch what the copy engine stores; here it may not even be issued.
    output_read_back: ReadsOutputBack => Shows::As(|kind| match kind {
        Kind::Race { earlier, .. } => earlier.thread.warp == Thread::ENGINE,
        kind => matches!(kind, Kind::Uninitialised { .. }),
    });
}

//! Sums of a block by shuffles, votes, shared memory and named barriers.

use ferroflash_kernels::emu::{self, Fault, GlobalMemory, Kind, Launch, MemoryLocation, Options};
use ferroflash_kernels::ptx::{barrier, global, shared, shuffle, special};
use ferroflash_kernels::spec::Spec;

use crate::accept;

#[derive(Clone, Copy, PartialEq)]
enum Bug {
    None,
    HalfWarpShuffles,
    LanesShuffleApart,
    HalfWarpReduces,
    LanesReduceApart,
    HalfWarpBallots,
    ShufflesOutOfRange,
    MissingWarpSync,
    MissingBarrier,
    PartialNotWritten,
    BarrierCountsDiffer,
    SomeBringAPredicate,
    TooManyArrive,
    OneWarpStaysAway,
    NobodyConsumes,
    SharedPastTheEnd,
    AllLanesStore,
    OutputReadFirst,
    LanesDisagreeOnBarrier,
    Panics,
}

const THREADS: u32 = 128;
const WARPS: u32 = THREADS / 32;

/// `output[block]` = sum of the block's 128 inputs; `output[blocks + block]` = how many warps saw a negative one.
/// Warp 0 collects; the others only arrive at barrier 1.
#[derive(Clone, Copy)]
struct Reduction {
    input: u64,
    output: u64,
    bug: Bug,
}

impl Reduction {
    fn warp_sum(&self, mut x: f32) -> f32 {
        let lane = special::lane_idx();
        for distance in [16, 8, 4, 2, 1] {
            // SAFETY: all lanes, unless wrong on purpose.
            x += unsafe {
                match self.bug {
                    Bug::HalfWarpShuffles if lane >= 16 => 0.0,
                    Bug::LanesShuffleApart if lane >= 16 => shuffle::shuffle_bfly_f32(x, distance),
                    Bug::ShufflesOutOfRange => shuffle::shuffle_idx_f32(x, lane + distance),
                    _ => shuffle::shuffle_bfly_f32(x, distance),
                }
            };
        }
        x
    }

    /// Every lane's number through shared memory to lane 0, which adds them.
    fn count(&self, slot: u32, x: bool) -> f32 {
        let lane = special::lane_idx();
        // SAFETY: each lane writes its own word; lane 0 reads them after `warp_sync`.
        unsafe {
            // How many, in which lanes, and whether in any: one answer, asked for three times.
            let n = match self.bug {
                Bug::HalfWarpReduces if lane >= 16 => x as u32,
                Bug::LanesReduceApart if lane >= 16 => shuffle::redux_max_u32(x as u32),
                _ => shuffle::redux_add_u32(x as u32),
            };
            let lanes = match self.bug {
                Bug::HalfWarpBallots if lane >= 16 => x as u32,
                _ => shuffle::vote_ballot(x),
            };
            let any = shuffle::vote_any(x) && n == lanes.count_ones();
            shared::st_shared_f32(slot + lane * 4, if any && lane == 0 { 1.0 } else { 0.0 });
            if self.bug != Bug::MissingWarpSync {
                barrier::warp_sync();
            }
            let mut sum = 0.0;
            if lane == 0 {
                for other in 0..32 {
                    sum += shared::ld_shared_f32(slot + other * 4);
                }
            }
            sum
        }
    }

    fn hand_over(&self, warp: u32) {
        let id = match self.bug {
            Bug::LanesDisagreeOnBarrier => 1 + special::lane_idx() % 2,
            _ => 1,
        };
        let threads = match self.bug {
            Bug::BarrierCountsDiffer if warp == 1 => 64,
            Bug::TooManyArrive => 64,
            _ => THREADS,
        };
        // SAFETY: whole warps, unless wrong on purpose.
        unsafe {
            match (warp, self.bug) {
                (0, Bug::SomeBringAPredicate) => {
                    barrier::barrier_red_or(id, threads, true);
                }
                (0, Bug::MissingBarrier | Bug::NobodyConsumes) => {}
                (3, Bug::OneWarpStaysAway) => {}
                (0, _) => barrier::barrier_sync(id, threads),
                (_, Bug::MissingBarrier) => {}
                _ => barrier::barrier_arrive(id, threads),
            }
        }
    }

    fn kernel(&self) {
        let (thread, block) = (special::thread_idx_x(), special::block_idx_x());
        let (warp, lane) = (thread / 32, special::lane_idx());
        let base = special::shared_base();
        let slots = base
            + if self.bug == Bug::SharedPastTheEnd {
                128 * WARPS
            } else {
                0
            };
        let partials = base + WARPS * 128;
        // SAFETY: addresses inside the block's memory and the buffers, unless wrong on purpose.
        unsafe {
            let x = global::ld_global_f32(self.input + u64::from(block * THREADS + thread) * 4);
            assert!(self.bug != Bug::Panics || thread != 77, "planted");
            if self.bug == Bug::OutputReadFirst {
                global::ld_global_f32(self.output);
            }
            let sum = self.warp_sum(x);
            let negative = self.count(slots + warp * 128, x < 0.0);
            if lane == 0 && !(self.bug == Bug::PartialNotWritten && warp == 2) {
                shared::st_shared_x2(partials + warp * 8, [sum, negative].map(f32::to_bits));
            }
            self.hand_over(warp);
            let stores = lane == 0 || self.bug == Bug::AllLanesStore;
            if warp == 0 && stores {
                let (mut total, mut negatives) = (0.0, 0.0);
                for warp in 0..WARPS {
                    let [sum, negative] =
                        shared::ld_shared_x2(partials + warp * 8).map(f32::from_bits);
                    total += sum;
                    negatives += negative;
                }
                let blocks = special::grid_dim_x();
                global::st_global_f32(self.output + u64::from(block) * 4, total);
                global::st_global_f32(self.output + u64::from(blocks + block) * 4, negatives);
            }
        }
    }
}

fn run(bug: Bug, options: Options) -> Result<bool, Fault> {
    let blocks = 3;
    let input: Vec<f32> = (0..blocks * THREADS)
        .map(|i| (i % 32) as f32 - if i / 32 == 5 { 1.0 } else { 0.0 })
        .collect();
    let mut output = vec![f32::NAN; 2 * blocks as usize];
    let mut memory = GlobalMemory::new();
    let kernel = Reduction {
        input: memory.input("input", &input),
        output: memory.output("output", &mut output),
        bug,
    };
    let shared_bytes = WARPS * 128 + WARPS * 8;
    let launch = Launch {
        grid: blocks,
        threads: THREADS,
        shared_bytes,
        resident_blocks: 2,
        blocks_per_sm: 1,
        cluster: 1,
        spec: Spec::PLAIN,
    };
    emu::run(&launch, &options, &mut memory, &|| kernel.kernel())?;
    Ok((0..blocks as usize).all(|block| {
        let warps = input[block * THREADS as usize..][..THREADS as usize].chunks(32);
        let total: f32 = warps.clone().flatten().sum();
        let negatives = warps.filter(|warp| warp.iter().any(|x| *x < 0.0)).count() as f32;
        output[block] == total && output[blocks as usize + block] == negatives
    }))
}

#[test]
fn the_right_kernel_passes() {
    accept(|options| run(Bug::None, options));
}

caught! {
    a_shuffle_of_half_a_warp: HalfWarpShuffles => |kind| matches!(kind, Kind::Divergence { .. });
    lanes_at_two_shuffles: LanesShuffleApart => |kind| match kind {
        Kind::Divergence { earlier, later } => earlier.at.line() != later.at.line(),
        _ => false,
    };
    a_reduction_of_half_a_warp: HalfWarpReduces => |kind| matches!(kind, Kind::Divergence { .. });
    lanes_at_two_reductions: LanesReduceApart => |kind| match kind {
        Kind::Divergence { earlier, later } => earlier.at.line() != later.at.line(),
        _ => false,
    };
    a_ballot_of_half_a_warp: HalfWarpBallots => |kind| matches!(kind, Kind::Divergence { .. });
    a_shuffle_from_beyond_the_warp: ShufflesOutOfRange => |kind| matches!(kind, Kind::Operand { .. });
    lanes_that_exchange_without_meeting: MissingWarpSync => |kind| match kind {
        // Lane 0 reads a word before, or unordered after, its writer came by.
        Kind::Race { place: MemoryLocation::Shared(_), earlier, later } => earlier.thread.warp == later.thread.warp,
        Kind::Uninitialised { place: MemoryLocation::Shared(_), .. } => true,
        _ => false,
    };
    warps_that_exchange_without_meeting: MissingBarrier => |kind| {
        matches!(kind, Kind::Race { place: MemoryLocation::Shared(_), .. } | Kind::Uninitialised { .. })
    };
    a_partial_sum_not_written: PartialNotWritten => |kind| {
        matches!(kind, Kind::Uninitialised { place: MemoryLocation::Shared(_), .. })
    };
    a_barrier_for_two_counts: BarrierCountsDiffer => |kind| matches!(kind, Kind::BarrierCount { .. });
    a_barrier_with_a_predicate_and_without: SomeBringAPredicate => |kind| matches!(kind, Kind::BarrierMixed { barrier: 1, .. });
    more_warps_than_the_barrier_is_for: TooManyArrive => |kind| {
        matches!(kind, Kind::BarrierUnfinished { .. } | Kind::Race { .. } | Kind::Uninitialised { .. } | Kind::Deadlock { .. })
    };
    a_warp_that_stays_away: OneWarpStaysAway => |kind| match kind {
        Kind::Deadlock { waiting } => waiting.iter().any(|waiting| waiting.until.contains("96 of 128")),
        _ => false,
    };
    a_barrier_half_full_at_the_end: NobodyConsumes => |kind| matches!(
        kind,
        Kind::BarrierUnfinished { barrier: 1, arrived: 96, expected: 128, .. } | Kind::Race { .. } | Kind::Uninitialised { .. }
    );
    a_word_past_the_end_of_shared_memory: SharedPastTheEnd => |kind| {
        matches!(kind, Kind::OutOfBounds { place: MemoryLocation::Shared(_), .. })
    };
    an_output_stored_by_all_lanes: AllLanesStore => |kind| match kind {
        Kind::Race { place: MemoryLocation::Global { .. }, earlier, later } => earlier.thread.lane != later.thread.lane,
        _ => false,
    };
    an_output_read_before_it_is_written: OutputReadFirst => |kind| {
        matches!(kind, Kind::Uninitialised { place: MemoryLocation::Global { .. }, .. })
    };
    lanes_at_two_barriers: LanesDisagreeOnBarrier => |kind| matches!(kind, Kind::Operand { .. });
    a_panic_in_one_thread: Panics => |kind| match kind {
        Kind::Panic { thread, message } => {
            (thread.warp, thread.lane) == (2, Some(13)) && message.contains("planted")
        }
        _ => false,
    };
}

//! A matrix product as the attention kernels do it: a ring of `cp.async` stages, swizzled, `ldmatrix`, `mma`.

use ferroflash_kernels::emu::{self, Fault, GlobalMemory, Kind, Launch, MemoryLocation, Options};
use ferroflash_kernels::ptx::{barrier, cp_async, global, ldmatrix, mma, special};
use ferroflash_kernels::spec::Spec;
use half::bf16;

use crate::{Shows, accept, catch};

#[derive(Clone, Copy, PartialEq)]
enum Bug {
    None,
    MissingBarrier,
    WaitsForTooFew,
    NeverWaits,
    MissingCommit,
    RefillsTooEarly,
    ReadsWithoutSwizzle,
    OneTileTooMany,
    OneTileTooFew,
    StagePastTheEnd,
    StoresPastTheEnd,
    CopiesPastTheEnd,
    LastRowNotLoaded,
    PrefetchesAtTheEnd,
    HalfWarpMultiplies,
    BlocksOverlap,
    StoresToInput,
    MisalignedRow,
}

const BLOCK: u32 = 64;
const STAGES: u32 = 3;
const OPERAND_BYTES: u32 = BLOCK * 128;
const STAGE_BYTES: u32 = 2 * OPERAND_BYTES;

/// `c[m][64] = a[m][k] · b[64][k]ᵀ`, one block per 64 rows of `c`.
#[derive(Clone, Copy)]
struct Product {
    a: u64,
    b: u64,
    c: u64,
    m: u32,
    k: u32,
    bug: Bug,
}

impl Product {
    fn rows_begin(&self) -> u32 {
        let overlap = if self.bug == Bug::BlocksOverlap { 1 } else { 0 };
        special::block_idx_x() * (BLOCK - overlap)
    }

    /// Issues this thread's copies of tile `tile` into its stage.
    fn load(&self, tile: u32) {
        let thread = special::thread_idx_x();
        let stages = if self.bug == Bug::StagePastTheEnd {
            STAGES + 1
        } else {
            STAGES
        };
        let stage = special::shared_base() + tile % stages * STAGE_BYTES;
        for i in 0..4 {
            let (row, chunk) = ((thread + i * 128) / 8, thread % 8);
            let offset = row * 128 + ((chunk ^ (row & 7)) << 4);
            let element = |row: u32| u64::from(row * self.k + tile * BLOCK + chunk * 8) * 2;
            let a_row = self.rows_begin() + row;
            let inside = a_row < self.m || self.bug == Bug::CopiesPastTheEnd;
            let bytes = if inside { 16 } else { 0 };
            let bent = if self.bug == Bug::MisalignedRow && row == 5 {
                8
            } else {
                0
            };
            // SAFETY: what is wrong here is wrong on purpose.
            unsafe {
                cp_async::cp_async_cg_16(stage + offset, self.a + element(a_row) + bent, bytes);
                if !(self.bug == Bug::LastRowNotLoaded && row == BLOCK - 1) {
                    cp_async::cp_async_cg_16(
                        stage + OPERAND_BYTES + offset,
                        self.b + element(row),
                        16,
                    );
                }
            }
        }
    }

    fn commit(&self) {
        if self.bug != Bug::MissingCommit {
            cp_async::cp_async_commit_group();
        }
    }

    fn wait(&self) {
        match self.bug {
            Bug::WaitsForTooFew => cp_async::cp_async_wait_group::<{ STAGES - 1 }>(),
            Bug::NeverWaits => {}
            _ => cp_async::cp_async_wait_group::<{ STAGES - 2 }>(),
        }
    }

    fn multiply(&self, tile: u32, acc: &mut [[f32; 4]; 8]) {
        let (warp, lane) = (special::thread_idx_x() / 32, special::lane_idx());
        if self.bug == Bug::HalfWarpMultiplies && lane >= 16 {
            return;
        }
        let stage = special::shared_base() + tile % STAGES * STAGE_BYTES;
        let swizzle = if self.bug == Bug::ReadsWithoutSwizzle {
            0
        } else {
            7
        };
        let at = |operand: u32, row: u32, chunk: u32| {
            stage + operand * OPERAND_BYTES + row * 128 + ((chunk ^ (row & swizzle)) << 4)
        };
        for step in 0..4 {
            // SAFETY: the stage was waited for; what is wrong is wrong on purpose.
            unsafe {
                let a =
                    ldmatrix::ldmatrix_x4(at(0, warp * 16 + (lane & 15), step * 2 + (lane >> 4)));
                for pair in 0..4 {
                    let row = pair * 16 + (lane & 7) + (lane >> 4) * 8;
                    let b = ldmatrix::ldmatrix_x4(at(1, row, step * 2 + (lane >> 3 & 1)));
                    mma::mma_m16n8k16_bf16(&mut acc[pair as usize * 2], a, [b[0], b[1]]);
                    mma::mma_m16n8k16_bf16(&mut acc[pair as usize * 2 + 1], a, [b[2], b[3]]);
                }
            }
        }
    }

    fn store(&self, acc: &[[f32; 4]; 8]) {
        let (warp, lane) = (special::thread_idx_x() / 32, special::lane_idx());
        let base = if self.bug == Bug::StoresToInput {
            self.a
        } else {
            self.c
        };
        for (n, acc) in acc.iter().enumerate() {
            for half in 0..2 {
                let row = self.rows_begin() + warp * 16 + lane / 4 + 8 * half;
                let column = n as u32 * 8 + lane % 4 * 2;
                if row < self.m || self.bug == Bug::StoresPastTheEnd {
                    let pair =
                        [acc[2 * half as usize], acc[2 * half as usize + 1]].map(f32::to_bits);
                    // SAFETY: inside `c`, unless wrong on purpose.
                    unsafe {
                        global::st_global_x2(base + u64::from(row * BLOCK + column) * 4, pair)
                    };
                }
            }
        }
    }

    fn kernel(&self) {
        let tiles = match self.bug {
            Bug::OneTileTooMany => self.k / BLOCK + 1,
            Bug::OneTileTooFew => self.k / BLOCK - 1,
            _ => self.k / BLOCK,
        };
        for tile in 0..STAGES - 1 {
            self.load(tile);
            self.commit();
        }
        let mut acc = [[0.0; 4]; 8];
        for tile in 0..tiles {
            self.wait();
            let next = tile + STAGES - 1;
            let refill = || {
                if next < tiles {
                    self.load(next);
                } else if self.bug == Bug::PrefetchesAtTheEnd {
                    self.load(next - STAGES);
                }
                self.commit();
            };
            if self.bug == Bug::RefillsTooEarly {
                refill();
            }
            if self.bug != Bug::MissingBarrier {
                // SAFETY: the whole block comes by.
                unsafe { barrier::barrier_sync_all() };
            }
            if self.bug != Bug::RefillsTooEarly {
                refill();
            }
            self.multiply(tile, &mut acc);
        }
        self.store(&acc);
    }
}

/// Small whole numbers: every sum of their products is exact.
fn numbers(count: u32, step: u32) -> Vec<bf16> {
    (0..count)
        .map(|i| bf16::from_f32((i * step % 17) as f32 - 8.0))
        .collect()
}

fn run(bug: Bug, options: Options) -> Result<bool, Fault> {
    let (m, k) = (100, 320);
    let (a, b) = (numbers(m * k, 7), numbers(BLOCK * k, 5));
    let mut c = vec![f32::NAN; (m * BLOCK) as usize];
    let mut memory = GlobalMemory::new();
    let addresses = (
        memory.input("a", &a),
        memory.input("b", &b),
        memory.output("c", &mut c),
    );
    let launch = Launch {
        grid: 2,
        threads: 128,
        shared_bytes: STAGES * STAGE_BYTES,
        resident_blocks: 2,
        blocks_per_sm: 1,
        cluster: 1,
        spec: Spec::PLAIN,
    };
    let product = Product {
        a: addresses.0,
        b: addresses.1,
        c: addresses.2,
        m,
        k,
        bug,
    };
    emu::run(&launch, &options, &mut memory, &|| product.kernel())?;
    if bug == Bug::None {
        assert_eq!(memory.first_unwritten("c"), None);
    }
    let right = |i: usize| {
        let (row, column) = (i / BLOCK as usize, i % BLOCK as usize);
        let (a, b) = (&a[row * k as usize..], &b[column * k as usize..]);
        (0..k as usize)
            .map(|j| a[j].to_f32() * b[j].to_f32())
            .sum::<f32>()
    };
    Ok((0..c.len()).all(|i| c[i] == right(i)))
}

#[test]
fn the_right_kernel_passes() {
    accept(|options| run(Bug::None, options));
}

macro_rules! caught {
    ($($name:ident: $bug:ident => $shows:expr;)*) => { $(
        #[test]
        fn $name() {
            catch($shows, |options| run(Bug::$bug, options));
        }
    )* };
}

fn in_shared(place: &MemoryLocation) -> bool {
    matches!(place, MemoryLocation::Shared(_))
}

fn in_buffer(place: &MemoryLocation, name: &str) -> bool {
    matches!(place, MemoryLocation::Global { buffer, .. } if buffer == name)
}

caught! {
    a_missing_barrier: MissingBarrier => Shows::As(|kind| match kind {
        // Another thread's copy: landed for its own thread, or not even that, or not even issued.
        Kind::Race { place, .. } | Kind::InFlight { place, .. } | Kind::Uninitialised { place, .. } => {
            in_shared(place)
        }
        _ => false,
    });
    a_wait_for_too_few_groups: WaitsForTooFew => Shows::As(|kind| matches!(kind, Kind::InFlight { .. }));
    no_wait_at_all: NeverWaits => Shows::As(|kind| matches!(kind, Kind::InFlight { .. }));
    a_missing_commit: MissingCommit => Shows::As(|kind| matches!(kind, Kind::InFlight { .. }));
    a_stage_refilled_too_early: RefillsTooEarly => Shows::As(|kind| match kind {
        Kind::Race { place, .. } | Kind::InFlight { place, .. } => in_shared(place),
        _ => false,
    });
    a_forgotten_swizzle: ReadsWithoutSwizzle => Shows::InNumbers;
    one_tile_too_many: OneTileTooMany => Shows::As(|kind| match kind {
        Kind::OutOfBounds { place, .. } => in_buffer(place, "a") || in_buffer(place, "b"),
        _ => false,
    });
    one_tile_too_few: OneTileTooFew => Shows::InNumbers;
    a_stage_past_the_end_of_shared_memory: StagePastTheEnd => Shows::As(|kind| match kind {
        Kind::OutOfBounds { place, .. } => in_shared(place),
        _ => false,
    });
    rows_stored_past_the_end: StoresPastTheEnd => Shows::As(|kind| match kind {
        Kind::OutOfBounds { place, access, .. } => in_buffer(place, "c") && access.instruction == "st.global.v2.b32",
        _ => false,
    });
    rows_copied_past_the_end: CopiesPastTheEnd => Shows::As(|kind| match kind {
        Kind::OutOfBounds { place, .. } => in_buffer(place, "a"),
        _ => false,
    });
    a_row_that_was_not_loaded: LastRowNotLoaded => Shows::As(|kind| match kind {
        Kind::Uninitialised { place, access } => in_shared(place) && access.instruction == "ldmatrix.x4",
        _ => false,
    });
    copies_in_flight_at_the_end: PrefetchesAtTheEnd => Shows::As(|kind| matches!(kind, Kind::CopiesUnfinished { .. }));
    half_a_warp_at_mma: HalfWarpMultiplies => Shows::As(|kind| {
        matches!(kind, Kind::Divergence { .. } | Kind::Exited { .. })
    });
    blocks_that_overlap: BlocksOverlap => Shows::As(|kind| match kind {
        Kind::Race { place, earlier, later } => {
            in_buffer(place, "c") && earlier.thread.block != later.thread.block
        }
        _ => false,
    });
    a_store_to_an_input: StoresToInput => Shows::As(|kind| matches!(kind, Kind::ReadOnly { .. }));
    a_misaligned_copy: MisalignedRow => Shows::As(|kind| matches!(kind, Kind::Misaligned { alignment: 16, .. }));
}

/// A fault names the lines of both sides.
#[test]
fn a_report_names_file_and_line_of_both_sides() {
    let fault = run(Bug::BlocksOverlap, Options::seeded(1)).unwrap_err();
    let Kind::Race { earlier, later, .. } = fault.kind() else {
        panic!("{fault}")
    };
    for access in [earlier, later] {
        assert!(
            access.at.file().ends_with("product.rs") && access.at.line() > 1,
            "{fault}"
        );
    }
    assert_eq!(
        fault.to_string().matches("product.rs").count(),
        2,
        "{fault}"
    );
}

/// The same seed gives the same fault, another seed another order.
#[test]
fn a_seed_reproduces_its_fault() {
    let reports: Vec<String> = crate::SEEDS
        .map(|seed| {
            run(Bug::BlocksOverlap, Options::seeded(seed))
                .unwrap_err()
                .to_string()
        })
        .collect();
    for (seed, report) in crate::SEEDS.zip(&reports) {
        assert_eq!(
            &run(Bug::BlocksOverlap, Options::seeded(seed))
                .unwrap_err()
                .to_string(),
            report
        );
    }
    assert!(reports.iter().any(|report| report != &reports[0]));
}

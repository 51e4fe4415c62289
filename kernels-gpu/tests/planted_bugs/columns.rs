//! Warps that have the same rows of S and divide the columns of Q and K, as flash2's forward kernel at head_dim 512 does: each leaves its part of S in
//! shared memory, and adds up the parts of all.

use ferroflash_kernels::emu::{self, Fault, GlobalMemory, Kind, Launch, MemoryLocation, Options};
use ferroflash_kernels::ptx::{barrier, cp_async, global, shared, special};
use ferroflash_kernels::spec::Spec;
use ferroflash_kernels::tile::copy::{self, Team, Whole};
use ferroflash_kernels::tile::element::Bf16;
use ferroflash_kernels::tile::global::GlobalRows;
use ferroflash_kernels::tile::matmul::{left, right_transposed};
use ferroflash_kernels::tile::products::Products;
use ferroflash_kernels::tile::register::{Accumulator, RegisterTile};
use ferroflash_kernels::tile::shared::SharedTile;
use half::bf16;

use crate::{Shows, accept, catch};

#[derive(Clone, Copy, PartialEq)]
enum Bug {
    None,
    /// The last warp's part is not added.
    LeavesOneOut,
    /// Each adds the parts to its own.
    KeepsItsOwn,
    /// Each begins with its own part: sums in f32 then differ from warp to warp.
    OwnFirst,
    /// No barrier between parts and their sum.
    AddsTooEarly,
    /// No barrier between a sum and the parts of the next step.
    SendsTooEarly,
}

/// Warps, and columns of each.
const WARPS: u32 = 4;
const COLUMNS: u32 = 32;
/// Rows of Q, and of K in a step.
const ROWS: u32 = 32;
const STEPS: u32 = 3;
const THREADS: u32 = WARPS * 32;
const ROW_BYTES: u32 = WARPS * COLUMNS * 2;
const TILE_BYTES: u32 = ROWS * ROW_BYTES;
/// Bytes of one fragment of all lanes, and of a warp's part.
const FRAGMENT_BYTES: u32 = 32 * 16;
const PART_BYTES: u32 = (Scores::M * Scores::N) as u32 * FRAGMENT_BYTES;

type Scores = RegisterTile<{ ROWS as usize / 16 }, { ROWS as usize / 8 }>;

/// S of every step, as every warp has it: f32 `[STEPS, WARPS, fragments, 32 lanes, 4]`.
#[derive(Clone, Copy)]
struct Columns {
    q: u64,
    k: u64,
    s: u64,
    bug: Bug,
}

impl Columns {
    fn is(&self, bug: Bug) -> bool {
        self.bug == bug
    }

    fn tile(idx: u32) -> SharedTile {
        SharedTile {
            base: special::shared_base() + idx * TILE_BYTES,
            row_bytes: ROW_BYTES,
        }
    }

    fn part(warp: u32) -> u32 {
        Columns::tile(1 + STEPS).base + warp * PART_BYTES + special::lane_idx() * 16
    }

    /// Begins the copy of rows of Q, or of a step's keys.
    fn load(base: u64, idx: u32) {
        let rows = GlobalRows {
            base,
            row_bytes: ROW_BYTES.into(),
            len: ROWS,
        };
        let team = Team {
            thread: special::thread_idx_x(),
            threads: THREADS,
        };
        let source = rows.with_chunks(ROW_BYTES / 16);
        // SAFETY: nobody has read the tile yet.
        unsafe { copy::load::<Whole>(Columns::tile(idx), source, 0, ROWS, team) };
    }

    fn send(&self, warp: u32, s: &Scores) {
        for m in 0..Scores::M {
            for n in 0..Scores::N {
                let at = Columns::part(warp) + (m * Scores::N + n) as u32 * FRAGMENT_BYTES;
                // SAFETY: the place is this lane's; what is wrong is wrong on purpose.
                unsafe { shared::st_shared_x4(at, s.fragment(m, n).map(f32::to_bits)) };
            }
        }
    }

    fn sum(&self, warp: u32, s: &mut Scores) {
        if !self.is(Bug::KeepsItsOwn) {
            *s = Scores::zero();
        }
        let parts = if self.is(Bug::LeavesOneOut) {
            WARPS - 1
        } else {
            WARPS
        };
        for i in 0..parts {
            let of = if self.is(Bug::OwnFirst) {
                (warp + i) % WARPS
            } else {
                i
            };
            for m in 0..Scores::M {
                for n in 0..Scores::N {
                    let at = Columns::part(of) + (m * Scores::N + n) as u32 * FRAGMENT_BYTES;
                    // SAFETY: a barrier stands between; what is wrong is wrong on purpose.
                    let part = unsafe { shared::ld_shared_x4(at) };
                    let sums = s.fragment_mut(m, n);
                    for idx in 0..4 {
                        sums[idx] += f32::from_bits(part[idx]);
                    }
                }
            }
        }
    }

    fn store(&self, step: u32, warp: u32, s: &Scores) {
        for m in 0..Scores::M {
            for n in 0..Scores::N {
                let fragment = (m * Scores::N + n) as u32;
                let at = (step * WARPS + warp) * PART_BYTES + fragment * FRAGMENT_BYTES;
                let to = self.s + u64::from(at + special::lane_idx() * 16);
                // SAFETY: the place is this lane's.
                unsafe { global::st_global_x4(to, s.fragment(m, n).map(f32::to_bits)) };
            }
        }
    }

    fn kernel(&self) {
        let warp = special::thread_idx_x() / 32;
        Columns::load(self.q, 0);
        for step in 0..STEPS {
            let keys = self.k + u64::from(step * TILE_BYTES);
            Columns::load(keys, 1 + step);
        }
        cp_async::cp_async_commit_group();
        cp_async::cp_async_wait_group::<0>();
        // SAFETY: all threads come to every barrier; the tiles have arrived.
        unsafe {
            barrier::barrier_sync_all();
            for step in 0..STEPS {
                let mut s = Scores::zero();
                let column16 = warp * COLUMNS / 16;
                let q = left(Columns::tile(0), 0).from_column16(column16);
                let k = right_transposed(Columns::tile(1 + step), 0).from_column16(column16);
                Bf16::gemm_ss(&mut s, q, k, COLUMNS);
                if step > 0 && !self.is(Bug::SendsTooEarly) {
                    barrier::barrier_sync_all();
                }
                self.send(warp, &s);
                if !self.is(Bug::AddsTooEarly) {
                    barrier::barrier_sync_all();
                }
                self.sum(warp, &mut s);
                self.store(step, warp, &s);
            }
        }
    }
}

/// Small whole numbers; of q the first warp's are large, and the third warp's are these with the other sign. So each part is exact, and a sum of parts depends on
/// its order.
fn inputs() -> (Vec<bf16>, Vec<bf16>) {
    let small = |i: u32, step: u32| (i * step % 13) as f32 - 6.0;
    let q = (0..ROWS * WARPS * COLUMNS).map(|i| {
        let (row, column) = (i / (WARPS * COLUMNS), i % (WARPS * COLUMNS));
        let number = small(row * COLUMNS + column % COLUMNS, 7);
        match column / COLUMNS {
            0 => number * 2f32.powi(20),
            2 => -number * 2f32.powi(20),
            _ => number,
        }
    });
    let k = (0..STEPS * ROWS * WARPS * COLUMNS).map(|i| {
        let (row, column) = (i / (WARPS * COLUMNS), i % COLUMNS);
        small(row * COLUMNS + column, 5)
    });
    (
        q.map(bf16::from_f32).collect(),
        k.map(bf16::from_f32).collect(),
    )
}

fn run(bug: Bug, options: Options) -> Result<bool, Fault> {
    let (q, k) = inputs();
    let mut s = vec![f32::NAN; (STEPS * WARPS * PART_BYTES / 4) as usize];
    let mut memory = GlobalMemory::new();
    let columns = Columns {
        q: memory.input("q", &q),
        k: memory.input("k", &k),
        s: memory.output("s", &mut s),
        bug,
    };
    let launch = Launch {
        grid: 1,
        threads: THREADS,
        shared_bytes: (1 + STEPS) * TILE_BYTES + WARPS * PART_BYTES,
        resident_blocks: 1,
        blocks_per_sm: 1,
        cluster: 1,
        spec: Spec::PLAIN,
    };
    emu::run(&launch, &options, &mut memory, &|| columns.kernel())?;
    let width = (WARPS * COLUMNS) as usize;
    let row = |of: &[bf16], at: usize| -> Vec<f32> {
        of[at * width..][..width]
            .iter()
            .map(|x| x.to_f32())
            .collect()
    };
    let expected = |step: usize, i: usize, j: usize| {
        let (q, k) = (row(&q, i), row(&k, step * ROWS as usize + j));
        let products: Vec<f32> = q.iter().zip(&k).map(|(q, k)| q * k).collect();
        let parts = products.chunks(COLUMNS as usize);
        parts.fold(0.0, |sum, part| sum + part.iter().sum::<f32>())
    };
    let elements = s.len() / (STEPS * WARPS) as usize;
    let place = |at: usize| {
        let (fragment, lane, idx) = (at / 128, at / 4 % 32, at % 4);
        let (m, n) = (fragment / Scores::N, fragment % Scores::N);
        (
            m * 16 + lane / 4 + idx / 2 * 8,
            n * 8 + lane % 4 * 2 + idx % 2,
        )
    };
    Ok((0..s.len()).all(|at| {
        let (step, (i, j)) = (at / elements / WARPS as usize, place(at % elements));
        s[at] == expected(step, i, j)
    }))
}

#[test]
fn the_right_kernel_passes() {
    accept(|options| run(Bug::None, options));
}

#[test]
fn a_part_that_is_left_out() {
    catch(Shows::InNumbers, |options| run(Bug::LeavesOneOut, options));
}

#[test]
fn parts_added_to_the_own_one() {
    catch(Shows::InNumbers, |options| run(Bug::KeepsItsOwn, options));
}

#[test]
fn sums_in_another_order_for_each_warp() {
    catch(Shows::InNumbers, |options| run(Bug::OwnFirst, options));
}

fn in_shared(place: &MemoryLocation) -> bool {
    matches!(place, MemoryLocation::Shared(_))
}

caught! {
    parts_added_before_all_are_there: AddsTooEarly => |kind| match kind {
        Kind::Race { place, .. } | Kind::Uninitialised { place, .. } => in_shared(place),
        _ => false,
    };
    parts_left_before_the_last_ones_are_read: SendsTooEarly => |kind| match kind {
        Kind::Race { place, .. } => in_shared(place),
        _ => false,
    };
}

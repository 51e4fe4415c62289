//! The products of a warpgroup's tiles, each with operands that are stored in all the ways it takes.

use std::sync::atomic::{AtomicBool, Ordering};

use ferroflash_kernels::emu::{self, Asynchronous, Fault, GlobalMemory, Kind, Launch, Options};
use ferroflash_kernels::ptx::{barrier, shared, special, tma};
use ferroflash_kernels::spec::Spec;
use ferroflash_kernels::tile::element::Bf16;
use ferroflash_kernels::tile::register::{Accumulator, RegisterTile};
use ferroflash_kernels::tile::shared::SharedTile;
use ferroflash_kernels::tile::warpgroup::{
    BoxedTile, WarpgroupTile, begin_gemm_rs, begin_gemm_ss, store_matrices,
};
use half::bf16;

use crate::{Shows, accept, catch};

#[derive(Clone, Copy, PartialEq)]
enum Bug {
    None,
    RowsForColumns,
    WrongHeight,
    WrongPart,
    OneStepTooFew,
    DropsWhatItHeld,
    OverwritesTransposed,
    NoWait,
    StoresRowsTwice,
    StoresWithoutFence,
}

/// Bytes of 64 rows of 64 columns.
const PIECE: u32 = 64 * 128;
/// Steps of 16 along the inner dimension of 128.
const STEPS: u32 = 8;

/// Three products over 128, one added to the other: A in shared memory by columns, by rows, and in registers; of B, which
/// has 128 rows and 128 columns, another part for each.
#[derive(Clone, Copy)]
struct Kernel {
    bug: Bug,
}

/// Element of a piece of shared memory: A's are pieces 0 and 1, B's the four behind them.
fn element(piece: u32, row: u32, column: u32) -> f32 {
    ((piece * 7 + row * 3 + column * 5 + row * column) % 8) as f32
}

fn a_by_columns(m: u32, k: u32) -> f32 {
    element(k / 64, k % 64, m)
}

fn a_by_rows(m: u32, k: u32) -> f32 {
    element(k / 64, m, k % 64)
}

fn a_in_registers(m: u32, k: u32) -> f32 {
    ((m * 3 + k) % 4) as f32
}

fn b(k: u32, n: u32) -> f32 {
    element(2 + n / 64 * 2 + k / 64, k % 64, n % 64)
}

fn place(piece: u32) -> SharedTile {
    SharedTile {
        base: special::shared_base() + piece * PIECE,
        row_bytes: 128,
    }
}

/// This warp's row of the result.
fn row_of(row: u32) -> u32 {
    special::thread_idx_x() / 32 * 16 + row
}

/// B, written by the threads.
unsafe fn fill() {
    for piece in 2..6 {
        for i in 0..16 {
            let word = i * 128 + special::thread_idx_x();
            let (row, column) = (word / 32, word % 32 * 2);
            let [lower, upper] = [0, 1].map(|i| bf16::from_f32(element(piece, row, column + i)));
            let pair = u32::from(lower.to_bits()) | u32::from(upper.to_bits()) << 16;
            // SAFETY: inside shared memory.
            unsafe { shared::st_shared_u32(place(piece).pair(row, column), pair) };
        }
    }
}

impl Kernel {
    fn is(self, bug: Bug) -> bool {
        self.bug == bug
    }

    /// Fills shared memory: A from accumulators.
    unsafe fn store(self) {
        let mut a = RegisterTile::<1, 16>::zero();
        a.for_each(|row, k, x| *x = a_by_rows(row_of(row), k));
        let tile = BoxedTile {
            base: place(0).base,
            rows: 64,
        };
        let first_row = if self.is(Bug::StoresRowsTwice) {
            0
        } else {
            row_of(0)
        };
        // SAFETY: the whole block comes by; what is wrong is wrong on purpose.
        unsafe {
            fill();
            if self.is(Bug::StoresWithoutFence) {
                tma::fence_proxy_async();
            }
            store_matrices::<RegisterTile<1, 16>>(tile, first_row, &a.pack::<Bf16>());
            if !self.is(Bug::StoresWithoutFence) {
                tma::fence_proxy_async();
            }
            barrier::barrier_sync_all();
        }
    }

    /// Whether this thread's numbers are right.
    fn run(self) -> bool {
        let tile = |piece: u32, rows| BoxedTile {
            base: place(piece).base,
            rows,
        };
        let (a_rows, a_columns) = (tile(0, 64), tile(0, 128).t());
        let b_tile = tile(2, if self.is(Bug::WrongHeight) { 64 } else { 128 });
        let part = if self.is(Bug::WrongPart) { 0 } else { 1 };
        let steps = STEPS - u32::from(self.is(Bug::OneStepTooFew));
        let add = u32::from(!self.is(Bug::DropsWhatItHeld));
        let mut weights = RegisterTile::<1, 16>::zero();
        weights.for_each(|row, k, x| *x = a_in_registers(row_of(row), k));
        let packed = weights.pack::<Bf16>();
        let mut acc = RegisterTile::<1, 8>::undefined();
        // SAFETY: one warpgroup, on what it wrote; what is wrong is wrong on purpose.
        unsafe {
            self.store();
            let begun = if self.is(Bug::RowsForColumns) {
                begin_gemm_ss::<Bf16, _>(&mut acc, a_rows, b_tile.from_part(1), STEPS, 0)
            } else {
                begin_gemm_ss::<Bf16, _>(&mut acc, a_columns, b_tile.from_part(part), STEPS, 0)
            };
            if self.is(Bug::OverwritesTransposed) {
                shared::st_shared_u32(place(1).pair(63, row_of(special::lane_idx() % 8 * 2)), 0);
            }
            begun.wait::<0>();
            begin_gemm_ss::<Bf16, _>(&mut acc, a_rows, b_tile, steps, add).wait::<0>();
            let b_part = b_tile.from_part(1);
            let begun = begin_gemm_rs::<Bf16, _>(&mut acc, &packed, b_part, steps, 1);
            if self.is(Bug::NoWait) {
                let _ = begun;
            } else {
                begun.wait::<0>();
            }
        }
        let mut right = true;
        acc.for_each(|row, n, x| {
            let m = row_of(row);
            let product = |k| {
                a_by_columns(m, k) * b(k, 64 + n)
                    + a_by_rows(m, k) * b(k, n)
                    + a_in_registers(m, k) * b(k, 64 + n)
            };
            right &= *x == (0..128).map(product).sum::<f32>();
        });
        right
    }
}

fn run(bug: Bug, options: Options) -> Result<bool, Fault> {
    let right = AtomicBool::new(true);
    let launch = Launch {
        grid: 1,
        threads: 128,
        shared_bytes: 6 * PIECE,
        resident_blocks: 1,
        blocks_per_sm: 1,
        cluster: 1,
        spec: Spec::PLAIN,
    };
    emu::run(&launch, &options, &mut GlobalMemory::new(), &|| {
        if !(Kernel { bug }).run() {
            right.store(false, Ordering::Relaxed);
        }
    })?;
    Ok(right.into_inner())
}

#[test]
fn the_right_products_pass() {
    accept(|options| run(Bug::None, options));
}

#[test]
fn wrong_operands_show_in_numbers() {
    let bugs = [
        Bug::RowsForColumns,
        Bug::WrongHeight,
        Bug::WrongPart,
        Bug::OneStepTooFew,
        Bug::DropsWhatItHeld,
    ];
    for bug in bugs {
        catch(Shows::InNumbers, |options| run(bug, options));
    }
}

#[test]
fn a_transposed_operand_is_overwritten_too_early() {
    let shows = Shows::As(|kind| match kind {
        Kind::Race { earlier, later, .. } => {
            earlier.instruction == "wgmma.mma_async" && later.instruction == "st.shared.b32"
        }
        _ => false,
    });
    catch(shows, |options| run(Bug::OverwritesTransposed, options));
}

#[test]
fn products_that_nobody_waited_for() {
    let shows = Shows::As(|kind| matches!(kind, Kind::Asynchronous(_)));
    catch(shows, |options| run(Bug::NoWait, options));
}

#[test]
fn rows_that_two_warps_store() {
    let shows = Shows::As(|kind| match kind {
        Kind::Race { earlier, later, .. } => {
            [earlier, later].map(|access| access.instruction) == ["stmatrix.x4"; 2]
        }
        _ => false,
    });
    catch(shows, |options| run(Bug::StoresRowsTwice, options));
}

#[test]
fn stored_matrices_want_a_fence_before_a_product() {
    let shows = Shows::As(|kind| match kind {
        Kind::Asynchronous(Asynchronous::Unfenced { earlier, .. }) => {
            earlier.instruction == "stmatrix.x4"
        }
        _ => false,
    });
    catch(shows, |options| run(Bug::StoresWithoutFence, options));
}

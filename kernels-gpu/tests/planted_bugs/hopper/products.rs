//! Products of warpgroups, and the registers that warpgroups hand each other.

use std::sync::atomic::{AtomicBool, Ordering};

use ferroflash_kernels::emu::{Asynchronous, Kind};
use ferroflash_kernels::ptx::wgmma::{
    Descriptor, Major, Types, Wgmma, WgmmaElement, wgmma_commit_group, wgmma_fence,
};
use ferroflash_kernels::ptx::{barrier, mbarrier, shared, special, tma, warpgroup};
use ferroflash_kernels::tile::fragment;
use ferroflash_kernels::tile::shared::SharedTile;
use half::bf16;

use super::{accepted, asynchronous, at, found, operand, run};
use crate::SEEDS;

struct Bf16;

impl WgmmaElement for Bf16 {
    fn types() -> Types {
        Types::Bf16
    }
}

const K_MAJOR: u32 = Major::K as u32;
const MN_MAJOR: u32 = Major::Mn as u32;

/// Operands of a product, written by the threads.
unsafe fn fill_operands(fence: fn()) {
    for word in 0..32 {
        // SAFETY: inside shared memory.
        unsafe { shared::st_shared_u32(at((word * 128 + special::thread_idx_x()) * 4), 0) };
    }
    fence();
    // SAFETY: the whole block comes by.
    unsafe {
        barrier::barrier_sync_all();
        wgmma_fence();
    }
}

fn tile(offset: u32) -> Descriptor {
    Descriptor {
        low: at(offset) >> 4,
        high: 64 | 1 << 30,
    }
}

unsafe fn multiply(acc: &mut [[f32; 4]; 8], a: Descriptor) {
    // SAFETY: as the caller promises.
    unsafe {
        acc.multiply_ss::<Bf16, K_MAJOR, K_MAJOR>(a, tile(8192), 0);
        wgmma_commit_group();
    }
}

#[test]
fn operands_written_by_threads_want_a_fence() {
    let kernel = |fence: fn()| {
        let mut acc = [[1.0; 4]; 8];
        // SAFETY: the warpgroup comes by; without the fence, wrong on purpose.
        unsafe {
            fill_operands(fence);
            multiply(&mut acc, tile(0));
            acc.wait::<0>();
        }
        assert_eq!(acc, [[0.0; 4]; 8]);
    };
    accepted(128, |_| kernel(tma::fence_proxy_async));
    found(
        128,
        asynchronous(|what| matches!(what, Asynchronous::Unfenced { .. })),
        |_| kernel(|| {}),
    );
}

/// Accumulators in flight may move as a whole; of single ones none may change, nor change places.
#[test]
fn accumulators_in_flight_keep_their_places() {
    let kernel = |change: fn(&mut [[f32; 4]; 8])| {
        let mut acc = [[1.0; 4]; 8];
        // SAFETY: the warpgroup comes by.
        unsafe {
            fill_operands(tma::fence_proxy_async);
            multiply(&mut acc, tile(0));
            let mut moved = acc;
            change(&mut moved);
            moved.wait::<0>();
        }
    };
    accepted(128, |_| kernel(|_| {}));
    let changes: [fn(&mut [[f32; 4]; 8]); 4] = [
        |acc| acc[3][1] = 0.0,
        |acc| acc.swap(0, 1),
        |acc| acc[7][3] += 1.0,
        |acc| acc.iter_mut().for_each(|x| *x = x.map(|x| x * 0.5)),
    ];
    for change in changes {
        found(
            128,
            asynchronous(|what| matches!(what, Asynchronous::AccumulatorTouched { .. })),
            |_| kernel(change),
        );
    }
}

#[test]
fn products_refuse_wrong_operands() {
    let kernel = |a: Descriptor| {
        let mut acc = [[1.0; 4]; 8];
        // SAFETY: wrong on purpose.
        unsafe {
            fill_operands(tma::fence_proxy_async);
            multiply(&mut acc, a);
            acc.wait::<0>();
        }
    };
    // Half a warpgroup; no swizzle; a base offset; a bit that means nothing.
    found(64, operand, |_| kernel(tile(0)));
    for wrong in [0, 1 << 30 | 1 << 17, 1 << 30 | 1 << 20] {
        found(128, operand, |_| {
            kernel(Descriptor {
                high: 64 | wrong,
                ..tile(0)
            })
        });
    }
    let diverged = |what: &Asynchronous| matches!(what, Asynchronous::WarpgroupDiverged { .. });
    for period in [32, 128] {
        found(128, asynchronous(diverged), |_| {
            let odd = special::thread_idx_x() % period / (period / 2);
            kernel(tile(odd * 1024))
        });
    }
    found(
        128,
        asynchronous(|what| matches!(what, Asynchronous::WarpgroupIncomplete { warps: 3, .. })),
        |_| {
            if special::thread_idx_x() < 96 {
                // SAFETY: wrong on purpose.
                unsafe { wgmma_fence() };
            }
        },
    );
}

/// Element `(k, m)` of an A that is stored as its columns.
fn transposed(k: u32, m: u32) -> f32 {
    (k * 5 + m * 3) as f32 % 32.0
}

/// A and B of four steps, each 64 rows of 64 columns: A stored as its columns, B with ones on its diagonal.
unsafe fn fill_transposed() {
    for i in 0..16 {
        let word = i * 128 + special::thread_idx_x();
        let (k, column) = (word / 32, word % 32 * 2);
        let pair = |f: &dyn Fn(u32) -> f32| {
            let bits = |x| u32::from(bf16::from_f32(f(x)).to_bits());
            bits(column) | bits(column + 1) << 16
        };
        let place = |offset| {
            SharedTile {
                base: at(offset),
                row_bytes: 128,
            }
            .pair(k, column)
        };
        // SAFETY: inside shared memory.
        unsafe {
            shared::st_shared_u32(place(0), pair(&|m| transposed(k, m)));
            shared::st_shared_u32(place(8192), pair(&|n| f32::from(u8::from(n == k))));
        }
    }
    tma::fence_proxy_async();
    // SAFETY: the whole block comes by.
    unsafe {
        barrier::barrier_sync_all();
        wgmma_fence();
    }
}

/// Whether the first 16 columns of a product's result are A.
fn is_transposed(acc: &[[f32; 4]; 8]) -> bool {
    let (lane, warp) = (special::lane_idx(), special::thread_idx_x() / 32);
    let mut right = true;
    for (n, fragment) in acc[..2].iter().enumerate() {
        for (idx, x) in fragment.iter().enumerate() {
            let place = fragment::accumulator(lane, idx as u32);
            right &= *x == transposed(n as u32 * 8 + place.col, warp * 16 + place.row);
        }
    }
    right
}

/// Asks of every seed whether all threads found their numbers right.
fn numbers_are(right: bool, kernel: impl Fn() -> bool) {
    for seed in SEEDS {
        let found = AtomicBool::new(true);
        let ran = run(128, seed, |_| {
            if !kernel() {
                found.store(false, Ordering::Relaxed);
            }
        });
        ran.unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
        assert_eq!(found.into_inner(), right, "seed {seed}");
    }
}

unsafe fn multiply_transposed<const MAJOR_A: u32>(
    acc: &mut [[f32; 4]; 8],
    add: u32,
    in_flight: fn(),
) {
    // SAFETY: the warpgroup comes by.
    unsafe {
        fill_transposed();
        acc.multiply_ss::<Bf16, MAJOR_A, MN_MAJOR>(tile(0), tile(8192), add);
        wgmma_commit_group();
        in_flight();
        acc.wait::<0>();
    }
}

#[test]
fn a_transposed_operand_is_read_as_such() {
    let ones = [[1.0; 4]; 8];
    numbers_are(true, || {
        let mut acc = ones;
        // SAFETY: the warpgroup comes by.
        unsafe { multiply_transposed::<MN_MAJOR>(&mut acc, 0, || {}) };
        is_transposed(&acc)
    });
    numbers_are(false, || {
        let mut acc = ones;
        // SAFETY: wrong on purpose.
        unsafe { multiply_transposed::<K_MAJOR>(&mut acc, 0, || {}) };
        is_transposed(&acc)
    });
}

/// Each warp reads its own columns of a transposed A: whoever writes any of them before the wait races.
#[test]
fn a_transposed_operand_stays_until_the_wait() {
    let races = |kind: &Kind| match kind {
        Kind::Race { earlier, later, .. } => {
            earlier.instruction == "wgmma.mma_async" && later.instruction == "st.shared.b32"
        }
        _ => false,
    };
    found(128, races, |_| {
        let mut acc = Wgmma::undefined();
        // SAFETY: wrong on purpose.
        unsafe {
            multiply_transposed::<MN_MAJOR>(&mut acc, 0, || {
                let warp = special::thread_idx_x() / 32;
                let tile = SharedTile {
                    base: at(0),
                    row_bytes: 128,
                };
                if special::lane_idx() == 0 {
                    shared::st_shared_u32(tile.pair(15, warp * 16 + 14), 0);
                }
            });
        }
    });
}

#[test]
fn accumulators_without_a_value_are_nothing_to_add_to() {
    for add in [0, 1] {
        numbers_are(add == 0, || {
            let mut acc = Wgmma::undefined();
            // SAFETY: the warpgroup comes by.
            unsafe { multiply_transposed::<MN_MAJOR>(&mut acc, add, || {}) };
            is_transposed(&acc)
        });
    }
}

/// Who writes over operands waits until all lanes have released them; they do so once their product is done.
#[test]
fn operands_are_released_after_the_wait() {
    let kernel = |early: u32| {
        let (thread, released) = (special::thread_idx_x(), at(24576));
        let mut acc = [[1.0; 4]; 8];
        // SAFETY: the first four warps multiply; those who release early do so wrongly on purpose.
        unsafe {
            if thread < 128 {
                fill_operands(tma::fence_proxy_async);
                multiply(&mut acc, tile(0));
                mbarrier::mbarrier_arrive_if(released, early);
                acc.wait::<0>();
                mbarrier::mbarrier_arrive_if(released, early ^ 1);
                return;
            }
            if thread == 128 {
                mbarrier::mbarrier_init(released, 128);
            }
            barrier::barrier_sync_all();
            if thread == 128 {
                mbarrier::mbarrier_wait(released, 0);
                shared::st_shared_u32(at(0), 0x3f80_3f80);
            }
        }
    };
    accepted(160, |_| kernel(0));
    found(160, |kind| matches!(kind, Kind::Race { .. }), |_| kernel(1));
}

fn take<const N: u32>() {
    // SAFETY: the warpgroups come by; what is wrong is wrong on purpose.
    unsafe { warpgroup::setmaxnreg_inc::<N>() };
}

fn give<const N: u32>() {
    // SAFETY: as `take`.
    unsafe { warpgroup::setmaxnreg_dec::<N>() };
}

#[test]
fn registers_refuse_wrong_numbers() {
    accepted(384, |_| {
        take::<168>();
        give::<168>();
    });
    accepted(512, |_| take::<128>());
    accepted(128, |_| take::<256>());
    found(128, operand, |_| give::<16>());
    found(128, operand, |_| give::<28>());
    found(128, operand, |_| take::<264>());
    found(384, operand, |_| give::<176>());
    found(384, operand, |_| take::<160>());
    let report = run(384, 1, |_| take::<176>()).unwrap_err().to_string();
    let expected = "384 threads at `setmaxnreg.inc`";
    let lacks =
        "176 registers for each thread: 256 more for its warp, while the block has 0 to give";
    assert!(
        report.contains(expected) && report.contains(lacks),
        "{report}"
    );
}

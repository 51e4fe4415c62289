//! Products of warpgroups, and the registers that warpgroups hand each other.

use ferroflash_kernels::emu::Asynchronous;
use ferroflash_kernels::ptx::wgmma::{
    Descriptor, Major, Wgmma, WgmmaElement, wgmma_commit_group, wgmma_fence,
};
use ferroflash_kernels::ptx::{barrier, shared, special, tma, warpgroup};

use super::{accepted, asynchronous, at, found, operand, run};

struct Bf16;

impl WgmmaElement for Bf16 {
    const BF16: bool = true;
}

const K_MAJOR: u32 = Major::K as u32;
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
        acc.multiply_ss::<Bf16, K_MAJOR>(a, tile(8192), 0);
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
